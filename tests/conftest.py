"""For all tests: nothing is timed, and a test leaves the arithmetic of the process as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
_DENORMAL = 5e-324  # compares as 0 while denormals are flushed


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept in the user's cache folder is not read or written by tests, nor by the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
            patch.setenv(name, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _arithmetic_as_before() -> Iterator[None]:
    """No function leaves denormals flushed (Hypothesis, which draws them, refuses then) or other threads."""
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    yield
    assert _DENORMAL > 0.0
    if torch is not None:
        found = torch.get_num_threads()
        torch.set_num_threads(threads)
        assert found == threads
