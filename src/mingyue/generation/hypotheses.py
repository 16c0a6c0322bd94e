"""Hypotheses of a translation and their scores, and the batch of source texts that a search starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mingyue.generation.allowed import AllowedTokens

_MAX_PENALTY = 1e300  # an enormous α must not turn −infinity into NaN


@dataclass(frozen=True)
class Hypothesis:
    """A target text, as ids."""

    ids: tuple[int, ...]
    """Every generated token, without BOS; a finished hypothesis ends with EOS, its only one."""
    log_prob: float
    """log P (natural) of all of `ids` under the model itself, EOS included."""
    score: float
    """log_prob / lp(length), by which hypotheses are ranked (`length_penalties`)."""
    finished: bool
    """Whether it ends with EOS; if not, it was cut at the length limit."""
    alignment: Tensor | None = field(default=None, compare=False)
    """[target tokens, source tokens]: cross-attention weights for each token of `ids`; each row sums to 1."""


class TokenMask:
    """`AllowedTokens` as tensors: the state of each text is an element of a tensor too."""

    def __init__(self, allowed: AllowedTokens, device: torch.device) -> None:
        self._at_boundary, *inside = (torch.from_numpy(blocked).to(device) for blocked in allowed.blocked)
        self._inside = inside
        steps_SV = allowed.steps
        self._steps_SV = None if steps_SV is None else torch.from_numpy(steps_SV).to(device)

    def remove(self, x_RV: Tensor, states_R: Tensor) -> None:
        """Set the logits (or log-probabilities) of tokens that may not follow to −infinity, in place."""
        inside_N = states_R.nonzero()[:, 0].tolist()
        before = [x_RV[row].clone() for row in inside_N]
        x_RV.index_fill_(1, self._at_boundary, -math.inf)
        for row, x_V in zip(inside_N, before, strict=True):
            x_RV[row] = x_V.index_fill_(0, self._inside[int(states_R[row]) - 1], -math.inf)

    def after_each(self, states_R: Tensor, tokens_R: Tensor) -> Tensor:
        """The state of each text after its token: states_R."""
        return torch.zeros_like(states_R) if self._steps_SV is None else self._steps_SV[states_R, tokens_R].long()


@dataclass(frozen=True)
class SourceBatch:
    """A batch of source texts, and the limits of their translations."""

    source_BS: Tensor
    lengths_B: Tensor | None
    """Tokens of each row; None when no row is padded."""
    limits: tuple[int, ...]
    """Maximum number of tokens to generate for each row."""
    bos_id: int
    eos_id: int
    allowed: AllowedTokens
    """The tokens that may come next."""
    mask: TokenMask
    """The same for many texts at once."""

    @classmethod
    def of(
        cls,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        *,
        bos_id: int,
        eos_id: int,
        pad_id: int,
        allowed: AllowedTokens,
        device: torch.device,
    ) -> SourceBatch:
        """Make a batch; rows of unequal length are padded on the right."""
        lengths = [len(source) for source in sources]
        longest = max(lengths)
        rows = [[*source, *[pad_id] * (longest - len(source))] for source in sources]
        return cls(
            torch.tensor(rows, device=device),
            None if min(lengths) == longest else torch.tensor(lengths, device=device),
            tuple(limits),
            bos_id,
            eos_id,
            allowed,
            TokenMask(allowed, device),
        )


def length_penalties(longest: int, alpha: float) -> list[float]:
    """lp(0) … lp(longest): lp(length) = ((5 + length) / (5 + 1))^α (Wu et al. 2016, section 7, equation 14).

    The length counts EOS. With α = 0 all are 1 and a score is the sum of log-probabilities.
    """
    lengths = torch.arange(longest + 1, dtype=torch.float64)
    return (((5.0 + lengths) / 6.0) ** alpha).clamp(max=_MAX_PENALTY).tolist()
