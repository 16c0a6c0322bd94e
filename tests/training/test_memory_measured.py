"""The estimate of memory against the peak of real steps, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "contexts.py"


def settings_measured() -> list:
    spec = spec_from_file_location("contexts", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TEN


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the shares that a heap loses are those of glibc")
@pytest.mark.parametrize("case", settings_measured(), ids=lambda case: f"{case[0]['preset']}-{case[0]['context']}")
def test_the_estimate_is_within_15_percent_of_the_peak(case):
    """Ten settings: presets, windows, recomputing, loss whole or in pieces, dropout, both optimisers, pairs."""
    given, rows, words = case
    steps = 1 if given["context"] > 16384 else 2  # the optimiser's state is there from the second on
    call = [sys.executable, str(BENCH), "--child", json.dumps([given | {"threads": 1}, rows, words, steps])]
    found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    assert found["peak"] > 0.9 * 2**30
    assert found["estimate"] == pytest.approx(found["peak"], rel=0.15)
