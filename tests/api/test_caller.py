"""The process belongs to the caller: every public function leaves it as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_every_public_function_leaves_the_process_of_its_caller_as_it_was(tmp_path: Path) -> None:
    """T22: threads, random numbers, denormals, signals, warnings, environment and more, also when a call fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    program = Path(__file__).with_name("caller_program.py")
    found = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout.splitlines()[-1])
    assert len(told["changed"]) > 35
    assert {name: what for name, what in told["changed"].items() if what} == {}
    assert told["threads"] == 2, "OMP_NUM_THREADS is the default of load"
    assert told["steps"] == 4
