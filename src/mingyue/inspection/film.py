"""The film of a run: attention and predictions on one text at many training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mingyue.charts import Chart, LineChart, TextMark, WordGrid
from mingyue.charts.attention_film import FRAMES_OF_A_PICTURE, AttentionFilm, FilmStep, StepMaps
from mingyue.charts.markup import visible
from mingyue.errors import SettingsError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.command import FILE, SOURCE, TEXT, Command, Inspected
from mingyue.inspection.frames import SIDE, Frame
from mingyue.inspection.labels import decimals, head_label, layer_label, percent
from mingyue.inspection.parts import PART_NAMES
from mingyue.inspection.taps import tap_label
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words, sentences, tr

MOST_BYTES = 6 << 20
"""Cells of all maps on a page; of a longer film evenly spaced frames are shown."""
_MOST_PRINTED = 40
_MOST_ROWS, _MOST_POSITIONS = 42, 32  # of the predictions in an image
_PREDICTIONS = tr("What each layer would predict next")
_ABOUT_TOKENS = tr("Rows: step and layer. Columns: the token just read.")
_ABOUT_TRANSLATIONS = tr(
    "Rows: step and layer. Columns: positions of the translation, which differs from step to step."
)
_ACTUAL = tr("actual next token")


@dataclass(frozen=True, eq=False)
class FilmView(View):
    """N frames in the order of steps."""

    title = tr("Training step by step")

    frames: tuple[Frame, ...]
    heldout_loss_N: tuple[float, ...]
    """Held-out loss of the run, in nats per token; NaN where none was measured at that step."""
    left_out: tuple[str, ...] = ()
    """Files of frames that could not be read."""

    @property
    def steps_N(self) -> tuple[int, ...]:  # noqa: N802  (the shape is in the name)
        """Steps taken at each frame."""
        return tuple(frame.step for frame in self.frames)

    @property
    def loss_N(self) -> tuple[float, ...]:  # noqa: N802
        """Mean −log P of the text itself at each frame, in nats per token; of a pair of the model's own translation."""
        return tuple(frame.loss for frame in self.frames)

    def charts(self, language: Language = "en") -> list[Chart]:
        """The film, then the losses by step."""
        return [self._film(language), *self._losses(language)]

    def pictures(self, language: Language = "en") -> list[Chart]:
        """An image has no slider: some frames, with the predictions of every layer, then the losses."""
        return [self._film(language), self._predictions(language), *self._losses(language)]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A line for each frame."""
        columns = [
            tr("step").of(language),
            tr("held-out loss").of(language),
            tr("loss of the text").of(language),
        ]
        of_pairs = self.frames[0].source is not None
        columns.append(tr("its translation").of(language) if of_pairs else tr("most likely next token").of(language))
        chosen = _spread(len(self.frames), _MOST_PRINTED)
        rows = []
        for number in chosen:
            frame = self.frames[number]
            likeliest = f"{frame.words_LTK[-1][-1][0]} {percent(float(frame.probabilities_LTK[-1, -1, 0]))}"
            losses = decimals(self.heldout_loss_N[number]), decimals(frame.loss)
            rows.append([f"{frame.step:,}", *losses, frame.text if of_pairs else likeliest])
        return [
            TextTable(self._title(language), columns, rows, right=columns[:3], note=self._note(language, len(chosen)))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Every frame: weights from 0 to 1 by part, the words of the lens, losses."""
        return {
            "text": self.frames[0].watched,
            "steps_N": list(self.steps_N),
            "heldout_loss_N": to_lists(np.array(self.heldout_loss_N)),
            "loss_N": to_lists(np.array(self.loss_N)),
            "frames": [
                {
                    "step": frame.step,
                    "text": frame.text,
                    "attention": [
                        {
                            "part": part.part,
                            "rows": list(part.rows),
                            "columns": list(part.columns),
                            "tokens": list(part.tokens),
                            "weights_LHTS": to_lists(part.bytes_LHTS / 255, digits=3),
                        }
                        for part in frame.parts
                    ],
                    "pieces_T": list(frame.pieces_T),
                    "position_T": list(range(frame.first_position, frame.first_position + len(frame.pieces_T))),
                    "places_L": list(frame.places_L),
                    "words_LTK": frame.words_LTK,
                    "probabilities_LTK": to_lists(frame.probabilities_LTK),
                }
                for frame in self.frames
            ],
        }

    def _title(self, language: Language) -> str:
        return tr("{title}: {watched}", self.title, visible(self.frames[0].watched)).of(language)

    def _film(self, language: Language) -> AttentionFilm:
        first = self.frames[0]
        size = max(sum(part.bytes_LHTS.size for part in frame.parts) for frame in self.frames)
        chosen = _spread(len(self.frames), max(2, MOST_BYTES // size))
        return AttentionFilm(
            title=self._title(language),
            steps=[self._scene(number, language) for number in chosen],
            part_titles=[PART_NAMES[part.part].of(language) for part in first.parts],
            row_titles=[[layer_label(n, language) for n in range(part.bytes_LHTS.shape[0])] for part in first.parts],
            column_titles=[[head_label(n, language) for n in range(part.bytes_LHTS.shape[1])] for part in first.parts],
            word_title=_PREDICTIONS.of(language),
            word_rows=[_ACTUAL.of(language), *(tap_label(tap, language) for tap in first.places_L)],
            averaged=tr("Each map is the mean over all heads of a layer.").of(language),
            language=language,
            note=self._note(language, len(chosen)),
        )

    def _scene(self, number: int, language: Language) -> FilmStep:
        frame, heldout = self.frames[number], self.heldout_loss_N[number]
        label = [tr("step {step:,}", frame.step).of(language)]
        if np.isfinite(heldout):
            label.append(tr("held-out loss {heldout:.3f}", heldout).of(language))
        if np.isfinite(frame.loss):
            label.append(tr("loss of this text {loss:.3f}", frame.loss).of(language))
        actual = [TextMark(piece) for piece in frame.truth_pieces_T]
        words = [actual, *(_words(frame, layer, language) for layer in range(len(frame.places_L)))]
        maps = [StepMaps(part.bytes_LHTS, part.rows, part.columns) for part in frame.parts]
        return FilmStep(" · ".join(label), maps, words, frame.pieces_T)

    def _predictions(self, language: Language) -> WordGrid:
        """The predictions of every layer at some steps, as a table: a row for each step and layer."""
        first = self.frames[0]
        of_pairs = first.source is not None
        chosen = _spread(len(self.frames), max(2, min(FRAMES_OF_A_PICTURE, _MOST_ROWS // len(first.places_L))))
        n_all = max(len(self.frames[number].pieces_T) for number in chosen)
        # Translations of an untrained model may never end: what counts is how they begin.
        start = 0 if of_pairs else max(0, n_all - _MOST_POSITIONS)
        kept = slice(start, start + _MOST_POSITIONS)
        labels, cells = list[str](), list[list[TextMark]]()
        if not of_pairs:
            labels.append(_ACTUAL.of(language))
            cells.append([TextMark(piece) for piece in first.truth_pieces_T][kept])
        for number in chosen:
            frame = self.frames[number]
            for layer, tap in enumerate(frame.places_L):
                words_T = _words(frame, layer, language)
                labels.append(f"{frame.step:,} · {tap_label(tap, language)}")
                cells.append([*words_T, *[TextMark("")] * (n_all - len(words_T))][kept])
        note = _ABOUT_TRANSLATIONS if of_pairs else _ABOUT_TOKENS
        more = Words("", "")
        if n_all > _MOST_POSITIONS:
            more = (
                tr(" The first {shown} of {n_all} positions.", _MOST_POSITIONS, n_all)
                if of_pairs
                else tr(" The last {shown} of {n_all} positions.", _MOST_POSITIONS, n_all)
            )
        return WordGrid(
            _PREDICTIONS.of(language),
            cells,
            row_labels=labels,
            column_labels=(list(map(str, range(n_all))) if of_pairs else list(first.pieces_T))[kept],
            low=0.0,
            high=1.0,
            legend=tr("probability of that token").of(language),
            note=note.of(language) + more.of(language),
        )

    def _losses(self, language: Language) -> list[Chart]:
        text, heldout = tr("this text"), tr("held-out text")
        rows = [
            {"step": step, "loss": value, "of": name.of(language)}
            for name, values in ((text, self.loss_N), (heldout, self.heldout_loss_N))
            for step, value in zip(self.steps_N, values, strict=True)
            if np.isfinite(value)
        ]
        if len({row["step"] for row in rows}) < 2:
            return []
        title = tr("Loss by step").of(language)
        x, y = tr("step").of(language), tr("nats per token").of(language)
        return [LineChart(title, rows, x="step", y="loss", series="of", x_title=x, y_title=y)]

    def _note(self, language: Language, n_shown: int) -> str:
        notes = []
        if n_shown < len(self.frames):
            notes.append(tr("{n_shown} of {n_frames} frames.", n_shown, len(self.frames)))
        if any(max(part.tokens) > SIDE for frame in self.frames for part in frame.parts):
            notes.append(
                tr("Maps have at most {side} × {side} blocks of tokens: mean over queries, sum over keys.", SIDE)
            )
        if self.frames[0].source is not None:
            notes.append(tr("The target is the model's own greedy translation at each step."))
        if self.left_out:
            names = ", ".join(self.left_out)
            notes.append(tr("Could not be read: {names}.", names))
        return sentences(notes, language)


def film_view(
    frames: Sequence[Frame], *, heldout_loss: Mapping[int, float] | None = None, left_out: Sequence[str] = ()
) -> FilmView:
    """A film of frames of one text; `heldout_loss` is the run's, by step.

    Raises `SettingsError` if there is no frame, and for frames of different texts or models.
    """
    if not frames:
        raise SettingsError(tr("there is no frame to show"))
    frames = sorted(frames, key=lambda frame: frame.step)
    if len({frame.watched for frame in frames}) > 1:
        raise SettingsError(tr("the frames are of different texts"))
    if len({(frame.places_L, *(part.bytes_LHTS.shape[:2] for part in frame.parts)) for frame in frames}) > 1:
        raise SettingsError(tr("the frames are of different models: their layers or heads differ"))
    losses = tuple((heldout_loss or {}).get(frame.step, float("nan")) for frame in frames)
    return FilmView(tuple(frames), losses, tuple(left_out))


def _words(frame: Frame, layer: int, language: Language) -> list[TextMark]:
    """The most likely token at each position."""
    found = zip(frame.words_LTK[layer], frame.probabilities_LTK[layer].tolist(), strict=True)
    return [_word(frame.read_at(number), language, *top) for number, top in enumerate(found)]


def _word(read: str, language: Language, words_K: Sequence[str], values_K: Sequence[float]) -> TextMark:
    """The most likely token; the others on hover, after the token that was read."""
    lines = [tr("after {read}", read).of(language)]
    lines += [f"{word}  {percent(value)}" for word, value in zip(words_K, values_K, strict=True)]
    return TextMark(words_K[0], values_K[0], lines)


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)})


def _film_of_run(inspected: Inspected) -> View:
    return inspected.film()


COMMAND = Command(_film_of_run, options=(TEXT, FILE, SOURCE), texts="optional")
