"""What a decoder remembers of a source text: keys and values for the cross-attention of each of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mingyue.nn.attend import Attend


@dataclass
class Memory:
    """Made once a text (`EncoderDecoder.remember`), read for every token that is written."""

    keys: list[Tensor]
    """One key_BGSD for each layer of the decoder."""
    values: list[Tensor]
    """One value_BGSD for each layer of the decoder."""
    attend: Attend
    """Hides the padding of shorter source texts."""

    @property
    def rows(self) -> int:
        """Source texts."""
        return self.keys[0].shape[0]

    def keep(self, rows: Sequence[int]) -> Memory:
        """The memory of some of the rows, in the order given."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.keys[0].device)
        allowed = self.attend.allowed
        return Memory(
            [key_BGSD.index_select(0, index) for key_BGSD in self.keys],
            [value_BGSD.index_select(0, index) for value_BGSD in self.values],
            self.attend if allowed is None else replace(self.attend, allowed=allowed.index_select(0, index)),
        )
