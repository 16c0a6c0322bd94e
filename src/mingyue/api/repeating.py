"""How much generated texts repeat themselves, beside the held-out text of the run of their model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mingyue.config import GenerateSettings
from mingyue.data import load_corpus
from mingyue.errors import MingyueError
from mingyue.generation import Generation
from mingyue.paths import path_of
from mingyue.runs.verdict import held_out_text
from mingyue.scoring import RepetitionReport, repetition_report
from mingyue.training import RunFolder


def repetition(
    texts: Sequence[str | Generation],
    model: str | Path | None = None,
    *,
    settings: GenerateSettings | None = None,
    verdict: str | None = None,
) -> RepetitionReport:
    """Measure how much texts repeat themselves: distinct n-grams, repeated ones, loops; and say what helps.

    `model`: the run folder, or the model folder in it, of the model that generated them; with it they are compared with
    the held-out text of the run. `settings`: those that they were sampled with. `verdict`: that of the model's
    training.json. The advice depends on both.
    """
    generated = [text if isinstance(text, str) else text.text for text in texts]
    held_out = None if model is None else _held_out(path_of(model))
    return repetition_report(generated, held_out, settings=settings, verdict=verdict)


def _held_out(path: Path) -> str | None:
    """The held-out text of a run; None where a model folder stands alone, or the data of its run is damaged."""
    for folder in (RunFolder(path), RunFolder(path.absolute().parent)):
        if not folder.data.is_dir():
            continue
        try:
            tokenizer, corpus, _ = load_corpus(folder.data)
        except (MingyueError, OSError):
            return None
        return held_out_text(tokenizer, corpus) or None
    return None
