"""The interface of a view: each view module declares its `COMMAND`, with the options of the view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_origin

import numpy as np
from numpy.typing import NDArray

from mingyue.config import Count, Seed, checked
from mingyue.inspection.run_texts import RunTexts
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.words import Words

Progress = Callable[[int, int], None]
"""Receives the amount done and the total."""
Text = Reading | str | tuple[str, str]
"""A text already read, or to be read; for an encoder-decoder model (source, target)."""


@dataclass(frozen=True)
class TrainingSample:
    """Rows of token ids of the text that a model was trained on, each read by itself."""

    rows: Sequence[NDArray[np.int64]]
    total: int
    """Tokens of the text that the rows are drawn from."""
    name: Words
    """What the text is called."""


@dataclass(frozen=True)
class Option:
    """One option of a view: `--name` on the command line, the argument `name` in Python."""

    name: str
    type: Any
    """A number of `mingyue.config`, or str; list[str] for an option that may be repeated."""
    help: str
    default: str | int | None = None
    """The default as shown in the help; None = no default."""
    architecture: Literal["encoder-decoder"] | None = None
    """The only architecture that takes this option; None = both do."""


TEXT = Option(
    "text", list[str], "Text to read; `-` reads standard input. For an encoder-decoder model, the source text."
)
TEXTS = Option("text", list[str], "Text to read; may be repeated. `-` reads standard input.")
FILE = Option("file", list[str], "UTF-8 file to read the text from.")
SOURCE = Option("source", str, "Text to translate (same as --text).", architecture="encoder-decoder")
TARGET = Option("target", str, "Translation to inspect.", "the model's own, beam 4", architecture="encoder-decoder")
STEP = Option("step", Count, "Training step whose checkpoint is inspected.", "the final model, or the best so far")
PART = Option(
    "part",
    str,
    "Attention to show: encoder, decoder (its self-attention) or cross.",
    "cross",
    architecture="encoder-decoder",
)
SEED = Option("seed", Seed, "Random seed.", 0)
ONE_TEXT = (TEXT, FILE, SOURCE, TARGET, STEP)
"""The options of a view of one text, or one pair of texts."""
_READ = frozenset(option.name for option in ONE_TEXT)


class Inspected(Protocol):
    """The input of views: a model and the text that it reads (`mingyue.Inspection`)."""

    @property
    def subject(self) -> Subject:
        """The model with its tokenizers."""
        ...

    @property
    def reading(self) -> Reading:
        """The text as the model reads it. Raises `GenerationError` for a text longer than the context."""
        ...

    def read_any_length(self) -> Reading:
        """The same for a text that may be longer than the context, for views that read it in windows."""
        ...

    def probes(self, texts: Sequence[str]) -> Sequence[Text]:
        """The text of the inspection, if there is one, and further texts."""
        ...

    def training_sample(self, tokens: int, seed: int, corpus: str | None = None) -> TrainingSample:
        """About `tokens` tokens of the training text of the run, or of the file `corpus`.

        Raises `SettingsError` for a model that does not come from a run, if no file is given.
        """
        ...

    @property
    def run_texts(self) -> RunTexts | None:
        """The texts of the run that trained the model; None where they are not at hand."""
        ...

    def film(self) -> View:
        """The text at every recorded step of the run."""
        ...

    def curve(self, *others: str | Path) -> View:
        """The training curves of the run, and of other ones."""
        ...

    @property
    def folder(self) -> Path | None:
        """Where the model was loaded from; None for one that was loaded before."""
        ...


@dataclass(frozen=True)
class Command:
    """A view as the command line and `Inspection.view` make it."""

    make: Callable[..., View] | None
    """Makes the view, with the view's own options as keyword arguments; what comes before them depends on `texts`.
    None: a page of many views, which `mingyue.Inspection.report` writes."""
    options: tuple[Option, ...]
    texts: Literal["one", "compared", "optional", "any number", "runs"] = "one"
    """How many texts are read, and what `make` takes: one: (subject, reading); compared: (subject)
    and all texts as `texts`; optional: (inspected); any number: (inspected) and all texts but the first as `texts`;
    runs: the folders of runs, without a model."""
    any_length: bool = False
    """Whether a text may be longer than the context."""
    slow: bool = False
    """Whether `make` takes `progress`, a `Progress`."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the options that `make` takes: all but those that select the text."""
        return tuple(option.name for option in self.options if option.name not in _READ)

    def view(self, inspected: Inspected, options: Mapping[str, Any]) -> View:
        """The view of a model and its text, with the options by name. Raises `SettingsError` for a wrong number."""
        assert self.make is not None
        for option in self.options:
            if option.name in options and get_origin(option.type) is Annotated:
                checked(option.name, options[option.name], option.type | None)
        if self.texts == "runs":
            return inspected.curve()
        if self.texts == "compared":
            return self.make(inspected.subject, **options)
        if self.texts in ("optional", "any number"):
            return self.make(inspected, **options)
        reading = inspected.read_any_length() if self.any_length else inspected.reading
        return self.make(inspected.subject, reading, **options)
