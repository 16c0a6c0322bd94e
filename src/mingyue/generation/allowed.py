"""The tokens that may come next: those that are never generated are removed, and those that would break UTF-8.

A text ends between two characters, or inside one: this is its state, from which and the token the next one follows
(`text.utf8`). Inside a character only tokens that continue it are left, and EOS is not among them. A state from which
no allowed token leads to the end of the character, because ids were never trained on, is not entered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mingyue.text.utf8 import BOUNDARY, INVALID

FloatArray = npt.NDArray[np.floating[Any]]


class AllowedTokens:
    """Removes tokens from logits. `steps_SV`: the table of `utf8_steps`; None = any bytes may follow any others."""

    def __init__(
        self,
        never: Collection[int],
        *,
        steps_SV: npt.NDArray[np.uint8] | None = None,
        vocab_size: int = 0,
        eos_id: int = 0,
    ) -> None:
        self._blocked: list[npt.NDArray[np.intp]] = [np.array(sorted(never), dtype=np.intp)]
        self._steps_SV: npt.NDArray[np.uint8] | None = None
        if steps_SV is not None:
            steps_SV = _of_width(steps_SV, vocab_size)
            self._blocked = [np.flatnonzero(blocked_V) for blocked_V in _blocked(steps_SV, never, eos_id)]
            self._steps_SV = np.where(steps_SV == INVALID, np.uint8(BOUNDARY), steps_SV)

    @property
    def blocked(self) -> Sequence[npt.NDArray[np.intp]]:
        """The tokens that may not follow, for each state; one list where any bytes may follow any others."""
        return self._blocked

    @property
    def steps(self) -> npt.NDArray[np.uint8] | None:
        """[S, V]: the state after a token, for each state before it; None where there is one state."""
        return self._steps_SV

    def remove(self, x_RV: FloatArray, states: Sequence[int]) -> None:
        """Set the logits (or log-probabilities) of tokens that may not follow to −infinity, in place."""
        for x_V, state in zip(x_RV, states, strict=True):
            x_V[self._blocked[state]] = -math.inf

    def after(self, state: int, token: int) -> int:
        """The state of a text in `state` after `token`."""
        return BOUNDARY if self._steps_SV is None else int(self._steps_SV[state, token])


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
