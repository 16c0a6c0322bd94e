"""The outcome of a run in words: the verdict against simple models, and how much the model copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mingyue.data import Baselines, TokenCorpus
from mingyue.scoring import CopyReport, copy_report
from mingyue.text import Tokenizer
from mingyue.training import TrainResult, read_log

Verdict = Literal["learning", "not learning", "overfitting", "diverged", "not measured"]

_OVERFIT = 1.02  # ratio of the last held-out loss to the best one from which a run counts as overfitting
_FEW = 50  # held-out tokens: fewer are too few for a verdict
_COMPARED = 1 << 23  # tokens of the training text that the copy report reads
_PIECE = 1 << 16  # tokens of it that are decoded at once


@dataclass(frozen=True)
class Outcome:
    """Verdict and reasons."""

    verdict: Verdict
    sentences: tuple[str, ...]
    """What was measured, and what to do about it."""
    texts: tuple[str, ...] = ()
    """Texts that the trained model generated."""
    copying: CopyReport | None = None
    """How much of them is in the training text."""

    def with_texts(self, *texts: str) -> Outcome:
        """The same outcome with generated texts."""
        return replace(self, texts=texts)


def judge(result: TrainResult, metrics: Path, simple: Baselines, *, epochs: float = math.inf) -> Outcome:
    """Compare the final held-out loss with simple models and with the earlier evaluations (`judge_course`)."""
    found = judge_course(result, metrics, uniform=simple.uniform, epochs=epochs)
    if found.verdict not in ("learning", "overfitting") or result.evaluation is None:
        return found
    loss = result.evaluation.loss
    if simple.unigram is not None and loss >= simple.unigram:
        reason = f"Held-out loss {loss:.3f} does not beat a unigram model ({simple.unigram:.3f})."
        return Outcome("not learning", (reason, "Train longer, or on more text."))
    return replace(found, sentences=(_against_bigram(loss, simple), *found.sentences[1:]))


def judge_course(result: TrainResult, metrics: Path, *, uniform: float, epochs: float = math.inf) -> Outcome:
    """Compare the final held-out loss with that of a uniform guess (in nats) and with the earlier evaluations.

    `epochs` that were trained: before the end of the first, the model cannot have memorised the text.
    """
    evaluation = result.evaluation
    if evaluation is None:
        return Outcome("not measured", ("No held-out loss was measured, so there is no verdict.",))
    if evaluation.tokens < _FEW:
        return Outcome("not measured", (f"Only {evaluation.tokens} tokens are held out: too few for a verdict.",))
    loss = evaluation.loss
    lines = [line for line in read_log(metrics) if line["event"] == "evaluate" and line.get("heldout_loss") is not None]
    course = [line["heldout_loss"] for line in lines]
    if loss >= uniform:
        reason = f"Held-out loss {loss:.3f} is no better than a uniform guess ({uniform:.3f})."
        advice = "Lower the learning rates (--learning-rate, --muon-learning-rate) or train longer."
        return Outcome("diverged" if result.step > 100 else "not learning", (reason, advice))
    against = f"Held-out loss {loss:.3f} nats per token; a uniform guess has {uniform:.3f}."
    if course and course[-1] > _OVERFIT * min(course):
        lowest = lines[course.index(min(course))]["step"]  # not always the step that is kept, which BLEU may select
        best, last = f"{min(course):.3f}", f"{course[-1]:.3f}"
        grown = f"The held-out loss was best at step {lowest:,} ({best}) and has grown since ({last})"
        if epochs < 1:
            noisy = f"{grown}. This is the noise of a run of less than one epoch: train longer."
            return Outcome("learning", (against, noisy))
        overfits = f"{grown}: the model began to memorise the training text. The best weights are kept."
        advice = "In a new run, use more text, a smaller model or more --dropout."
        return Outcome("overfitting", (against, overfits, advice))
    return Outcome("learning", (against, *_still_falling(course)))


def measure_copying(outcome: Outcome, tokenizer: Tokenizer, corpus: TokenCorpus) -> Outcome:
    """Add how much of the generated texts is in the training text word for word."""
    return replace(outcome, copying=copy_report(outcome.texts, _training_text(tokenizer, corpus)))


def _training_text(tokenizer: Tokenizer, corpus: TokenCorpus, piece: int = _PIECE) -> Iterator[str]:
    """The training text in pieces: the whole takes a gigabyte while its tokens are decoded."""
    stream, end = tokenizer.stream(), min(len(corpus.train), _COMPARED)
    for start in range(0, end, piece):
        yield "".join(map(stream.push, corpus.train.read(start, min(end, start + piece)).tolist()))
    yield stream.finish()


def _against_bigram(loss: float, simple: Baselines) -> str:
    if simple.bigram is None:
        return f"Held-out loss {loss:.3f} nats per token; a uniform guess has {simple.uniform:.3f}."
    if loss < simple.bigram:
        return f"Held-out loss {loss:.3f} nats per token beats a bigram model of the same text ({simple.bigram:.3f})."
    return (
        f"Held-out loss {loss:.3f} beats a unigram model ({simple.unigram:.3f}), not yet a bigram one "
        f"({simple.bigram:.3f}): train longer."
    )


def _still_falling(course: Sequence[float]) -> tuple[str, ...]:
    if len(course) >= 4 and course[-1] == min(course):
        return ("The held-out loss was still falling at the end: more time would help.",)
    return ()
