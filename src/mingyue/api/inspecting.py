"""Inspection of a model: what it attends to, what each layer would predict, and what an intervention changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.api.caller import speaks_python
from mingyue.api.inspected import InspectedModel, open_model
from mingyue.api.model import Model
from mingyue.api.translator import Translator
from mingyue.errors import SettingsError
from mingyue.inspection import Captured, capture
from mingyue.inspection.capture import checked
from mingyue.inspection.taps import check_taps
from mingyue.nn import Taps
from mingyue.words import Language, TextTable, tr

if TYPE_CHECKING:  # view modules are imported when a view is made, so that training and generation start faster
    from mingyue.inspection.attended import AttendedView
    from mingyue.inspection.attention import AttentionView
    from mingyue.inspection.command import Command, Progress
    from mingyue.inspection.contexts import ContextsView
    from mingyue.inspection.curve import CurveView
    from mingyue.inspection.film import FilmView
    from mingyue.inspection.head import HeadView
    from mingyue.inspection.heads import HeadsView
    from mingyue.inspection.interventions import PatchingView
    from mingyue.inspection.lens import LensView
    from mingyue.inspection.lines import LinesView
    from mingyue.inspection.logits import LogitsView
    from mingyue.inspection.neighbours import NeighboursView
    from mingyue.inspection.relations import RelationsView
    from mingyue.inspection.surprise import SurpriseView
    from mingyue.inspection.trace import TraceView
    from mingyue.inspection.vectors import VectorsView
    from mingyue.inspection.view import View
    from mingyue.nn.taps import Edit


@speaks_python()
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
    """Inspect the forward pass of a model over a text.

    `model` is a model folder, a run folder, or a loaded model; with `step` the model of a run after that many training
    steps. For an encoder-decoder model `text` is the source text, and `target` the translation to inspect (default:
    the model's own, beam 4). `source` means the same as `text`; with both, `text` is the target.

    Raises `SettingsError` for arguments that contradict each other or the architecture, and as `load` does. A text that
    cannot be read is reported by the view that reads it.
    """
    for name, value in (("text", text), ("source", source), ("target", target)):
        if not isinstance(value, str | None):
            raise SettingsError(
                tr("{name} must be a string, not {value!r} ({kind})", name, value, type(value).__name__),
                advice=tr("Give one string; several texts go to `vectors` and `heads`."),
            )
    opened, folder = open_model(model, step=step, device=device, threads=threads)
    if isinstance(opened, Model):
        if source is not None or target is not None:
            raise SettingsError(
                tr("a decoder-only model takes no source and no target"),
                advice=tr("Give the text alone (--text on the command line)."),
            )
    else:
        if source is None:
            source, text = text, None
        if text is not None and target is not None:
            raise SettingsError(tr("three texts are given for one pair"), advice=tr("Give a source and a target."))
        text = target if text is None else text
    return Inspection(opened, text, source, folder=folder, step=step)


def curve(*runs: str | Path) -> CurveView:
    """Losses, learning rates and speed of one or more runs, by steps, time and tokens, from their metrics.jsonl.

    No model is loaded, so a run may be in progress. Raises `SettingsError` for a folder without the log of a run.
    """
    from mingyue.inspection.curve import curve_view

    return curve_view(runs)


class Inspection(InspectedModel):
    """A model and the text that it reads. `mingyue.inspect` makes it.

    Each method returns a view: named arrays, with `charts`, `tables`, `to_dict`, and `save` to .html, .png, .svg or
    .json. Layers, heads and positions are counted from 0. Notebooks display a view as HTML.
    """

    def view(self, name: str, **options: Any) -> Any:  # noqa: ANN401  (each view has its own class)
        """The view of that name, with its options; the methods below are the same with their types.

        Raises `SettingsError` for a name that is not a view.
        """
        command = view_command(name)
        if command.make is None:
            raise SettingsError(tr("{name} is a page of many views", name), advice=tr("Use the method `{name}`.", name))
        with self.model.runtime.applied():
            return command.view(self, options)

    def attention(self, layer: int | None = None, head: int | None = None) -> AttentionView:
        """The attention weights of all layers and heads, of one layer, or of one head."""
        return self.view("attention", layer=layer, head=head)

    def lens(self, top: int | None = None) -> LensView:
        """What each layer would predict next at each position, and the probability of the actual next token.

        `top` predictions per position are kept (default: 5); the printed table shows the first, with `top` up to 3.
        """
        return self.view("lens", top=top)

    def surprise(self, top: int = 5) -> SurpriseView:
        """−log P of each token, and the `top` most likely tokens there. A text may be longer than the context."""
        return self.view("surprise", top=top)

    def trace(self) -> TraceView:
        """Every step from ids to loss: shapes, parameters, FLOPs, formula, file and line."""
        return self.view("trace")

    def heads(self, texts: Sequence[str] = (), *, seed: int = 0, progress: Progress | None = None) -> HeadsView:
        """The attention pattern of each head, with the score of its label, and the loss without the head.

        The loss is measured on the text of this inspection and on `texts` (for an encoder-decoder model sources, with
        the model's own translations), if there are any; else on held-out texts of the run, where they are at hand.
        """
        return self.view("heads", texts=texts, seed=seed, progress=progress)

    def relations(self, *, seed: int = 0) -> RelationsView:
        """The head that follows each relation most (punctuation, lines, rhyme), chosen on half of the text."""
        return self.view("relations", seed=seed)

    def vectors(self, word: str, texts: Sequence[str], *, seed: int = 0) -> VectorsView:
        """The vectors of one word in several texts, layer by layer."""
        return self.view("vectors", word=word, texts=texts, seed=seed)

    def neighbours(self, word: str, top: int = 10) -> NeighboursView:
        """The `top` tokens whose embeddings are nearest, in the input and the output table."""
        return self.view("neighbours", word=word, top=top)

    def logits(
        self, token: str | int | None = None, instead: str | int | None = None, position: int | None = None
    ) -> LogitsView:
        """The logit of `token` at `position`, credited to every part of the model; with `instead` the difference.

        Defaults: the most likely next token, the last position. `instead` is the token whose logit is subtracted.
        """
        return self.view("logits", token=token, instead=instead, position=position)

    def head(self, layer: int = 0, head: int = 0, *, part: str | None = None, position: int | None = None) -> HeadView:
        """One head step by step: q·k, the division by √d_k, mask, softmax, the product with V.

        `part` of an encoder-decoder model: "encoder", "decoder" or "cross" (default). `position` (default: the last)
        is the query whose row is printed in detail.
        """
        return self.view("head", layer=layer, head=head, part=part, position=position)

    def lines(self, layer: int | None = None, head: int | None = None, *, part: str | None = None) -> LinesView:
        """Attention as lines from token to token: of all layers and heads, one layer, or one head.

        `part` of an encoder-decoder model: "encoder", "decoder" or "cross" (default: all three).
        """
        return self.view("lines", layer=layer, head=head, part=part)

    def attended(
        self,
        position: int | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
        part: str | None = None,
    ) -> AttendedView:
        """The text coloured by what `position` (default: the last) attends to, and by what attends to it.

        The weights are means over all layers and heads, or those of a `layer`, a `head`, or one head of one layer.
        """
        return self.view("attended", position=position, layer=layer, head=head, part=part)

    def contexts(
        self,
        position: int | None = None,
        *,
        layer: int | None = None,
        top: int = 10,
        tokens: int = 20_000,
        corpus: str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> ContextsView:
        """The positions of the training text whose vectors are most similar to the one at `position` (the last).

        The vector is that after a `layer` (default: the last); `tokens` of the run's training text, or of the file
        `corpus`, are read. For an encoder-decoder model, positions of the source text and vectors of the encoder.
        """
        return self.view(
            "contexts",
            position=position,
            layer=layer,
            top=top,
            tokens=tokens,
            corpus=corpus,
            seed=seed,
            progress=progress,
        )

    def patch(
        self,
        other: str,
        *,
        answer: str | int | None = None,
        instead: str | int | None = None,
        tap: Sequence[str] | None = None,
        position: int | None = None,
    ) -> PatchingView:
        """Activation patching with defaults, as on the command line: `other` is the corrupted text.

        By default the most likely tokens after the two texts are compared, at the position where they differ; `tap`
        are taps or patterns. `patching` is the same without defaults.
        """
        return self.view("patch", other=other, answer=answer, instead=instead, tap=tap, position=position)

    def curve(self, *others: str | Path) -> CurveView:
        """The training curves of the run, in one picture with those of `others`; see `mingyue.curve`.

        Raises `SettingsError` for a model that was not loaded from the folder of a run.
        """
        if self.folder is None:
            raise SettingsError(tr("training curves are those of a run"), advice=tr("Give the folder of the run."))
        return curve(self.folder, *others)

    def film(self) -> FilmView:
        """The text at every watched step of the run, and at every kept checkpoint; default: the watched text.

        `mingyue train … --watch TEXT` keeps more steps than there are checkpoints. Raises `SettingsError` for a
        model that was not loaded from the folder of a run.
        """
        from mingyue.api.film import film_of

        if self.folder is None:
            raise SettingsError(tr("a film shows a run step by step"), advice=tr("Give the folder of the run."))
        text = self._source if isinstance(self.model, Translator) else self._text
        return film_of(self.folder, text, device=self.subject.device.type)

    def report(
        self,
        path: str | Path,
        *,
        language: Language = "en",
        word: str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> list[str]:
        """Write the main views of the text into one page, in English and Chinese, `language` first.

        `word` is the word of the sections on vectors and nearest tokens (default: words of the text). Returns notes for
        the user: which sections have no result, and why. Raises `SettingsError` for a name that does not end in .html,
        a missing folder, and an unknown language.
        """
        from mingyue.inspection.report import write_report

        return write_report(
            path, self, language=language, word=word, seed=seed, remarks=self.remarks, progress=progress
        )

    def save(self, view: View, path: str | Path, language: Language = "en") -> list[str]:
        """Write a view: .html, .png, .svg or .json. Returns notes for the user (a missing font).

        Unlike `View.save`, a page also shows what is noted about this inspection.
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
        """logits_TV of the next token at each position, with `edits` (by tap name, see `mingyue.nn.taps`).

        Without edits these are the numbers of `Model.logits`. Raises `SettingsError` for a tap that the model does not
        have, and for an edit that does not return a tensor of the same shape, dtype and device.
        """
        check_taps(self.subject, edits or ())
        with self.model.runtime.applied(), torch.inference_mode():
            return self.subject.logits(self.reading, Taps((), checked(edits)) if edits else None)

    def capture(self, places: Iterable[str], edits: Mapping[str, Edit] | None = None) -> Captured:
        """One forward pass with the values at `places` kept: taps or patterns, such as `blocks.*.attention.weights`."""
        places = [places] if isinstance(places, str) else list(places)
        check_taps(self.subject, [*places, *(edits or ())])
        with self.model.runtime.applied():
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
        """Activation patching: which vectors of this text, put into a corrupted one, restore the answer.

        The corrupted text (for an encoder-decoder model the source, before the same target) has as many tokens;
        `answer` and `instead` are one token each. See `mingyue.inspection.interventions.patching`.
        """
        from mingyue.inspection.patching import patching

        clean = self.reading
        source = None if clean.source is None else corrupted
        other = self.subject.read(corrupted if source is None else clean.text, source)
        with self.model.runtime.applied():
            return patching(self.subject, clean, other, answer=answer, instead=instead, places=places, at=at)


def view_command(name: str) -> Command:
    """The `COMMAND` of the view of that name, from `mingyue.inspection.<name>`.

    Raises `SettingsError` for a name that is not a view.
    """
    module = f"mingyue.inspection.{name}"
    known = name.isidentifier() and find_spec(module) is not None
    command = getattr(import_module(module), "COMMAND", None) if known else None
    if command is None:
        raise SettingsError(tr("there is no view {name!r}", name), advice=tr("`mingyue inspect` lists the views."))
    return command
