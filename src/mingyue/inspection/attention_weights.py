"""The attention weights of every layer and head on one text, and statistics of each head.

The weights are those of the model's own forward pass (`capture` compares it with the fused one). For large inputs they
are summed over blocks of tokens, by the limits below; statistics are always computed from single tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mingyue.errors import NothingToShowError
from mingyue.inspection.capture import capture
from mingyue.inspection.labels import token_at
from mingyue.inspection.parts import AttentionPart, Part
from mingyue.inspection.subject import Reading, Subject
from mingyue.words import tr

MOST_CELLS_KEPT = 1 << 24
"""Weights of one part, all layers and heads together; beyond that blocks of tokens are kept."""
MOST_CELLS_OF_A_LAYER = 1 << 26
"""Most weights of one layer, heads × queries × keys."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of each head, means over all queries of the text. Arrays are [L, H]."""

    distance_LH: Floats
    """Mean distance from query to key in tokens, by weight; NaN in cross-attention, whose texts differ."""
    entropy_LH: Floats
    """Entropy of a row of weights, in bits: 0 = all weight on one key, log2(S) = the same weight on all S."""
    first_LH: Floats
    """Weight on the first token."""
    end_LH: Floats
    """Weight on the EOS token of the source text; NaN for attention within the target."""
    strongest_LH2: NDArray[np.int64]
    """The (query, key) with the largest weight, among queries with more than one key."""
    strongest_LH: Floats
    """That weight."""


@dataclass(frozen=True)
class PartWeights:
    """The weights of one kind of attention."""

    part: Part
    layers: tuple[int, ...]
    """The L layers shown, counted from 0."""
    heads: tuple[int, ...]
    """The H heads shown, counted from 0."""
    weights_LHTS: NDArray[np.float32]
    """Each row sums to 1; masked cells are exactly 0. For blocks of tokens: mean over queries, sum over keys."""
    allowed_TS: NDArray[np.bool_]
    """Which keys each query may attend to."""
    rows: tuple[str, ...]
    """Labels of the T queries."""
    columns: tuple[str, ...]
    """Labels of the S keys."""
    tokens: tuple[int, int]
    """Number of queries and keys, in single tokens."""
    statistics: HeadStatistics
    """Computed from single tokens."""
    uniform: HeadStatistics
    """The same for uniform attention, [1, 1]: the baseline."""
    query_pieces: tuple[str, ...]
    key_pieces: tuple[str, ...]

    @property
    def in_blocks(self) -> bool:
        """Whether rows and columns are blocks of tokens."""
        return self.weights_LHTS.shape[2:] != self.tokens

    @property
    def query_positions(self) -> list[str]:
        """The position of each row, from 0; of a block of tokens the first and the last: 8–15."""
        return _positions(self.tokens[0], len(self.rows))

    @property
    def key_positions(self) -> list[str]:
        """The same of each column."""
        return _positions(self.tokens[1], len(self.columns))


def pieces_of(part: AttentionPart, reading: Reading) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tokens of the queries and those of the keys."""
    queries = reading.source_pieces if part.name == "encoder" else reading.pieces
    keys = reading.pieces if part.causal else reading.source_pieces
    return queries, keys


def check_size(part: AttentionPart, reading: Reading) -> None:
    """Raise `NothingToShowError` for a text of which one layer has more than `MOST_CELLS_OF_A_LAYER` weights."""
    n_queries, n_keys = map(len, pieces_of(part, reading))
    cells = part.n_heads * n_queries * n_keys
    if cells > MOST_CELLS_OF_A_LAYER:
        raise NothingToShowError(
            tr(
                "one layer of attention has {n_heads} × {n_queries:,} × {n_keys:,} = {cells:,} "
                "weights for this text, more than the limit of {most_cells_of_a_layer:,}",
                part.n_heads,
                n_queries,
                n_keys,
                cells,
                MOST_CELLS_OF_A_LAYER,
            ),
            advice=tr(
                "Give a text of at most {most_cells_of_a_layer:,} tokens.",
                math.isqrt(MOST_CELLS_OF_A_LAYER // part.n_heads),
            ),
        )


def part_weights(
    subject: Subject, reading: Reading, part: AttentionPart, layer: int | None = None, head: int | None = None
) -> PartWeights:
    """The weights of a part: of all layers and heads, or of one layer, one head in all layers, or one head."""
    queries, keys = pieces_of(part, reading)
    layers = tuple(range(part.n_layers)) if layer is None else (layer,)
    heads = tuple(range(part.n_heads)) if head is None else (head,)
    allowed_TS = part.allowed(len(queries), len(keys)).to(subject.device)
    n_maps = len(layers) * len(heads)
    whole = n_maps * allowed_TS.numel() <= MOST_CELLS_KEPT
    side = max(len(queries), len(keys)) if whole else math.isqrt(MOST_CELLS_KEPT // n_maps)
    kept, measured = list[Tensor](), list[list[Tensor]]()
    for weights_HTS in weights_of_layers(subject, reading, part, layers, allowed_TS.numel()):
        chosen_HTS = weights_HTS[list(heads)]
        kept.append(_in_blocks(chosen_HTS, side).cpu())
        measured.append(_measure(chosen_HTS, allowed_TS, part))
    uniform_TS = allowed_TS / allowed_TS.sum(-1, keepdim=True)
    blocks_T, blocks_S = (_block_labels(pieces, side) for pieces in (queries, keys))
    return PartWeights(
        part=part.name,
        layers=layers,
        heads=heads,
        weights_LHTS=torch.stack(kept).numpy(),
        allowed_TS=(_in_blocks(allowed_TS[None].float(), side)[0] > 0).cpu().numpy(),
        rows=blocks_T,
        columns=blocks_S,
        tokens=(len(queries), len(keys)),
        statistics=_statistics(measured),
        uniform=_statistics([_measure(uniform_TS[None], allowed_TS, part)]),
        query_pieces=queries,
        key_pieces=keys,
    )


def weights_of_layers(
    subject: Subject, reading: Reading, part: AttentionPart, layers: Sequence[int], cells: int
) -> Iterator[Tensor]:
    """weights_HTS of each layer: from one forward pass if they fit, else from a pass for each layer."""
    together = len(layers) * part.n_heads * cells <= MOST_CELLS_KEPT
    for group in [layers] if together else [[layer] for layer in layers]:
        taps = [part.tap(layer, "weights") for layer in group]
        values = capture(subject, reading, taps).values
        yield from (values.pop(tap).float() for tap in taps)


def _blocks(n_tokens: int, side: int) -> int:
    """Tokens per block, such that at most `side` blocks cover the text."""
    return -(-n_tokens // side)


def _in_blocks(weights_HTS: Tensor, side: int) -> Tensor:
    """At most `side` rows and columns: mean over the queries of a block, sum over its keys, so rows still sum to 1."""
    for axis in (1, 2):
        n_tokens = weights_HTS.shape[axis]
        size = _blocks(n_tokens, side)
        if size == 1:
            continue
        block = torch.arange(n_tokens, device=weights_HTS.device) // size
        shape = list(weights_HTS.shape)
        shape[axis] = -(-n_tokens // size)
        summed = weights_HTS.new_zeros(shape).index_add_(axis, block, weights_HTS)
        weights_HTS = summed / torch.bincount(block)[None, :, None] if axis == 1 else summed
    return weights_HTS


def _block_labels(pieces: Sequence[str], side: int) -> tuple[str, ...]:
    size = _blocks(len(pieces), side)
    if size == 1:
        return tuple(pieces)
    return tuple(
        token_at(position, f"{pieces[number * size]}…")
        for number, position in enumerate(_positions(len(pieces), -(-len(pieces) // size)))
    )


def _positions(n_tokens: int, n_blocks: int) -> list[str]:
    size = _blocks(n_tokens, n_blocks)
    if size == 1:
        return [str(position) for position in range(n_tokens)]
    ends = [(start, min(start + size, n_tokens) - 1) for start in range(0, n_tokens, size)]
    return [str(start) if start == end else f"{start}–{end}" for start, end in ends]


def _measure(weights_HTS: Tensor, allowed_TS: Tensor, part: AttentionPart) -> list[Tensor]:
    """distance, entropy, first, end, strongest weight, its query, its key: each [H]."""
    n_heads, n_queries, n_keys = weights_HTS.shape
    missing_H = torch.full((n_heads,), math.nan)
    distance_TS = (
        torch.arange(n_queries, device=weights_HTS.device)[:, None] - torch.arange(n_keys, device=weights_HTS.device)
    ).abs()
    same_text = part.name != "cross"
    distance_H = torch.stack([(w_TS * distance_TS).sum(-1).mean() for w_TS in weights_HTS]) if same_text else missing_H
    entropy_H = torch.stack([torch.special.entr(w_TS).sum(-1).mean() for w_TS in weights_HTS]) / math.log(2)
    free_T = allowed_TS.sum(-1) > 1
    if not bool(free_T.any()):
        free_T = torch.ones_like(free_T)
    strongest_H, cell_H = (weights_HTS * free_T[:, None]).flatten(1).max(-1)
    return [
        distance_H,
        entropy_H,
        weights_HTS[:, :, 0].mean(-1),
        missing_H if part.causal else weights_HTS[:, :, -1].mean(-1),
        strongest_H,
        cell_H // n_keys,
        cell_H % n_keys,
    ]


def _statistics(measured: Sequence[Sequence[Tensor]]) -> HeadStatistics:
    distance, entropy, first, end, strongest, query, key = (
        torch.stack([value.cpu().double() for value in values]).numpy() for values in zip(*measured, strict=True)
    )
    return HeadStatistics(distance, entropy, first, end, np.stack([query, key], -1).astype(np.int64), strongest)
