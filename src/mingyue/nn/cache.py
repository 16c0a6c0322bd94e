"""Keys and values that are already computed: of the tokens generated so far (`Cache`), of a source text (`MemoryKV`).

The rows of a cache are preallocated and filled from the left: each row holds its own number of tokens, and nothing is
padded on the left. A row can be cleared and reused for another text while the others continue. Lengths are Python
integers, so reading them never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mingyue.nn.attend import Attend

_ROUND = 16  # masked fused attention is bit-equal for key lengths that are multiples of 16


class Cache:
    """`keys[layer]` and `values[layer]` are [rows, G, capacity, D]; `lengths[row]` counts the tokens a row holds."""

    def __init__(
        self,
        *,
        n_layers: int,
        rows: int,
        n_kv_heads: int,
        capacity: int,
        d_head: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (rows, n_kv_heads, capacity, d_head)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(n_layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(n_layers)]
        self.lengths = [0] * rows
        self.capacity = capacity

    def step(self, new_lengths: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> CacheStep:
        """The plan of one forward pass: which rows get how many new tokens.

        `rows` is the cache row of each row of the input (default: all, in order); `new_lengths` is the number of real
        tokens of each input row (default: all); the tokens after them are padding and ignored.
        """
        return CacheStep(self, new_lengths, rows)

    def clear(self, row: int) -> None:
        """Empty a row: its next token has position 0."""
        self.lengths[row] = 0

    def copy(self, source: int, target: int, length: int | None = None) -> None:
        """Make row `target` hold the first `length` tokens of row `source` (default: all), and no others."""
        length = self.lengths[source] if length is None else length
        if not 0 <= length <= self.lengths[source]:
            raise ValueError(f"row {source} holds {self.lengths[source]} tokens: {length} cannot be copied")
        for held in (*self.keys, *self.values):
            held[target, :, :length] = held[source, :, :length]
        self.lengths[target] = length

    def keep(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was: drops, reorders or duplicates rows (beams)."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys[0].device)
        self.lengths = [self.lengths[row] for row in rows]
        held = max(self.lengths, default=0)
        self.keys = [_select_rows(key, index, held) for key in self.keys]
        self.values = [_select_rows(value, index, held) for value in self.values]


def _select_rows(held: Tensor, index: Tensor, length: int) -> Tensor:
    """The rows of `index`; only their first `length` positions are copied."""
    if len(index) == held.shape[0]:
        held[:, :, :length] = held[:, :, :length].index_select(0, index)
        return held
    if len(index) < held.shape[0]:  # memory is not freed: the rows behind are no longer read
        held[: len(index), :, :length] = held[:, :, :length].index_select(0, index)
        return held[: len(index)]
    chosen = held.new_zeros(len(index), *held.shape[1:])
    chosen[:, :, :length] = held[:, :, :length].index_select(0, index)
    return chosen


class CacheStep:
    """One forward pass over a cache: where the new tokens are stored, their positions, and what they may attend to."""

    def __init__(self, cache: Cache, new_lengths: Sequence[int] | None, rows: Sequence[int] | None) -> None:
        self.cache = cache
        self._rows = list(range(len(cache.lengths))) if rows is None else list(rows)
        self._given = None if new_lengths is None else list(new_lengths)
        self.n_keys = 0

    def begin(self, n_rows: int, n_tokens: int, device: torch.device) -> Tensor:
        """Fix the plan for an input of [n_rows, n_tokens]; returns `positions_BT`, and sets `attend` and `n_keys`.

        Raises `ValueError` if the rows do not match, repeat, or would hold more than the capacity.
        """
        cache, rows = self.cache, self._rows
        if n_rows != len(rows):
            raise ValueError(f"the input has {n_rows} rows, the cache step {len(rows)}")
        if len(set(rows)) != n_rows:
            raise ValueError(f"rows {rows} name a cache row twice")
        self._starts = [cache.lengths[row] for row in rows]
        self._new = [n_tokens] * n_rows if self._given is None else self._given
        if len(self._new) != n_rows or any(not 0 <= new <= n_tokens for new in self._new):
            raise ValueError(f"new_lengths {self._new} do not fit an input of {n_rows} rows of {n_tokens} tokens")
        ends = [start + new for start, new in zip(self._starts, self._new, strict=True)]
        longest = max(ends, default=0)
        if longest > cache.capacity:
            row = ends.index(longest)
            raise ValueError(
                f"row {rows[row]} holds {self._starts[row]} tokens; {self._new[row]} more exceed "
                f"the cache's capacity of {cache.capacity}"
            )
        first = rows[0] if rows else 0
        in_order = rows == list(range(first, first + n_rows))
        # Adjacent rows are read as a slice; others are gathered.
        adjacent = slice(None) if n_rows == len(cache.lengths) else slice(first, first + n_rows)
        self._gather = None if in_order else torch.tensor(rows, device=device)
        full = all(new == n_tokens for new in self._new)
        self._uniform = in_order and full and len(set(self._starts)) == 1
        if self._uniform:
            self.n_keys = longest
            self._write = adjacent, slice(None), slice(self._starts[0], longest)
            self._read = adjacent, slice(None), slice(longest)
            self.attend = Attend(causal=True)
            return torch.arange(self._starts[0], longest, device=device)[None]
        self.n_keys = min(-(-longest // _ROUND) * _ROUND, cache.capacity)
        self._read = adjacent, slice(None), slice(self.n_keys)
        return self._plan_ragged(n_tokens, full, device)

    def _plan_ragged(self, n_tokens: int, full: bool, device: torch.device) -> Tensor:
        # Indices are computed on the host, where the lengths are, and copied to the device: no synchronisation.
        starts_B1, new_B1 = torch.tensor(self._starts)[:, None], torch.tensor(self._new)[:, None]
        offsets_1T = torch.arange(n_tokens)[None]
        # Padding gets the row's last position: it is computed like any token, but neither stored nor attended to.
        positions_BT = (starts_B1 + offsets_1T).minimum((starts_B1 + new_B1 - 1).clamp(min=0))
        row, offset = (offsets_1T < new_B1).nonzero(as_tuple=True)
        cache_row = torch.tensor(self._rows, dtype=torch.long)[row]
        self._write = cache_row.to(device), slice(None), positions_BT[row, offset].to(device)
        self._real = None if full else (row.to(device), offset.to(device))
        positions_BT = positions_BT.to(device)
        self.attend = Attend(causal=True, query_positions_BT=positions_BT, never_empty=True)
        return positions_BT

    def extend(self, layer: int, key_BGTD: Tensor, value_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values; returns all keys and values of the rows, [B, G, S, D] each."""
        return self._extend(self.cache.keys[layer], key_BGTD), self._extend(self.cache.values[layer], value_BGTD)

    def _extend(self, held: Tensor, new_BGTD: Tensor) -> Tensor:
        if self._uniform:
            held[self._write] = new_BGTD
        else:
            new_BTGD = new_BGTD.transpose(1, 2)
            new_NGD = new_BTGD.flatten(0, 1) if self._real is None else new_BTGD[self._real]
            held[self._write] = new_NGD.to(held.dtype)
        if self._gather is None:
            return held[self._read]
        return held[:, :, : self.n_keys].index_select(0, self._gather)

    def commit(self) -> None:
        """Add the new tokens to the lengths of the rows: the end of a forward pass."""
        for row, start, new in zip(self._rows, self._starts, self._new, strict=True):
            self.cache.lengths[row] = start + new


@dataclass
class MemoryKV:
    """Keys and values of the encoder's output for the cross-attention of every decoder layer.

    `EncoderDecoder.project_kv` computes them once per source text; every target token reads them.
    """

    keys: list[Tensor]
    """One key_BGSD for each layer of the decoder."""
    values: list[Tensor]
    """One value_BGSD for each layer of the decoder."""
    attend: Attend
    """Masks the padding of shorter source texts."""

    @property
    def rows(self) -> int:
        """Number of source texts."""
        return self.keys[0].shape[0]

    def keep(self, rows: Sequence[int]) -> MemoryKV:
        """The keys and values of some of the rows, in the order given."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys[0].device)
        allowed = self.attend.allowed
        return MemoryKV(
            [key_BGSD.index_select(0, index) for key_BGSD in self.keys],
            [value_BGSD.index_select(0, index) for value_BGSD in self.values],
            self.attend if allowed is None else replace(self.attend, allowed=allowed.index_select(0, index)),
        )
