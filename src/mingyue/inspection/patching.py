"""Activation patching: which activations carry the difference between two texts (Meng et al. 2022, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mingyue.charts import Chart, MatrixChart
from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.capture import capture
from mingyue.inspection.choices import chosen_token
from mingyue.inspection.labels import layer_label
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.taps import check_taps, matching, tap_names
from mingyue.inspection.tokens import token_label
from mingyue.inspection.view import View
from mingyue.nn import Taps
from mingyue.nn.taps import Edit
from mingyue.words import Language, TextTable, Words, tr

MOST_LOGITS = 1 << 24
"""Logits of one batch of patched texts: 64 MiB."""
LEAST_DIFFERENCE = 1e-4
"""Smallest difference between the logit differences of the two texts that can be recovered."""
_ROWS_OF_TABLE = 12
_PIECES_SHOWN = 40
_MOST_COLUMNS = 16  # positions of a text whose shares are all printed
_OF_THE_SOURCE = ("cross_attention.key", "cross_attention.value")


@dataclass(frozen=True)
class PatchingView(View):
    """How much of the clean text's answer is recovered when one vector is taken from its forward pass."""

    title: ClassVar[Words] = tr("Activation patching")  # pyrefly: ignore[bad-override]
    places: tuple[str, ...]
    """The P taps, in the order of a forward pass."""
    recovered_PT: NDArray[np.float64]
    """By tap and position: 0 = the answer of the corrupted text, 1 = that of the clean one."""
    difference_PT: NDArray[np.float64]
    """The logit difference after patching."""
    clean_difference: float
    """logit(answer) − logit(instead) after the clean text."""
    corrupted_difference: float
    clean_pieces: tuple[str, ...]
    corrupted_pieces: tuple[str, ...]
    answer: str
    instead: str
    position: int
    """The position whose logits are compared."""

    def charts(self, language: Language = "en") -> list[Chart]:
        """Taps × positions, coloured by the recovered share."""
        rows, row_title = _row_labels(self.places, language)
        largest = max(1.0, float(np.abs(self.recovered_PT).max()))  # 1, the whole answer, is always on the scale
        return [
            MatrixChart(
                tr(
                    'Share of the answer "{answer}" (not "{instead}") recovered by one vector',
                    self.answer,
                    self.instead,
                ).of(language),
                self.recovered_PT,
                row_labels=rows,
                column_labels=self._labels(),
                row_title=row_title,
                column_title=tr("token").of(language),
                diverging=True,
                low=-largest,
                high=largest,
                note=self._note(language),
                language=language,
            )
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The taps and positions that recover most; of a short text every share, taps × positions."""
        order = np.argsort(-np.abs(self.recovered_PT), axis=None, kind="stable")[:_ROWS_OF_TABLE]
        labels = self._labels()
        rows = []
        for number in order:
            tap, position = divmod(int(number), self.recovered_PT.shape[1])
            recovered = self.recovered_PT[tap, position]
            rows.append(
                [
                    self.places[tap],
                    str(position),
                    labels[position],
                    f"{self.difference_PT[tap, position]:+.3f}",
                    _share(recovered),
                ]
            )
        columns = [
            tr("tap").of(language),
            tr("position").of(language),
            tr("token").of(language),
            tr("logit difference").of(language),
            tr("recovered").of(language),
        ]
        most = TextTable(self.title.of(language), columns, rows, [columns[1], *columns[3:]], self._note(language))
        return [most] if len(labels) > _MOST_COLUMNS else [most, self._shares(language)]

    def to_dict(self) -> dict[str, Any]:
        """`recovered_PT` and `difference_PT`, [taps, positions], with the taps, the tokens and both answers."""
        return {
            "places": list(self.places),
            "recovered_PT": to_lists(self.recovered_PT),
            "difference_PT": to_lists(self.difference_PT),
            "clean_difference": self.clean_difference,
            "corrupted_difference": self.corrupted_difference,
            "clean": list(self.clean_pieces),
            "corrupted": list(self.corrupted_pieces),
            "answer": self.answer,
            "instead": self.instead,
            "position": self.position,
        }

    def _shares(self, language: Language) -> TextTable:
        rows, _ = _row_labels(self.places, language)
        columns = [f"{position} {label}" for position, label in enumerate(self._labels())]
        cells = [[name, *map(_share, shares)] for name, shares in zip(rows, self.recovered_PT.tolist(), strict=True)]
        title = tr("Recovered share by layer and position").of(language)
        return TextTable(title, ["", *columns], cells, columns)

    def _labels(self) -> list[str]:
        return [
            clean if clean == corrupted else f"{corrupted}←{clean}"
            for clean, corrupted in zip(self.clean_pieces, self.corrupted_pieces, strict=True)
        ]

    def _note(self, language: Language) -> str:
        return tr(
            "logit({answer}) − logit({instead}): {clean_difference:+.3f} after the clean text, "
            "{corrupted_difference:+.3f} after the corrupted one, at position {position}; 0 = as "
            "corrupted, 1 = as clean.",
            self.answer,
            self.instead,
            self.clean_difference,
            self.corrupted_difference,
            self.position,
        ).of(language)


def _share(recovered: float) -> str:
    return f"{recovered:.2f}".replace("-0.00", "0.00")


def _row_labels(places: Sequence[str], language: Language) -> tuple[list[str], str]:
    """Labels of the rows, and the title above them: taps that differ only in their layer are labelled by it."""
    parts = list(zip(*(tap.split(".") for tap in places), strict=False))
    differing = [number for number, part in enumerate(parts) if len(set(part)) > 1]
    alike = len({tap.count(".") for tap in places}) == 1 and len(differing) == 1
    if not alike or not all(layer.isdigit() for layer in parts[differing[0]]):
        return list(places), tr("tap").of(language)
    pattern = ".".join("*" if number in differing else part[0] for number, part in enumerate(parts))
    return [layer_label(int(layer), language) for layer in parts[differing[0]]], pattern


@torch.inference_mode()
def patching(
    subject: Subject,
    clean: Reading,
    corrupted: Reading,
    *,
    answer: str | int,
    instead: str | int,
    places: str | Sequence[str] | None = None,
    at: int = -1,
) -> PatchingView:
    """Read `corrupted` with one vector of `clean`, for each tap and position in turn.

    `answer` is more likely after the clean text, `instead` after the corrupted one: texts of
    one token each, or ids. The logits are those at position `at`. `places` are taps or patterns; by default the
    residual stream after every block (for an encoder-decoder model, after every block of the decoder).

    Raises `SettingsError` for names that are no taps, taps of both texts of a pair, and an `at` outside the text;
    `GenerationError` for texts of unequal length, an answer of several tokens, and texts with equal logit differences.
    """
    if places is None:
        places = "decoder.blocks.*.output" if subject.of_pairs else "blocks.*.output"
    patterns = (places,) if isinstance(places, str) else tuple(places)
    check_taps(subject, patterns)
    known = tap_names(subject)
    names = [name for name in known if any(name in matching(pattern, known) for pattern in patterns)]
    check_lengths(clean, corrupted)
    if not -len(clean.ids_T) <= at < len(clean.ids_T):
        raise SettingsError(
            tr("there is no position {at}: the texts have {n_ids_t} tokens, counted from 0", at, len(clean.ids_T))
        )
    wanted, other = (chosen_token(subject, token) for token in (answer, instead))
    in_source = {name.startswith("encoder.") or name.endswith(_OF_THE_SOURCE) for name in names}
    if len(in_source) > 1:
        raise SettingsError(
            tr("taps of the source and of the target have different positions"), advice=tr("Patch one side.")
        )
    seen = capture(subject, clean, names)

    def difference(logits_RTV: Tensor) -> Tensor:
        return (logits_RTV[:, at, wanted] - logits_RTV[:, at, other]).double().cpu()

    before = float(difference(subject.logits(corrupted)[None]))
    after = float(difference(seen.logits_TV[None]))
    if abs(after - before) < LEAST_DIFFERENCE:
        raise GenerationError(
            tr("both texts have the same logit difference ({after:+.4f}): there is nothing to recover", after),
            advice=tr("Choose an answer that one of the texts makes more likely."),
        )
    found_PT = torch.stack([_patched(subject, corrupted, name, seen.values[name], difference) for name in names])
    pieces = [reading.source_pieces if in_source == {True} else reading.pieces for reading in (clean, corrupted)]
    return PatchingView(
        places=tuple(names),
        recovered_PT=((found_PT - before) / (after - before)).numpy(),
        difference_PT=found_PT.numpy(),
        clean_difference=after,
        corrupted_difference=before,
        clean_pieces=pieces[0],
        corrupted_pieces=pieces[1],
        answer=token_label(subject.tokenizer, wanted),
        instead=token_label(subject.tokenizer, other),
        position=at % len(clean.ids_T),
    )


def _patched(
    subject: Subject, corrupted: Reading, tap: str, clean: Tensor, difference: Callable[[Tensor], Tensor]
) -> Tensor:
    """differences_T: with the clean vector at each position in turn, as rows of a batch."""
    module, n_positions = subject.module, clean.shape[-2]
    at_once = max(1, MOST_LOGITS // (len(corrupted.ids_T) * module.config.vocab_size))
    found = []
    for positions_R in torch.arange(n_positions, device=subject.device).split(at_once):
        rows = len(positions_R)
        ids = [corrupted.ids_T] if corrupted.source_ids_S is None else [corrupted.source_ids_S, corrupted.ids_T]
        taps = Taps(edits={tap: _patch(positions_R, clean)})
        found.append(difference(module(*(one[None].repeat(rows, 1) for one in ids), taps=taps)))
    return torch.cat(found)


def _patch(positions_R: Tensor, clean: Tensor) -> Edit:
    """In row r, position `positions_R[r]` has the vector of `clean`."""

    def edit(value: Tensor) -> Tensor:
        edited = value.clone()
        row_R = torch.arange(len(positions_R), device=value.device)
        edited.movedim(-2, 1)[row_R, positions_R] = clean.movedim(-2, 0)[positions_R]
        return edited

    return edit


def check_lengths(clean: Reading, corrupted: Reading) -> None:
    """Raise `GenerationError` for texts of unequal numbers of tokens."""
    sides = [
        (tr("text"), clean.pieces, corrupted.pieces),
        (tr("source text"), clean.source_pieces, corrupted.source_pieces),
    ]
    for side, clean_pieces, corrupted_pieces in sides:
        if len(clean_pieces) != len(corrupted_pieces):
            shown = [" ".join(pieces[:_PIECES_SHOWN]) for pieces in (clean_pieces, corrupted_pieces)]
            raise GenerationError(
                tr(
                    "the clean {side} has {n_clean_pieces} tokens, the corrupted one "
                    "{n_corrupted_pieces}: their positions do not correspond",
                    side,
                    len(clean_pieces),
                    len(corrupted_pieces),
                ),
                advice=tr(
                    "Replace words by others of as many tokens. Clean: {shown}\nCorrupted: {corrupted}",
                    shown[0],
                    shown[1],
                ),
            )
