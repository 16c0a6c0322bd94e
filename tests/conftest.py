"""For all tests: nothing is timed, and a test leaves the arithmetic of the process as it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _whole_arithmetic() -> Iterator[None]:
    """Choosing a runtime flushes numbers below 1e-38 to 0; Hypothesis, which draws such numbers, refuses then.

    It also takes all cores, for all tests that follow in this process: two processes of two threads on two cores wait
    for one another, many times as long.
    """
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
        if threads := os.environ.get("OMP_NUM_THREADS"):
            sys.modules["torch"].set_num_threads(int(threads))
