"""A model and the text that it reads, as views take them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mingyue.api.loading import load_either
from mingyue.api.model import Model
from mingyue.api.translator import Translator
from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import Reading, Subject
from mingyue.inspection.run_texts import RunTexts
from mingyue.paths import path_of
from mingyue.reprs import facts_html, shortened
from mingyue.training import RunFolder
from mingyue.words import Words, stored, tr

if TYPE_CHECKING:
    from mingyue.generation import Translation
    from mingyue.inspection.command import Text, TrainingSample

OWN_BEAM = 4
"""Beam width of the model's own translation, which is inspected where no target is given."""


class InspectedModel:
    """A model, where it came from, and the text that it reads, if there is one."""

    def __init__(
        self,
        model: Model | Translator,
        text: str | None,
        source: str | None = None,
        *,
        folder: Path | None = None,
        step: int | None = None,
    ) -> None:
        self.model = model
        """The model."""
        self.folder = folder
        """Where it was loaded from; None for a model that was loaded before."""
        self.step = step
        """The requested training step."""
        self.remarks: list[Words] = _step_shown(model, step, from_folder=folder is not None)
        self.remarks += [stored(note) for note in model.loading_notes if folder is not None]
        """Notes for the reader in both languages, such as that the target is the model's own translation."""
        self._text, self._source = text, source

    def __repr__(self) -> str:
        text = self._text if self._source is None else self._source
        reading = "" if text is None or not self._has_text else tr(" reading {shortened}", shortened(text))
        return f"<mingyue.Inspection of {self.model!r}{reading}>"

    def _repr_html_(self) -> str:
        """For notebooks: the model, the text, and how to look at them."""
        text = self._text if self._source is None else self._source
        facts: dict[str, object] = {"model": repr(self.model)}
        if self._has_text and text is not None:
            facts["text"] = shortened(text)
        facts["views"] = ".attention()  .lens()  .surprise()  .heads()  .trace()  .curve()  .report(…)"
        return facts_html("mingyue.Inspection", facts)

    @cached_property
    def subject(self) -> Subject:
        """The module with its tokenizers, as `mingyue.inspection` takes it."""
        return subject_of(self.model)

    @cached_property
    def reading(self) -> Reading:
        """The text as the model reads it: its ids, and its tokens as printable text.

        Raises `GenerationError` for no text, an empty one, and one longer than the context.
        """
        return self._read()

    def read_any_length(self) -> Reading:
        """The same for a text that may be longer than the context; an encoder-decoder model reads none that is."""
        return self.reading if isinstance(self.model, Translator) else self._read(any_length=True)

    def probes(self, texts: Sequence[str]) -> list[Text]:
        """The text of this inspection, if there is one, then `texts`.

        For an encoder-decoder model `texts` are sources, each paired with the model's own translation.
        """
        own: list[Text] = [self.reading] if self._has_text else []
        if not isinstance(self.model, Translator):
            return [*own, *texts]
        return [*own, *((text, best[0].text) for text, best in zip(texts, self._translate(texts), strict=True))]

    def training_sample(self, tokens: int, seed: int, corpus: str | None = None) -> TrainingSample:
        """About `tokens` tokens of the training text of the run, or of the file `corpus`, drawn with the seed.

        Raises `SettingsError` for a model that does not come from a run, if no file is given.
        """
        from mingyue.api.training_sample import training_sample

        return training_sample(self.subject, self.folder, corpus, tokens=tokens, seed=seed)

    @cached_property
    def run_texts(self) -> RunTexts | None:
        """The texts of the run that trained this model; None where the folder of the run is not at hand."""
        if self.folder is None:
            return None
        folder = self.folder.resolve()
        for run in (RunFolder(folder), RunFolder(folder.parent)):
            if folder in (run.path, run.model) and run.settings_path.is_file():
                return RunTexts.of(run.data, self.subject)
        return None

    def _read(self, *, any_length: bool = False) -> Reading:
        text = self._source if isinstance(self.model, Translator) else self._text
        if text is None:
            kind = tr("source text") if isinstance(self.model, Translator) else "text"
            raise GenerationError(tr("there is no text to inspect"), advice=tr("Give a {kind}.", kind))
        if isinstance(self.model, Translator):
            return self.subject.read(self._target(text), text)
        return self.subject.read(text, any_length=any_length)

    @property
    def _has_text(self) -> bool:
        return (self._source if isinstance(self.model, Translator) else self._text) is not None

    def _translate(self, texts: Sequence[str]) -> list[list[Translation]]:
        assert isinstance(self.model, Translator)
        return self.model.translate(texts, beam=OWN_BEAM) if texts else []

    def _target(self, source: str) -> str:
        """The target that was given, or the model's own translation, which is noted in `remarks`."""
        if self._text is not None:
            return self._text
        from mingyue.runs.watching import fitting

        best = self._translate([source])[0][0]
        text = fitting(self.subject, best.text)
        cut = Words("", "") if best.finished else tr(", cut off at the length limit")
        self.remarks.append(
            tr("The target is the model's own translation (beam {own_beam}{cut}): {text!r}.", OWN_BEAM, cut, text)
        )
        return text


def open_model(
    model: Model | Translator | str | Path, *, step: int | None, device: str | None, threads: int | None
) -> tuple[Model | Translator, Path | None]:
    """The loaded model, and the folder it was loaded from (None for a model that was loaded before).

    Raises `SettingsError` for something that is neither, and for options of loading with a loaded model.
    """
    if isinstance(model, Model | Translator):
        given = {"step": step, "device": device, "threads": threads}
        if unused := [name for name, value in given.items() if value is not None]:
            raise SettingsError(
                tr("{unused}: a loaded model does not take this", ", ".join(unused)),
                advice=tr("Give the folder of the model instead."),
            )
        return model, None
    if not isinstance(model, str | Path):
        raise SettingsError(
            tr("{kind} is neither a model nor a path to one", type(model).__name__),
            advice=tr("Give a folder, or what `mingyue.load` or `load_translator` returned."),
        )
    folder = path_of(model)
    return load_either(folder, device=device, threads=threads, step=step), folder


def subject_of(model: Model | Translator) -> Subject:
    """A loaded model with its tokenizers, as `mingyue.inspection` takes it."""
    if isinstance(model, Translator):
        return Subject(model.module, model.tokenizer, model.source_tokenizer, unseen=model.unseen)
    return Subject(model.module, model.tokenizer, starts_with_bos=model.starts_with_bos, unseen=model.unseen)


def _step_shown(model: Model | Translator, step: int | None, *, from_folder: bool) -> list[Words]:
    """Which training step is shown, where that is not the model that a run ended with."""
    shown = model.checkpoint
    if shown is None:
        return []
    if step is not None or not from_folder:  # it was chosen
        return [tr("The model as it was after {shown:,} steps.", shown)]
    return [tr("The run has not ended: this is its model after {shown:,} steps, the best so far.", shown)]
