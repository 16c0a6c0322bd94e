"""The tokens that may come next: those that are never generated are removed, and those that would break UTF-8.

A text ends between two characters, or inside one: this is its state, from which and the token the next one follows
(`text.utf8`). Inside a character only tokens that continue it are left, and EOS is not among them. A state from which
no allowed token leads to the end of the character, because ids were never trained on, is not entered.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mingyue.text.utf8 import BOUNDARY, INVALID


class AllowedTokens:
    """Removes tokens from logits. `steps_SV`: the table of `utf8_steps`; None = any bytes may follow any others."""

    def __init__(
        self,
        never: Collection[int],
        *,
        device: torch.device,
        steps_SV: npt.NDArray[np.uint8] | None = None,
        vocab_size: int = 0,
        eos_id: int = 0,
    ) -> None:
        self._steps_SV: npt.NDArray[np.uint8] | None = None
        self._device_steps_SV = self._blocked_SV = torch.empty(0, device=device)
        if steps_SV is not None:
            steps_SV = _of_width(steps_SV, vocab_size)
            blocked_SV = _blocked(steps_SV, never, eos_id)
            never = np.flatnonzero(blocked_SV[BOUNDARY]).tolist()
            self._blocked_SV = torch.from_numpy(blocked_SV).to(device)
            self._steps_SV = np.where(steps_SV == INVALID, np.uint8(BOUNDARY), steps_SV)
            self._device_steps_SV = torch.from_numpy(self._steps_SV).to(device)
        self._never = torch.tensor(sorted(never), dtype=torch.long, device=device)

    def remove(self, x_RV: Tensor, states_R: Tensor) -> None:
        """Set the logits (or log-probabilities) of tokens that may not follow to −infinity, in place."""
        inside_N = states_R.nonzero()[:, 0]
        before_NV = x_RV[inside_N]
        x_RV.index_fill_(1, self._never, -math.inf)
        if len(inside_N):
            x_RV[inside_N] = before_NV.masked_fill(self._blocked_SV[states_R[inside_N]], -math.inf)

    def after(self, state: int, token: int) -> int:
        """The state of a text in `state` after `token`."""
        return BOUNDARY if self._steps_SV is None else int(self._steps_SV[state, token])

    def after_each(self, states_R: Tensor, tokens_R: Tensor) -> Tensor:
        """The same for many texts: states_R."""
        return (
            torch.zeros_like(states_R) if self._steps_SV is None else self._device_steps_SV[states_R, tokens_R].long()
        )


def _of_width(steps_SV: npt.NDArray[np.uint8], vocab_size: int) -> npt.NDArray[np.uint8]:
    """The table for the ids of the model; those that the tokenizer does not have are not text."""
    n_missing = max(0, vocab_size - steps_SV.shape[1])
    return np.pad(steps_SV[:, :vocab_size], ((0, 0), (0, n_missing)), constant_values=INVALID)


def _blocked(steps_SV: npt.NDArray[np.uint8], never: Collection[int], eos_id: int) -> npt.NDArray[np.bool_]:
    """Which tokens may not follow in which state."""
    blocked_SV = np.zeros(steps_SV.shape, dtype=bool)
    blocked_SV[:, list(never)] = True
    if eos_id < steps_SV.shape[1]:
        blocked_SV[BOUNDARY + 1 :, eos_id] = True
    completes = np.zeros(INVALID + 1, dtype=bool)
    completes[BOUNDARY] = True
    for _ in range(len(steps_SV)):  # a character has 4 bytes at most
        leads_SV = completes[steps_SV] & ~blocked_SV
        completes[: len(steps_SV)] |= leads_SV.any(axis=1)
    return blocked_SV | ~completes[steps_SV]
