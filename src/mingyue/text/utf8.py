"""UTF-8 as an automaton: which tokens can follow a part of a character, for all tokens of a vocabulary at once.

The states are those of The Unicode Standard, table 3-7 (well-formed UTF-8). It has no overlong forms, no surrogates and
nothing above U+10FFFF, so the second byte of a character has a smaller range after E0, ED, F0 and F4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BOUNDARY = 0
"""The state between two characters."""
N_STATES = 8
INVALID = N_STATES
"""What a token leads to whose bytes cannot follow. It is not a state: no token may follow it."""

_ONE_LEFT, _TWO_LEFT, _THREE_LEFT = 1, 2, 3  # continuation bytes to come, each 80 to BF
_AFTER_E0, _AFTER_ED, _AFTER_F0, _AFTER_F4 = 4, 5, 6, 7
_RANGES = (  # state, first byte, last byte, next state
    (BOUNDARY, 0x00, 0x7F, BOUNDARY),
    (BOUNDARY, 0xC2, 0xDF, _ONE_LEFT),
    (BOUNDARY, 0xE0, 0xE0, _AFTER_E0),
    (BOUNDARY, 0xE1, 0xEC, _TWO_LEFT),
    (BOUNDARY, 0xED, 0xED, _AFTER_ED),
    (BOUNDARY, 0xEE, 0xEF, _TWO_LEFT),
    (BOUNDARY, 0xF0, 0xF0, _AFTER_F0),
    (BOUNDARY, 0xF1, 0xF3, _THREE_LEFT),
    (BOUNDARY, 0xF4, 0xF4, _AFTER_F4),
    (_ONE_LEFT, 0x80, 0xBF, BOUNDARY),
    (_TWO_LEFT, 0x80, 0xBF, _ONE_LEFT),
    (_THREE_LEFT, 0x80, 0xBF, _TWO_LEFT),
    (_AFTER_E0, 0xA0, 0xBF, _ONE_LEFT),
    (_AFTER_ED, 0x80, 0x9F, _ONE_LEFT),
    (_AFTER_F0, 0x90, 0xBF, _TWO_LEFT),
    (_AFTER_F4, 0x80, 0x8F, _TWO_LEFT),
)


def _byte_steps() -> npt.NDArray[np.uint8]:
    table = np.full((N_STATES + 1, 256), INVALID, dtype=np.uint8)
    for state, first, last, after in _RANGES:
        table[state, first : last + 1] = after
    return table


def utf8_steps(tokens: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """The state after each token in each state, or `INVALID`: [`N_STATES`, tokens]. A token without bytes changes none.

    The time is that of a few numpy operations for each byte of the longest token.
    """
    by_byte = _byte_steps()
    lengths = np.array([len(token) for token in tokens], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    steps = np.repeat(np.arange(N_STATES, dtype=np.uint8)[:, None], len(tokens), axis=1)
    for place in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)
        steps[:, longer] = by_byte[steps[:, longer], data[starts[longer] + place]]
    return steps
