"""Demonstrations without user data: a small model is trained in minutes and then tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mingyue.api.loading import load_translator
from mingyue.api.run import train
from mingyue.config import TrainSettings, with_effective_defaults
from mingyue.data.demo_pairs import demo_pairs
from mingyue.errors import DataError
from mingyue.files import explain_os_error, write_text_atomically
from mingyue.paths import path_of
from mingyue.runs import RunResult
from mingyue.training import Clock, Observer
from mingyue.words import tr

TRANSLATE_MINUTES = 2.75
TEXT_MINUTES = 1.4
_PAIRS, _VALID, _TEST = 60_000, 1_000, 1_000
_TEXT = "python-docs"

# A character tokenizer, a small model and small batches: 99 % exact within three minutes on two cores.
_SMALL: dict[str, object] = {
    "tokenizer": "char",
    "d_model": 128,
    "n_layers": 2,
    "n_heads": 4,
    "positions": "rotary",
    "qk_norm": True,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "batch_tokens": 512,
    "context": 128,
    "bleu_lines": 0,
    "evaluate_every": 400,  # fewer evaluations: more steps
}


@dataclass(frozen=True, repr=False)
class TranslateDemo:
    """The result of the translation demonstration."""

    run: RunResult
    """The run."""
    test: tuple[tuple[str, str, str], ...]
    """(source, target, translation by the model) of unseen items."""

    def __repr__(self) -> str:
        return f"<mingyue.TranslateDemo: exact {self.exact:,} of {len(self.test):,}, {self.run!r}>"

    @property
    def exact(self) -> int:
        """Number of exact translations."""
        return sum(target == translation for _, target, translation in self.test)

    @property
    def wrong(self) -> list[tuple[str, str, str]]:
        """The items that are not translated exactly."""
        return [item for item in self.test if item[1] != item[2]]


def translate_demo(
    out: str | Path, settings: TrainSettings | None = None, *, observer: Observer | None = None, waited: float = 0.0
) -> TranslateDemo:
    """Train on generated pairs (dates and numbers in words → ISO dates and digits), then translate 1,000 unseen ones.

    The pairs are kept in `<out>-pairs`. Settings that are given in `settings` override those of the demonstration.
    Raises as `train` does.
    """
    clock = Clock(waited)  # generating the pairs counts towards the budget in minutes
    settings = settings or TrainSettings()
    given = {name for group in settings.model_fields_set for name in getattr(settings, group).model_fields_set}
    seed = settings.run.seed
    pairs = demo_pairs(_PAIRS + _VALID + _TEST, seed=seed)
    test = pairs[-_TEST:]
    run = path_of(out)
    folder = run.with_name(f"{run.name}-pairs")
    parts = {"valid": pairs[_PAIRS:-_TEST], "train": pairs[:_PAIRS], "test": test}
    names = {name: _write(folder, name, part, replace=settings.run.overwrite) for name, part in parts.items()}
    values: dict[str, object] = {
        **_SMALL,
        "source": names["train"][0],
        "target": names["train"][1],
        "valid_source": names["valid"][0],
        "valid_target": names["valid"][1],
        "out": str(out),
        **({} if {"minutes", "steps", "epochs"} & given else {"minutes": TRANSLATE_MINUTES}),
    }
    settings = with_effective_defaults(settings, tr("the demo"), values)
    run = train(settings, observer=observer, waited=clock.seconds())
    if run.training.reason == "stopped":
        return TranslateDemo(run, ())
    translations = load_translator(run.folder, device=settings.run.device).translate([source for source, _ in test])
    return TranslateDemo(
        run, tuple((source, target, best[0].text) for (source, target), best in zip(test, translations, strict=True))
    )


def text_demo(
    out: str | Path, settings: TrainSettings | None = None, *, observer: Observer | None = None, waited: float = 0.0
) -> RunResult:
    """Train a model on the documentation that is part of every Python. Raises as `train` does."""
    settings = settings or TrainSettings()
    given = {name for group in settings.model_fields_set for name in getattr(settings, group).model_fields_set}
    values: dict[str, object] = {"sources": [_TEXT], "out": str(out), "sample_prompt": "The "}
    if not {"minutes", "steps", "epochs"} & given:
        values["minutes"] = TEXT_MINUTES
    settings = with_effective_defaults(settings, tr("the demo"), values)
    return train(settings, observer=observer, waited=waited)


def _write(folder: Path, name: str, pairs: Sequence[tuple[str, str]], *, replace: bool) -> tuple[str, str]:
    """Write two files of lines; returns their names. Raises `DataError` for other files of these names."""
    paths = folder / f"{name}.words", folder / f"{name}.digits"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for side, path in enumerate(paths):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            if path.exists() and path.read_bytes() == text.encode("utf-8"):
                continue
            if path.exists() and not replace:
                raise DataError(
                    tr("{path} has other content than the pairs of this demonstration", path),
                    advice=tr("Choose another --out."),
                )
            write_text_atomically(path, text)
    except OSError as error:
        message, advice = explain_os_error(tr("the pairs"), folder, error)
        raise DataError(message, advice=advice) from None
    return str(paths[0]), str(paths[1])
