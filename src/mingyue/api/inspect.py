"""Looking inside a model: where it attends, what it would say at each layer, and what happens if one intervenes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.api.loading import load_either
from mingyue.api.model import Model
from mingyue.api.translator import Translator
from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import Captured, Reading, Subject, capture
from mingyue.inspection.capture import checked
from mingyue.inspection.parts import check_places
from mingyue.nn import Taps
from mingyue.words import Language, TextTable, Words, check_language

if TYPE_CHECKING:  # views are imported where they are made: whoever trains or writes does not wait for them
    from mingyue.generation import Translation
    from mingyue.generation.translating import Progress
    from mingyue.inspection.attention import AttentionView
    from mingyue.inspection.film import FilmView
    from mingyue.inspection.heads import HeadsView
    from mingyue.inspection.interventions import PatchingView
    from mingyue.inspection.lens import LensView
    from mingyue.inspection.neighbours import NeighboursView
    from mingyue.inspection.surprise import SurpriseView
    from mingyue.inspection.trace import TraceView
    from mingyue.inspection.vectors import VectorsView
    from mingyue.inspection.view import View
    from mingyue.nn.taps import Edit

OWN_BEAM = 4
"""Beam of the translation that is looked at where none is given."""


def inspect(
    model: Model | Translator | str | Path,
    text: str | None = None,
    *,
    source: str | None = None,
    target: str | None = None,
    step: int | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> Inspection:
    """Look inside a model while it reads a text.

    `model` is a model folder, a run folder, or a model that is loaded; with `step` the model of a run as it was after
    so many steps. For a model of pairs `text` is the source text, and `target` the translation that is looked at; none
    = the model's own (beam 4). `source` says the same as `text`; with both, `text` is the target.

    Raises `SettingsError` for arguments that contradict each other or this kind of model, and as `load` does. That a
    text cannot be read is said by the view that reads it.
    """
    for name, value in (("text", text), ("source", source), ("target", target)):
        if not isinstance(value, str | None):
            raise SettingsError(
                f"{name} is to be a text, and {value!r} is {type(value).__name__}",
                advice="Give one string; several texts go to `vectors` and `heads`.",
            )
    if isinstance(model, str | Path):
        folder = Path(model)
        opened = load_either(folder, device=device, threads=threads, step=step)
    elif not isinstance(model, Model | Translator):
        raise SettingsError(
            f"{type(model).__name__} is no model, and no path to one",
            advice="Give a folder, or what `mingyue.load` or `load_translator` returned.",
        )
    else:
        folder, opened = None, model
        given = {"step": step, "device": device, "threads": threads}
        if unused := [name for name, one in given.items() if one is not None]:
            raise SettingsError(
                f"{', '.join(unused)}: this is for a model that is to be loaded, and this one is",
                advice="Give its folder instead.",
            )
    if isinstance(opened, Model):
        if source is not None or target is not None:
            raise SettingsError(
                "this is a model of one text: it has no source and no target",
                advice="Give the text alone (--text on the command line).",
            )
    else:
        if source is None:
            source, text = text, None
        if text is not None and target is not None:
            raise SettingsError("three texts are given for one pair", advice="Give a source and a target.")
        text = target if text is None else text
    return Inspection(opened, text, source, folder=folder, step=step)


class Inspection:
    """A model and a text, ready to be looked at. `mingyue.inspect` makes it.

    Each method returns a view: named arrays, with `charts`, `tables`, `to_dict`, and `save` to .html, .png, .svg or
    .json. Layers, heads and places are counted from 0. In a notebook a view shows itself.
    """

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
        """Where it was loaded from; None = it was given."""
        self.step = step
        """The step of the run that was asked for."""
        self.remarks: list[Words] = _of_step(model, step, of_run=folder is not None)
        """Sentences that a reader should know, in both languages: that the target is the model's own translation."""
        self._text, self._source = text, source

    def __repr__(self) -> str:
        text = f" reading {self._text if self._source is None else self._source!r}" if self._has_text else ""
        return f"<mingyue.Inspection of {self.model!r}{text}>"

    @cached_property
    def subject(self) -> Subject:
        """The module with its tokenizers, as `mingyue.inspection` takes it."""
        model = self.model
        if isinstance(model, Translator):
            return Subject(model.module, model.tokenizer, model.source_tokenizer)
        return Subject(model.module, model.tokenizer, starts_with_bos=model.starts_with_bos)

    @cached_property
    def reading(self) -> Reading:
        """The text as the model reads it: its ids, and its tokens for people.

        Raises `GenerationError` for no text, an empty one, and one longer than the context.
        """
        return self._read()

    # --- views -----------------------------------------------------------------------------------------------------

    def attention(self, layer: int | None = None, head: int | None = None) -> AttentionView:
        """Who looks at whom: the weights of all layers and heads, of one layer, or of one head."""
        from mingyue.inspection.attention import attention_view

        return attention_view(self.subject, self.reading, layer=layer, head=head)

    def lens(self, top: int | None = None) -> LensView:
        """What each layer would say next at each place, and how likely it finds what does come.

        `top` words a place are kept (none = 5); the printed table shows the first, with `top` up to 3.
        """
        from mingyue.inspection.lens import lens_view

        return lens_view(self.subject, self.reading, top=top)

    def surprise(self, top: int = 5) -> SurpriseView:
        """−log P of each token, and what the model would rather have read. A text may be longer than the context."""
        from mingyue.inspection.surprise import surprise_view

        of_pairs = isinstance(self.model, Translator)
        return surprise_view(self.subject, self.reading if of_pairs else self._read(any_length=True), top=top)

    def trace(self) -> TraceView:
        """Every step from ids to loss: shapes, parameters, FLOPs, formula, file and line."""
        from mingyue.inspection.trace import trace_view

        return trace_view(self.subject, self.reading)

    def heads(self, texts: Sequence[str] = (), *, seed: int = 0, progress: Progress | None = None) -> HeadsView:
        """What each head does, with the score that earned its label, and the loss without it.

        The loss is measured on the text of this inspection and on `texts` (of a model of pairs sources, with the
        model's own translations), where there are any.
        """
        from mingyue.inspection.heads import heads_view

        probes: list[Reading | str | tuple[str, str]] = [self.reading] if self._has_text else []
        if isinstance(self.model, Translator):
            probes += [(text, best[0].text) for text, best in zip(texts, self._translate(texts), strict=True)]
        else:
            probes += texts
        return heads_view(self.subject, probes=probes or None, seed=seed, progress=progress)

    def vectors(self, word: str, texts: Sequence[str], *, seed: int = 0) -> VectorsView:
        """The vectors of one word in several texts, layer by layer."""
        from mingyue.inspection.vectors import vectors_view

        return vectors_view(self.subject, word, texts, seed=seed)

    def film(self) -> FilmView:
        """The text at every step of the run that was watched, or whose checkpoint is kept; none = the watched text.

        `mingyue train … --watch TEXT` keeps more steps than the checkpoints that stay. Raises `SettingsError` for a
        model that was not loaded from the folder of a run.
        """
        from mingyue.api.film import film_of

        if self.folder is None:
            raise SettingsError("a film shows a run step by step", advice="Give the folder of the run.")
        text = self._source if isinstance(self.model, Translator) else self._text
        return film_of(self.folder, text, device=self.subject.device.type)

    def neighbours(self, word: str, top: int = 10) -> NeighboursView:
        """The words whose embeddings are nearest, in the input and the output table."""
        from mingyue.inspection.neighbours import neighbours_view

        return neighbours_view(self.subject, word, count=top)

    def report(
        self,
        path: str | Path,
        *,
        language: Language = "en",
        word: str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> list[str]:
        """Write the views of the text (all but the film) into one page, in English and Chinese, `language` first.

        `word` is what the sections on words are about; none = words of the text. Returns what the user should know:
        which sections have nothing to show, and why. Raises `SettingsError` for a name that does not end in .html, a
        folder that is not there, and a language that is neither.
        """
        from mingyue.charts import check_output_path, write_page
        from mingyue.inspection.report import LANGUAGES, TITLE, report

        check_output_path(path, (".html",))
        check_language(language)
        reading, told = self.reading, list[Words]()
        sections = report(
            self.subject, reading, word=word, seed=seed, remarks=self.remarks, progress=progress, tell=told.append
        )
        others = tuple(one for one in LANGUAGES if one != language)
        write_page(path, title=TITLE, sections=sections, languages=(language, *others))
        return [one.of(language) for one in told]

    def save(self, view: View, path: str | Path, language: Language = "en") -> list[str]:
        """Write a view: .html, .png, .svg or .json. Returns what the user should know (a missing font).

        Of `View.save` it differs in that a page has the remarks of this inspection on it.
        """
        from mingyue.charts import write_charts
        from mingyue.inspection.film import FilmView

        if Path(path).suffix.lower() != ".html" or not self.remarks or isinstance(view, FilmView):
            return view.save(path, language)
        remarks = TextTable("", (), [(remark.of(language),) for remark in self.remarks])
        tables = [remarks, *view.tables(language)]
        return write_charts(
            path, view.charts(language), title=view.title.of(language), tables=tables, language=language
        )

    # --- numbers, and interventions --------------------------------------------------------------------------------

    def run(self, edits: Mapping[str, Edit] | None = None) -> Tensor:
        """logits_TV of the next token at each place, with `edits` made on the way (names as in `mingyue.nn.taps`).

        Without edits these are the numbers of `Model.logits`. Raises `SettingsError` for a place that is not there, and
        for an edit that returns no tensor like the one that it got.
        """
        check_places(self.subject, edits or ())
        with torch.inference_mode():
            return self.subject.logits(self.reading, Taps((), checked(edits)) if edits else None)

    def capture(self, places: Iterable[str], edits: Mapping[str, Edit] | None = None) -> Captured:
        """One pass with the values at `places` kept: names or patterns, such as `blocks.*.attention.weights`."""
        places = [places] if isinstance(places, str) else list(places)
        check_places(self.subject, [*places, *(edits or ())])
        return capture(self.subject, self.reading, places, edits)

    def patching(
        self,
        corrupted: str,
        *,
        answer: str | int,
        instead: str | int,
        places: str | Sequence[str] | None = None,
        at: int = -1,
    ) -> PatchingView:
        """Where the model holds what tells this text from a corrupted one: which vectors bring the answer back.

        The corrupted text (of a model of pairs the source, before the same target) has as many tokens; `answer` and
        `instead` are one token each. `mingyue.inspection.interventions.patching` says more.
        """
        from mingyue.inspection.interventions import patching

        clean = self.reading
        source = None if clean.source is None else corrupted
        other = self.subject.read(corrupted if source is None else clean.text, source)
        return patching(self.subject, clean, other, answer=answer, instead=instead, places=places, at=at)

    def _read(self, *, any_length: bool = False) -> Reading:
        if isinstance(self.model, Translator):
            if self._source is None:
                raise GenerationError("there is no text to look at", advice="Give a source text.")
            return self.subject.read(self._target(self._source), self._source)
        if self._text is None:
            raise GenerationError("there is no text to look at", advice="Give a text.")
        return self.subject.read(self._text, any_length=any_length)

    @property
    def _has_text(self) -> bool:
        return (self._source if isinstance(self.model, Translator) else self._text) is not None

    def _translate(self, texts: Sequence[str]) -> list[list[Translation]]:
        assert isinstance(self.model, Translator)
        return self.model.translate(texts, beam=OWN_BEAM) if texts else []

    def _target(self, source: str) -> str:
        if self._text is not None:
            return self._text
        best = self._translate([source])[0][0]
        text, room = best.text, self.model.config.context - 1
        while len(self.model.tokenizer.encode(text)) > room:  # one that never ended may fill the context to its end
            text = text[:-1]
        cut = Words("", "") if best.finished else Words(", cut off at its limit of length", "，到长度上限被截断")
        self.remarks.append(
            Words(
                f"The target is the model's own translation (beam {OWN_BEAM}{cut.en}): {text!r}.",
                f"译文是模型自己的翻译（束宽 {OWN_BEAM}{cut.zh}）：{text!r}。",
            )
        )
        return text


def _of_step(model: Model | Translator, step: int | None, *, of_run: bool) -> list[Words]:
    """Which step is shown, where that is not the model that a run ended with."""
    shown = model.checkpoint
    if shown is None:
        return []
    if step is not None or not of_run:  # it was chosen
        return [Words(f"The model as it was after {shown:,} steps.", f"这是训练 {shown:,} 步之后的模型。")]
    return [
        Words(
            f"The run has not ended: this is its model after {shown:,} steps, the best so far.",
            f"训练还没有结束：这是它训练 {shown:,} 步之后的模型，是目前最好的。",
        )
    ]
