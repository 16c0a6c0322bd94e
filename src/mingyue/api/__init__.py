"""Everything that a verb of the command line does, as a function."""

from __future__ import annotations

from mingyue.api.info import Info, describe, info
from mingyue.api.model import Model, load
from mingyue.api.outcome import Outcome
from mingyue.api.run import RunResult, resume, run_path, train
from mingyue.data import data_folder
from mingyue.diagnostics import Diagnosis, diagnose


def doctor() -> Diagnosis:
    """Look at this machine: versions, cores, speed, memory, disk, what is missing."""
    return diagnose(data_folder=data_folder())


__all__ = [
    "Diagnosis",
    "Info",
    "Model",
    "Outcome",
    "RunResult",
    "describe",
    "doctor",
    "info",
    "load",
    "resume",
    "run_path",
    "train",
]
