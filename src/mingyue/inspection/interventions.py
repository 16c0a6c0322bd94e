"""Intervening: put something else in a named place of a forward pass, and read what that does to the logits.

Edits are functions by tap name (`mingyue.nn.taps`), as `capture` and a model's forward take them; several are one dict.
Here a model of six letters, with weights that mean nothing, says something else without one of its heads:

    >>> from mingyue.config import ModelConfig
    >>> from mingyue.inspection import Subject
    >>> from mingyue.inspection.interventions import edited_logits, patching, replace_vector, switch_off
    >>> from mingyue.models import build_model
    >>> from mingyue.text import train_char
    >>> letters = train_char(["abcdef"])
    >>> config = ModelConfig(
    ...     vocab_size=letters.vocab_size, context=8, d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, d_head=8, d_ff=32
    ... )
    >>> subject = Subject(build_model(config, seed=0).eval(), letters)
    >>> reading = subject.read("abca")
    >>> plain_TV = subject.logits(reading)
    >>> without_TV = edited_logits(subject, reading, switch_off(layer=1, head=0))
    >>> bool((plain_TV - without_TV).abs().max() > 0)
    True

Activation patching asks where a model holds what tells two texts apart. It reads the corrupted text with one vector, at
one place and one position, taken from its pass over the clean text; 1 = the answer is that of the clean text again:

    >>> view = patching(subject, subject.read("abc"), subject.read("dbc"), answer="a", instead="d")
    >>> view.recovered_PT.shape, view.places
    ((2, 3), ('blocks.0.output', 'blocks.1.output'))
    >>> round(float(view.recovered_PT[-1, -1]), 3)  # the last vector of the last block is all that the answer sees
    1.0
    >>> moved = replace_vector("blocks.0.output", 0, subject.module.embedding.weight[5])
    >>> bool((edited_logits(subject, reading, moved) - plain_TV).abs().max() > 0)
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.capture import capture
from mingyue.inspection.charts import Chart, matrix_chart
from mingyue.inspection.parts import check_places, matching, place_names
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.inspection.words import Language, TextTable, Words
from mingyue.nn import Taps
from mingyue.nn.taps import Edit

MOST_LOGITS = 1 << 24
"""Of one batch of patched texts: 64 MiB."""
LEAST_DIFFERENCE = 1e-4
"""Of the two texts' logit differences: between nearer ones there is nothing to recover."""
_ROWS_OF_TABLE = 12
_OF_THE_SOURCE = ("cross_attention.key", "cross_attention.value")

Edits = dict[str, Edit]


def switch_off(layer: int, head: int, part: str = "self") -> Edits:
    """One head gives 0 at all positions. `part`: "self" of a Mini-GPT; "encoder", "decoder", "cross" of pairs.

    Layers and heads are counted from 0. Whether the model has them is seen when the edits are used.
    """
    stack = {"self": "", "encoder": "encoder.", "decoder": "decoder.", "cross": "decoder."}.get(part)
    if stack is None:
        raise SettingsError(f"part {part!r} is not one of self, encoder, decoder, cross")
    attention = "cross_attention" if part == "cross" else "attention"
    place = f"{stack}blocks.{layer}.{attention}.heads"

    def edit(heads_BHTD: Tensor) -> Tensor:
        n_heads = heads_BHTD.shape[1]
        if not 0 <= head < n_heads:
            raise SettingsError(
                f"there is no head {head} at {place}", advice=f"Heads are counted from 0: 0 to {n_heads - 1}."
            )
        edited_BHTD = heads_BHTD.clone()
        edited_BHTD[:, head] = 0.0
        return edited_BHTD

    return {place: edit}


def replace_vector(place: str, position: int, vector: Tensor | Sequence[float] | float) -> Edits:
    """Put a vector at one position (from 0; negative ones count from the end) of a place; a number fills it.

    It has the shape of what stands there: [M] of the residual stream, [H, D] of queries and heads, where [D] goes to
    every head. When used it raises `SettingsError` for a position or a shape that does not fit.
    """

    def edit(value: Tensor) -> Tensor:
        axis = _position_axis(value)
        if not -value.shape[axis] <= position < value.shape[axis]:
            raise SettingsError(
                f"there is no position {position} at {place}",
                advice=f"Positions are counted from 0: 0 to {value.shape[axis] - 1}.",
            )
        edited = value.clone()
        old = edited.select(axis, position)
        new = torch.as_tensor(vector, dtype=value.dtype, device=value.device)
        try:
            old.copy_(new.expand_as(old))
        except RuntimeError:
            raise SettingsError(
                f"a vector of shape {[*new.shape]} does not fit {place}, which has {[*old.shape[1:]]} at each position"
            ) from None
        return edited

    return {place: edit}


def _position_axis(value: Tensor) -> int:
    """[B, T, M] or [B, H, T, D]: where the positions are."""
    return value.ndim - 2


@torch.inference_mode()
def edited_logits(subject: Subject, reading: Reading, edits: Mapping[str, Edit]) -> Tensor:
    """logits_TV with edits made on the way.

    Raises `SettingsError` for a name that is no place of this model (with the nearest that is), or an edit that fits
    none.
    """
    check_places(subject, edits)
    return capture(subject, reading, (), edits).logits_TV


@dataclass(frozen=True)
class PatchingView(View):
    """How much of the clean text's answer comes back when one vector is taken from its pass."""

    title: ClassVar[Words] = Words("Activation patching", "激活修补")  # pyrefly: ignore[bad-override]
    places: tuple[str, ...]
    """The P places, in the order of a pass."""
    recovered_PT: NDArray[np.float64]
    """By place and position: 0 = the answer of the corrupted text, 1 = that of the clean one."""
    difference_PT: NDArray[np.float64]
    """The logit difference that was read."""
    clean_difference: float
    """logit(answer) − logit(instead) after the clean text."""
    corrupted_difference: float
    clean_pieces: tuple[str, ...]
    corrupted_pieces: tuple[str, ...]
    answer: str
    instead: str

    def charts(self, language: Language = "en") -> list[Chart]:
        """Places × positions, coloured by what was recovered."""
        return [
            matrix_chart(
                Words(
                    f"Share of the answer “{self.answer}” (not “{self.instead}”) that one vector brings back",
                    f"一个向量能恢复多少答案“{self.answer}”（而非“{self.instead}”）",
                ).of(language),
                self.recovered_PT,
                row_labels=self.places,
                column_labels=self._labels(),
                row_title=Words("place", "位置名").of(language),
                column_title=Words("token", "token").of(language),
                diverging=True,
                note=self._note(language),
                language=language,
            )
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The places and positions that bring most back."""
        order = np.argsort(-np.abs(self.recovered_PT), axis=None, kind="stable")[:_ROWS_OF_TABLE]
        labels = self._labels()
        rows = []
        for number in order:
            place, position = divmod(int(number), self.recovered_PT.shape[1])
            recovered = self.recovered_PT[place, position]
            rows.append(
                [
                    self.places[place],
                    str(position),
                    labels[position],
                    f"{self.difference_PT[place, position]:+.3f}",
                    f"{recovered:.2f}",
                ]
            )
        columns = [
            Words("place", "位置名").of(language),
            Words("position", "第几个").of(language),
            Words("token", "token").of(language),
            Words("logit difference", "logit 差").of(language),
            Words("recovered", "恢复").of(language),
        ]
        return [TextTable(self.title.of(language), columns, rows, [columns[1], *columns[3:]], self._note(language))]

    def to_dict(self) -> dict[str, Any]:
        """`recovered_PT` and `difference_PT`, [places, positions], with the places, the tokens and both answers."""
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
        }

    def _labels(self) -> list[str]:
        return [
            clean if clean == corrupted else f"{corrupted}←{clean}"
            for clean, corrupted in zip(self.clean_pieces, self.corrupted_pieces, strict=True)
        ]

    def _note(self, language: Language) -> str:
        return Words(
            f"logit({self.answer}) − logit({self.instead}): {self.clean_difference:+.3f} after the clean text, "
            f"{self.corrupted_difference:+.3f} after the corrupted one; 0 = as corrupted, 1 = as clean.",
            f"logit({self.answer}) − logit({self.instead})：干净文本后为 {self.clean_difference:+.3f}，受扰文本后为 "
            f"{self.corrupted_difference:+.3f}；0 = 同受扰文本，1 = 同干净文本。",
        ).of(language)


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
    """Read `corrupted` with one vector of `clean` in turn at each place and position (Meng et al. 2022, section 2).

    `answer` is the token that the clean text makes likelier, `instead` the one that the corrupted text does: texts of
    one token each, or ids. The logits are those at position `at`. `places` are tap names or patterns; by default the
    residual stream after every block (of a model of pairs, of every block of the decoder).

    Raises `SettingsError` for names that are no places, places of both texts of a pair, and an `at` outside the text;
    `GenerationError` for texts of unequal length, a token that is several, and texts with the same logit difference.
    """
    if places is None:
        places = "decoder.blocks.*.output" if subject.of_pairs else "blocks.*.output"
    patterns = (places,) if isinstance(places, str) else tuple(places)
    check_places(subject, patterns)
    known = place_names(subject)
    names = [name for name in known if any(name in matching(pattern, known) for pattern in patterns)]
    _check_lengths(clean, corrupted)
    if not -len(clean.ids_T) <= at < len(clean.ids_T):
        raise SettingsError(f"there is no position {at}: the texts have {len(clean.ids_T)} tokens, counted from 0")
    wanted, other = (_token(subject, token) for token in (answer, instead))
    in_source = {name.startswith("encoder.") or name.endswith(_OF_THE_SOURCE) for name in names}
    if len(in_source) > 1:
        raise SettingsError("places of the source and of the target have different positions", advice="Patch one side.")
    seen = capture(subject, clean, names)

    def difference(logits_RTV: Tensor) -> Tensor:
        return (logits_RTV[:, at, wanted] - logits_RTV[:, at, other]).double().cpu()

    before = float(difference(subject.logits(corrupted)[None]))
    after = float(difference(seen.logits_TV[None]))
    if abs(after - before) < LEAST_DIFFERENCE:
        raise GenerationError(
            f"after both texts the logits of the two tokens differ by the same ({after:+.4f}): nothing to recover",
            advice="Choose an answer that one of the texts makes likelier.",
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
        answer=subject.tokenizer.token_text(wanted),
        instead=subject.tokenizer.token_text(other),
    )


def _patched(
    subject: Subject, corrupted: Reading, place: str, clean: Tensor, difference: Callable[[Tensor], Tensor]
) -> Tensor:
    """differences_T: with the clean vector at each position of the place in turn, as rows of a batch."""
    module, n_positions = subject.module, clean.shape[-2]
    at_once = max(1, MOST_LOGITS // (len(corrupted.ids_T) * module.config.vocab_size))
    found = []
    for positions_R in torch.arange(n_positions, device=subject.device).split(at_once):
        rows = len(positions_R)
        ids = [corrupted.ids_T] if corrupted.source_ids_S is None else [corrupted.source_ids_S, corrupted.ids_T]
        taps = Taps(edits={place: _patch(positions_R, clean)})
        found.append(difference(module(*(one[None].repeat(rows, 1) for one in ids), taps=taps)))
    return torch.cat(found)


def _patch(positions_R: Tensor, clean: Tensor) -> Edit:
    """In row r, position `positions_R[r]` is that of `clean`."""

    def edit(value: Tensor) -> Tensor:
        edited = value.clone()
        row_R = torch.arange(len(positions_R), device=value.device)
        edited.movedim(-2, 1)[row_R, positions_R] = clean.movedim(-2, 0)[positions_R]
        return edited

    return edit


def _check_lengths(clean: Reading, corrupted: Reading) -> None:
    sides = [("text", clean.ids_T, corrupted.ids_T)]
    if clean.source_ids_S is not None and corrupted.source_ids_S is not None:
        sides.append(("source text", clean.source_ids_S, corrupted.source_ids_S))
    for side, clean_T, corrupted_T in sides:
        if len(clean_T) != len(corrupted_T):
            raise GenerationError(
                f"the clean {side} has {len(clean_T)} tokens, the corrupted one {len(corrupted_T)}: "
                "their positions do not meet",
                advice="Change words into others of as many tokens.",
            )


def _token(subject: Subject, token: str | int) -> int:
    """Its id. Raises `GenerationError` for a text of several tokens, or an id that the model does not have."""
    if isinstance(token, str):
        ids = subject.tokenizer.encode(token)
        if len(ids) != 1:
            raise GenerationError(f"{token!r} is {len(ids)} tokens, not 1", advice="Give one token, or its id.")
        token = ids[0]
    vocab_size = min(subject.module.config.vocab_size, subject.tokenizer.vocab_size)
    if not 0 <= token < vocab_size:
        raise GenerationError(f"there is no token {token}: ids are 0 to {vocab_size - 1}")
    return token
