"""For all tests: nothing is timed, and a test leaves the arithmetic of the process as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _whole_arithmetic() -> Iterator[None]:
    """Choosing a runtime flushes numbers below 1e-38 to 0; Hypothesis, which draws such numbers, refuses then."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
