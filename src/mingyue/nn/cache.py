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

    def keep(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was: leaves rows out, reorders or doubles them (beams)."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys[0].device)
        self.keys = [key.index_select(0, index) for key in self.keys]
        self.values = [value.index_select(0, index) for value in self.values]
        self.lengths = [self.lengths[row] for row in rows]


class CacheStep:
    """One forward pass over a cache: where the new tokens go, their positions, and what they may look at."""

    def __init__(self, cache: Cache, new_lengths: Sequence[int] | None, rows: Sequence[int] | None) -> None:
        self.cache = cache
        self._rows = list(range(len(cache.lengths))) if rows is None else list(rows)
        self._all_rows = self._rows == list(range(len(cache.lengths)))
        self._given = None if new_lengths is None else list(new_lengths)
        self._n_tokens = 0

    def begin(self, n_rows: int, n_tokens: int, device: torch.device) -> Tensor:
        """Fix the plan for an input of [n_rows, n_tokens]; returns `positions_BT`.

        Raises `ValueError` if the rows do not match, repeat, or would hold more than the capacity.
        """
        cache = self.cache
        if n_rows != len(self._rows):
            raise ValueError(f"the input has {n_rows} rows, the cache step {len(self._rows)}")
        if len(set(self._rows)) != n_rows:
            raise ValueError(f"rows {self._rows} name a cache row twice")
        self._starts = [cache.lengths[row] for row in self._rows]
        self._new = [n_tokens] * n_rows if self._given is None else self._given
        if len(self._new) != n_rows or any(not 0 <= new <= n_tokens for new in self._new):
            raise ValueError(f"new_lengths {self._new} do not fit an input of {n_rows} rows of {n_tokens} tokens")
        ends = [start + new for start, new in zip(self._starts, self._new, strict=True)]
        if max(ends, default=0) > cache.capacity:
            row = ends.index(max(ends))
            raise ValueError(
                f"row {self._rows[row]} holds {self._starts[row]} tokens; {self._new[row]} more exceed "
                f"the cache's capacity of {cache.capacity}"
            )
        self._n_tokens = n_tokens
        uniform = self._all_rows and len({*zip(self._starts, self._new, strict=True)}) == 1
        self._uniform = uniform and self._new[0] == n_tokens
        if self._uniform:
            self._n_keys = ends[0]
            self.attend = Attend(causal=True)
            return torch.arange(self._starts[0], self._n_keys, device=device)[None]
        self._n_keys = min(-(-max(ends, default=0) // _ROUND) * _ROUND, cache.capacity)
        starts_B1 = torch.tensor(self._starts, device=device)[:, None]
        real_BT = torch.arange(n_tokens, device=device) < torch.tensor(self._new, device=device)[:, None]
        positions_BT = starts_B1 + torch.arange(n_tokens, device=device)
        # Padding stands at the row's last place: it is computed like any token, written nowhere and read by no one.
        positions_BT = positions_BT.clamp(max=cache.capacity - 1)
        self._real_BT = real_BT
        self._rows_B = torch.tensor(self._rows, device=device)
        self._row_of_new = self._rows_B[:, None].expand(-1, n_tokens)[real_BT]
        self._place_of_new = positions_BT[real_BT]
        self.attend = Attend(causal=True, query_positions_BT=positions_BT)
        return positions_BT

    def extend(self, layer: int, key_BGTD: Tensor, value_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values; returns all that the rows hold, [B, G, S, D] each."""
        return self._write(self.cache.keys[layer], key_BGTD), self._write(self.cache.values[layer], value_BGTD)

    def _write(self, held: Tensor, new_BGTD: Tensor) -> Tensor:
        if self._uniform:
            held[:, :, self._n_keys - self._n_tokens : self._n_keys] = new_BGTD
            return held[:, :, : self._n_keys]
        held[self._row_of_new, :, self._place_of_new] = new_BGTD.transpose(1, 2)[self._real_BT].to(held.dtype)
        window = held[:, :, : self._n_keys]
        return window if self._all_rows else window.index_select(0, self._rows_B)

    def commit(self) -> None:
        """The forward pass is done: the rows now hold the new tokens."""
        for row, start, new in zip(self._rows, self._starts, self._new, strict=True):
            self.cache.lengths[row] = start + new
