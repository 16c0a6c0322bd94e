"""Keys and values already seen, so that writing a token costs one token.

Rows are preallocated and filled from the left: row b holds its own number of tokens, and nothing is ever padded on the
left. A row can be emptied and given another text while the others go on. Lengths live on the host: no device waits.
"""

from __future__ import annotations

from collections.abc import Sequence

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

        `rows` (default all) names the cache row of each row of the input; `new_lengths` says how many of each input
        row's tokens are real (default all): what stands after them is ignored.
        """
        return CacheStep(self, new_lengths, rows)

    def clear(self, row: int) -> None:
        """Empty a row: the next tokens it gets stand at position 0."""
        self.lengths[row] = 0

    def copy(self, source: int, target: int, length: int | None = None) -> None:
        """Row `target` now holds the first `length` tokens of row `source` (default all), and nothing else."""
        length = self.lengths[source] if length is None else length
        if not 0 <= length <= self.lengths[source]:
            raise ValueError(f"row {source} holds {self.lengths[source]} tokens: {length} cannot be copied")
        for held in (*self.keys, *self.values):
            held[target, :, :length] = held[source, :, :length]
        self.lengths[target] = length

    def keep(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was: leaves rows out, reorders or doubles them (beams)."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys[0].device)
        self.lengths = [self.lengths[row] for row in rows]
        held = max(self.lengths, default=0)
        self.keys = [_chosen(key, index, held) for key in self.keys]
        self.values = [_chosen(value, index, held) for value in self.values]


def _chosen(held: Tensor, index: Tensor, length: int) -> Tensor:
    """The rows of `index`, of which only the first `length` places mean anything."""
    if len(index) == held.shape[0]:
        held[:, :, :length] = held[:, :, :length].index_select(0, index)
        return held
    if len(index) < held.shape[0]:  # the room stays: the rows behind are no longer looked at
        held[: len(index), :, :length] = held[:, :, :length].index_select(0, index)
        return held[: len(index)]
    chosen = held.new_zeros(len(index), *held.shape[1:])
    chosen[:, :, :length] = held[:, :, :length].index_select(0, index)
    return chosen


class CacheStep:
    """One forward pass over a cache: where the new tokens go, their positions, and what they may look at."""

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
        neighbours = rows == list(range(first, first + n_rows))
        # Rows that stand side by side are read where they are; others are gathered.
        beside = slice(None) if n_rows == len(cache.lengths) else slice(first, first + n_rows)
        self._gather = None if neighbours else torch.tensor(rows, device=device)
        full = all(new == n_tokens for new in self._new)
        self._uniform = neighbours and full and len(set(self._starts)) == 1
        if self._uniform:
            self.n_keys = longest
            self._write = beside, slice(None), slice(self._starts[0], longest)
            self._read = beside, slice(None), slice(longest)
            self.attend = Attend(causal=True)
            return torch.arange(self._starts[0], longest, device=device)[None]
        self.n_keys = min(-(-longest // _ROUND) * _ROUND, cache.capacity)
        self._read = beside, slice(None), slice(self.n_keys)
        return self._plan_ragged(n_tokens, full, device)

    def _plan_ragged(self, n_tokens: int, full: bool, device: torch.device) -> Tensor:
        # Indices are made on the host, where the lengths are: the device is told, never asked.
        starts_B1, new_B1 = torch.tensor(self._starts)[:, None], torch.tensor(self._new)[:, None]
        places_1T = torch.arange(n_tokens)[None]
        # Padding stands at the row's last place: it is computed like any token, written nowhere and read by no one.
        positions_BT = (starts_B1 + places_1T).minimum((starts_B1 + new_B1 - 1).clamp(min=0))
        row, place = (places_1T < new_B1).nonzero(as_tuple=True)
        cache_row = torch.tensor(self._rows, dtype=torch.long)[row]
        self._write = cache_row.to(device), slice(None), positions_BT[row, place].to(device)
        self._real = None if full else (row.to(device), place.to(device))
        positions_BT = positions_BT.to(device)
        self.attend = Attend(causal=True, query_positions_BT=positions_BT, never_empty=True)
        return positions_BT

    def extend(self, layer: int, key_BGTD: Tensor, value_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values; returns all that the rows hold, [B, G, S, D] each."""
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
        """The forward pass is done: the rows now hold the new tokens."""
        for row, start, new in zip(self._rows, self._starts, self._new, strict=True):
            self.cache.lengths[row] = start + new
