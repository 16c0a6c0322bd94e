"""What is searched for, and what a search begins with: hypotheses, their scores, source texts side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.errors import GenerationError

if TYPE_CHECKING:
    from mingyue.models import EncoderDecoder
    from mingyue.nn import MemoryKV

_MOST_PENALTY = 1e300  # an enormous α must not turn −infinity into NaN


@dataclass(frozen=True)
class Hypothesis:
    """A target text, as ids."""

    ids: tuple[int, ...]
    """Every token written, without the begin mark; if it ended, the end mark is the last and only one."""
    log_prob: float
    """log P (natural) of all of `ids` under the model itself, the end mark included."""
    score: float
    """log_prob / lp(length), by which hypotheses are compared (`length_penalties`)."""
    finished: bool
    """Whether it ended by itself; if not, the limit of its length cut it off."""
    alignment: Tensor | None = field(default=None, compare=False)
    """[target tokens, source tokens]: where the model looked for each token of `ids`; each row sums to 1."""


@dataclass(frozen=True)
class SourceBatch:
    """Source texts side by side, and what may be written for them."""

    source_BS: Tensor
    lengths_B: Tensor | None
    """Tokens of each row; None when no row is padded."""
    limits: tuple[int, ...]
    """Most tokens that may be written for each row."""
    bos_id: int
    eos_id: int
    never: Tensor
    """Ids that are never written."""

    @classmethod
    def of(
        cls,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        *,
        bos_id: int,
        eos_id: int,
        pad_id: int,
        never: Collection[int],
        device: torch.device,
    ) -> SourceBatch:
        """Rows of unequal length are padded on the right."""
        lengths = [len(source) for source in sources]
        longest = max(lengths)
        rows = [[*source, *[pad_id] * (longest - len(source))] for source in sources]
        return cls(
            torch.tensor(rows, device=device),
            None if min(lengths) == longest else torch.tensor(lengths, device=device),
            tuple(limits),
            bos_id,
            eos_id,
            torch.tensor(sorted(never), dtype=torch.long, device=device),
        )

    def remembered(self, model: EncoderDecoder) -> MemoryKV:
        """Read the source texts, once."""
        memory_BSM = model.encode(self.source_BS, source_lengths_B=self.lengths_B)
        return model.project_kv(memory_BSM, source_lengths_B=self.lengths_B)


def length_penalties(longest: int, alpha: float) -> list[float]:
    """lp(0) … lp(longest): lp(length) = ((5 + length) / (5 + 1))^α (Wu et al. 2016, section 7, equation 14).

    The length counts the end mark. With α = 0 all are 1 and a score is the sum of log-probabilities.
    """
    lengths = torch.arange(longest + 1, dtype=torch.float64)
    return (((5.0 + lengths) / 6.0) ** alpha).clamp(max=_MOST_PENALTY).tolist()


def no_choice() -> GenerationError:
    """The error of a model whose output says nothing."""
    return GenerationError(
        "the model's logits leave no token to choose: they are NaN or −infinity",
        advice="Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint.",
    )
