"""One word in several texts: its vectors layer by layer, from the same embedding to different contexts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mingyue.charts import Chart, LineChart, MatrixChart, MatrixGrid, ScatterChart
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.command import FILE, SEED, STEP, TEXTS, Command, Option
from mingyue.inspection.labels import decimals, layer_ticks
from mingyue.inspection.subject import Subject
from mingyue.inspection.taps import tap_label
from mingyue.inspection.view import View
from mingyue.inspection.word_vectors import WordVectors, compare_word
from mingyue.words import Language, TextTable, Words, listed, sentences, tr

_WORD = tr("pairs of occurrences of the word")
_OTHERS = tr("random pairs of other tokens")
_MOST_PAIRS_LISTED = 6
_SAME = 1e-5  # vectors closer than this, relative to the largest distance, are equal but for rounding
_LEAST_SHARE = 0.01  # of the variance on the second direction of a PCA that is drawn


@dataclass(frozen=True, eq=False)
class VectorsView(WordVectors, View):
    """The vectors of one word in tables and charts."""

    title = tr("One word in several contexts")

    def charts(self, language: Language = "en") -> list[Chart]:
        """Cosines by layer, their matrices, the PCA."""
        return _charts(self, language)

    def tables(self, language: Language = "en") -> list[TextTable]:
        """Cosines by layer against the baseline, and the occurrences."""
        return _tables(self, language)

    def to_dict(self) -> dict[str, Any]:
        """Every field, by name."""
        arrays = (
            "text_N", "position_N", "token_N", "vectors_LNM", "cosines_LNN", "baseline_L3", "plane_N2", "explained_2",
        )  # fmt: skip
        plain = (
            "word", "pieces", "texts", "labels_N", "pieces_N", "places_L", "alike", "alike_apart", "causal", "found",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: to_lists(getattr(self, name)) for name in arrays},
        }


def vectors_view(subject: Subject, word: str, texts: Sequence[str], *, seed: int = 0) -> VectorsView:
    """Compare the vectors of `word` wherever it occurs in `texts` (each read by itself), layer by layer.

    An encoder-decoder model reads the texts with its encoder. The vector of a word of several tokens is that of its
    last token, where the whole word has been read. `seed` draws random pairs of other tokens, the baseline of cosines.
    Raises `GenerationError` for a text without the word (naming it), fewer than two occurrences, more than 64 texts,
    and texts that `Subject.read` refuses.
    """
    return VectorsView(**vars(compare_word(subject, word, texts, seed)))


def _charts(view: VectorsView, language: Language) -> list[Chart]:
    """Cosines by layer, their matrices, the last one large, and the PCA plane."""
    word, labels = view.word, view.short_labels_N
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    layers = [tap_label(tap, language) for tap in view.places_L]
    rows = []
    for tick, pairs_P, (mean, low, high) in zip(
        layer_ticks(layers), view.pair_cosines_LP(), view.baseline_L3.tolist(), strict=True
    ):
        own = {"mean": float(pairs_P.mean()), "low": float(pairs_P.min()), "high": float(pairs_P.max())}
        rows.append({"layer": tick, "which": _WORD.of(language), **own})
        if np.isfinite(mean):
            rows.append({"layer": tick, "which": _OTHERS.of(language), "mean": mean, "low": low, "high": high})
    by_layer = LineChart(
        tr('"{word}": cosine similarity of its vectors by layer', word).of(language),
        rows,
        x="layer",
        y="mean",
        series="which",
        low="low",
        high="high",
        x_title=tr("layer, from the embedding table to the end of the model").of(language),
        y_title=tr("cosine").of(language),
        note=tr(
            "Lines are means; the band of the word spans minimum to maximum, that of the random pairs 5% to 95%."
        ).of(language),
    )
    note, low = _about(view, language), _low(view)
    grid = MatrixGrid(
        tr('"{word}": cosines between its occurrences by layer', word).of(language),
        view.cosines_LNN[None],
        row_titles=[""],
        column_titles=layers,
        row_labels=labels,
        column_labels=numbers,
        low=low,
        high=1.0,
        note=tr("Rows and columns: the occurrences. Each layer has its own map, all on one scale.").of(language),
        language=language,
    )
    last = MatrixChart(
        tr('"{word}": cosines at the end of the model', word).of(language),
        view.cosines_LNN[-1],
        row_labels=labels,
        column_labels=numbers,
        low=low,
        high=1.0,
        language=language,
        note=note,
    )
    return [by_layer, grid, last, *([] if _no_plane(view) else [_plane(view, language)])]


def _low(view: VectorsView) -> float:
    """The lower end of the scale of cosines, such that differences are visible: they are often all above 0.9."""
    least = float(view.cosines_LNN.min())
    step = 0.1 if least < 0.95 else 0.01 if least < 0.995 else 0.001
    return math.floor(least / step + 1e-9) * step if least < 1 - step else 1 - step


def _no_plane(view: VectorsView) -> Words | None:
    """Why a PCA of the final vectors would show nothing; None if it shows something."""
    apart_NN = np.linalg.norm(view.vectors_LNM[-1][:, None] - view.vectors_LNM[-1], axis=-1)
    different = len({tuple(row) for row in (apart_NN <= _SAME * (1e-30 + apart_NN.max())).tolist()})
    if float(view.explained_2.sum()) < _SAME or different < 2:
        return tr("No PCA: the final vectors do not differ.")
    if different < 3:
        return tr("No PCA: two different vectors lie on a line, and their cosine says all.")
    if float(view.explained_2[1]) < _LEAST_SHARE:
        return tr("No PCA: the final vectors lie on a line ({share:.1%} of their variance).", view.explained_2[0])
    return None


def _plane(view: VectorsView, language: Language) -> Chart:
    """The PCA of the final vectors. Equal vectors are one point with the numbers of all of them."""
    word = view.word
    first, second = view.explained_2.tolist()
    size = float(np.abs(view.plane_N2).max())
    places: dict[tuple[float, ...], list[int]] = {}
    for number, point in enumerate(view.plane_N2.tolist()):
        places.setdefault(tuple(round(value / size, 2) for value in point), []).append(number)
    points = []
    for numbers in places.values():
        x, y = view.plane_N2[numbers[0]].tolist()
        listed = ", ".join(str(number + 1) for number in numbers)
        points.append({"first": x, "second": y, "label": view.labels_N[numbers[0]] if len(numbers) == 1 else listed})
    return ScatterChart(
        tr('"{word}": PCA of its final vectors', word).of(language),
        points,
        x="first",
        y="second",
        label="label",
        x_title=tr("first direction, {first:.0%} of the variance", first).of(language),
        y_title=tr("second direction, {second:.0%} of the variance", second).of(language),
    )


def _tables(view: VectorsView, language: Language) -> list[TextTable]:
    """Cosines by layer with the baseline, and the occurrences with what they attend to."""
    columns = [
        tr("layer"), tr("mean cosine"), tr("minimum"), tr("maximum"),
        tr("random pairs: mean"), tr("5%"), tr("95%"),
    ]  # fmt: skip
    names = [column.of(language) for column in columns]
    rows = []
    for tap, pairs_P, baseline in zip(view.places_L, view.pair_cosines_LP(), view.baseline_L3.tolist(), strict=True):
        numbers = [float(pairs_P.mean()), float(pairs_P.min()), float(pairs_P.max()), *baseline]
        rows.append([tap_label(tap, language), *map(decimals, numbers)])
    by_layer = TextTable(
        tr('"{word}" at {n_labels_n} positions: cosines of its vectors', view.word, len(view.labels_N)).of(language),
        names,
        rows,
        right=names[1:],
        note=_about(view, language),
    )
    headings = [
        column.of(language)
        for column in (
            tr("occurrence"), tr("text"), tr("position"), tr("token"),
            tr("attends to"),
        )
    ]  # fmt: skip
    spots = [
        [label, str(row + 1), str(position), piece, _attends_to(view, position, language)]
        for label, row, position, piece in zip(
            view.labels_N, view.text_N.tolist(), view.position_N.tolist(), view.pieces_N, strict=True
        )
    ]
    where = TextTable(
        tr("Occurrences (texts from 1, positions from 0)").of(language),
        headings,
        spots,
        right=headings[1:3],
    )
    return [by_layer, where]


def _about(view: VectorsView, language: Language) -> str:
    """Notes on how to read the figures."""
    notes: list[Words] = []
    if len(view.pieces) > 1:
        pieces = " + ".join(view.pieces)
        notes.append(
            tr(
                "The word is {n_pieces} tokens ({pieces}); its vector is that of the last one.",
                len(view.pieces),
                pieces,
            )
        )
    if len(set(view.token_N.tolist())) > 1:
        notes.append(tr("Its last token is not the same everywhere, so the vectors in the embedding table differ too."))
    else:
        notes.append(tr("In the embedding table that token has a single vector."))
    notes.append(_attended(view))
    if view.found > len(view.labels_N):
        notes.append(tr("The first {n_labels_n} of {found} occurrences are shown.", len(view.labels_N), view.found))
    if not np.isfinite(view.baseline_L3).all():
        notes.append(tr("There are no other tokens to compare with."))
    if (why := _no_plane(view)) is not None:
        notes.append(why)
    return sentences(notes, language)


def _attended(view: VectorsView) -> Words:
    """The tokens that a token attends to in this model, and the occurrences that therefore cannot differ."""
    if view.causal:
        seen = tr("In this model a token attends only to itself and to the tokens before it.")
        why = tr("have the same tokens before them (or none)")
        advice = tr(" Show the word after different words.")
    else:
        seen = tr("In the encoder every token attends to the whole text.")
        why = tr("are at the same position in equal texts")
        advice = Words("", "")
    if not view.alike:
        return seen
    few, more = view.alike[:_MOST_PAIRS_LISTED], len(view.alike) - _MOST_PAIRS_LISTED
    pairs = listed([f"{one + 1} = {other + 1}" for one, other in few])
    if more > 0:
        pairs = tr("{pairs} and {more} more pairs", pairs, more)
    apart = f"{view.alike_apart:.0e}" if view.alike_apart else "0"
    return tr(
        "{seen} Occurrences ({pairs}) {why}: their vectors cannot differ, at any layer "
        "(measured difference: {apart}).{advice}",
        seen,
        pairs,
        why,
        apart,
        advice,
    )


def _attends_to(view: VectorsView, position: int, language: Language) -> str:
    if not view.causal:
        return tr("the whole text").of(language)
    if position == 0:
        return tr("only itself").of(language)
    return tr("itself and {position} before it", position).of(language)


COMMAND = Command(
    vectors_view,
    options=(
        Option("word", str, "Word to follow through the layers."),
        Option("texts", list[str], "Texts that contain the word (same as --text, repeated)."),
        TEXTS,
        FILE,
        STEP,
        SEED,
    ),
    texts="compared",
)
