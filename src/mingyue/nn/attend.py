"""Which keys each query may attend to, as a description instead of a mask.

One convention everywhere: True = may attend. The description is small for any length of the text; only `Attend.matrix`
builds the T × S mask, for the explicit path and for rows of unequal length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import and_

import torch
from torch import Tensor

_ADDITIVE_HIDDEN = -1e4  # an additive bias at or below this means "masked"; the range of fp16 ends at -65504


@dataclass(frozen=True, eq=False)
class Attend:
    """Which of S keys each of T queries may attend to ("see"): those that meet all conditions.

    By default key j has position j and the T queries have the last T of the S positions: one query on five cached keys
    is the fifth token, and sees all five.
    """

    causal: bool = False
    """A query sees no key of a later position."""
    window: int | None = None
    """A query sees keys less than `window` positions away (itself and window − 1 before it when causal)."""
    lengths_B: Tensor | None = None
    """Row b has `lengths_B[b]` real keys; the rest is padding."""
    query_positions_BT: Tensor | None = None
    """Positions of the queries, [B, T] or [1, T]."""
    key_positions_BS: Tensor | None = None
    """Positions of the keys, [B, S] or [1, S]."""
    query_documents_BT: Tensor | None = None
    """Document of each query: it sees only keys of the same document."""
    key_documents_BS: Tensor | None = None
    """Document of each key; default: those of the queries (self-attention)."""
    allowed: Tensor | None = None
    """A dense boolean that broadcasts to [B, H, T, S]; True = may attend."""
    never_empty: bool = False
    """The caller guarantees that every query sees some key, so that no path needs to handle empty rows."""
    _biases: dict[torch.dtype, Tensor] | None = field(default=None, repr=False)
    """The mask as an additive bias, by dtype; shared by all layers that share a description with a matrix."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window {self.window} must be at least 1: a token always sees itself")
        if self.allowed is not None and self.allowed.dtype is not torch.bool:
            raise ValueError(
                f"allowed must be boolean (True = may attend), not {self.allowed.dtype}; "
                "use Attend.from_hidden or Attend.from_additive for masks of other conventions"
            )
        if self.key_documents_BS is not None and self.query_documents_BT is None:
            raise ValueError("key_documents_BS needs query_documents_BT")

    @classmethod
    def from_hidden(cls, hidden: Tensor) -> Attend:
        """From a mask in which 1 or True = hidden (the convention of key_padding_mask)."""
        return cls(allowed=~hidden.bool())

    @classmethod
    def from_additive(cls, bias: Tensor) -> Attend:
        """From a mask that is added to scores: 0 = may attend, −inf (or a large negative constant) = hidden.

        Raises `ValueError` when a value is neither: such a bias changes weights, it is not a mask.
        """
        hidden = bias <= _ADDITIVE_HIDDEN
        if not bool(((bias == 0) | hidden).all()):
            raise ValueError("an additive mask holds only 0 and large negative values (−1e4 or less, or −inf)")
        return cls(allowed=~hidden)

    @property
    def is_structural(self) -> bool:
        """Whether there are no conditions but `causal` and `window`: the mask follows from T and S alone."""
        return (
            self.lengths_B is None
            and self.query_positions_BT is None
            and self.key_positions_BS is None
            and self.query_documents_BT is None
            and self.key_documents_BS is None
            and self.allowed is None
        )

    def hides_nothing(self, n_queries: int, n_keys: int) -> bool:
        """Whether every query sees every key, as far as that is known without reading a tensor."""
        past_only = not self.causal or n_queries == 1
        # The largest distance is that of the first query and the last key.
        wide = self.window is None or self.window >= max(n_queries, n_keys)
        return self.is_structural and past_only and wide

    def may_have_empty_rows(self, n_queries: int, n_keys: int) -> bool:
        """Whether some query may see no key at all (never where each sees at least itself)."""
        tensors = (
            self.lengths_B,
            self.query_positions_BT,
            self.key_positions_BS,
            self.key_documents_BS,
            self.allowed,
        )
        sees_itself = n_queries <= n_keys and all(tensor is None for tensor in tensors)
        return not self.never_empty and not sees_itself

    def with_matrix(self, n_queries: int, n_keys: int, *, device: torch.device | None = None) -> Attend:
        """The same for one T and S, with its matrix already built: for layers that share it."""
        empty = self.may_have_empty_rows(n_queries, n_keys)
        return Attend(allowed=self.matrix(n_queries, n_keys, device=device), never_empty=not empty, _biases={})

    def bias(self, allowed: Tensor, dtype: torch.dtype) -> Tensor:
        """`allowed`, the matrix of this description, as a bias for fused kernels (0 and −inf), built once per dtype.

        Given booleans, each kernel call would build its own and keep it for the backward pass: 4 · T · S bytes a layer.
        """
        found = None if self._biases is None else self._biases.get(dtype)
        if found is None:
            small = allowed[tuple(slice(1 if stride == 0 else None) for stride in allowed.stride())]  # not expanded
            found = torch.zeros(small.shape, dtype=dtype, device=small.device)
            found = found.masked_fill_(~small, float("-inf")).expand(allowed.shape)
            if self._biases is not None:
                self._biases[dtype] = found
        return found

    def matrix(self, n_queries: int, n_keys: int, *, device: torch.device | None = None) -> Tensor:
        """The mask: a boolean [B or 1, H or 1, T, S], True = may attend. Memory T × S.

        Raises `ValueError` if `key_documents_BS` is not given and the queries' documents do not fit (T ≠ S).
        """
        conditions: list[Tensor] = []
        key_1S = torch.arange(n_keys, device=device)[None]
        if self.causal or self.window is not None:
            query_1T = torch.arange(n_keys - n_queries, n_keys, device=device)[None]
            query_BT = query_1T if self.query_positions_BT is None else self.query_positions_BT
            key_BS = key_1S if self.key_positions_BS is None else self.key_positions_BS
            # Comparisons instead of a difference: a matrix of int64 distances would take eight times the bytes.
            query_B1T1, key_B11S = query_BT[:, None, :, None], key_BS[:, None, None, :]
            if self.causal:
                conditions.append(key_B11S <= query_B1T1)
            if self.window is not None:
                conditions.append(key_B11S > query_B1T1 - self.window)
            if self.window is not None and not self.causal:
                conditions.append(key_B11S < query_B1T1 + self.window)
        if self.lengths_B is not None:
            conditions.append((key_1S < self.lengths_B[:, None])[:, None, None])
        if self.query_documents_BT is not None:
            key_documents_BS = self.query_documents_BT if self.key_documents_BS is None else self.key_documents_BS
            if key_documents_BS.shape[-1] != n_keys:
                raise ValueError(f"{n_keys} keys, but documents of {key_documents_BS.shape[-1]}: give key_documents_BS")
            conditions.append((self.query_documents_BT[:, :, None] == key_documents_BS[:, None, :])[:, None])
        if self.allowed is not None:
            conditions.append(self.allowed[(None,) * (4 - self.allowed.ndim)])
        if not conditions:
            conditions.append(torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device))
        return reduce(and_, conditions).expand(-1, -1, n_queries, n_keys)

    def additive(
        self, n_queries: int, n_keys: int, *, dtype: torch.dtype, device: torch.device | None = None
    ) -> Tensor:
        """The mask as a bias to add to scores: 0 = may attend, −inf = hidden. For code of other libraries only."""
        allowed = self.matrix(n_queries, n_keys, device=device)
        return torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(~allowed, float("-inf"))


CAUSAL = Attend(causal=True)
EVERYONE = Attend()
