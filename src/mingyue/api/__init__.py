"""A function for each command of the command line."""

from __future__ import annotations

from mingyue.api.demo import TranslateDemo, text_demo, translate_demo
from mingyue.api.info import Info, describe, info
from mingyue.api.inspect import Inspection, curve, inspect
from mingyue.api.loading import load, load_either, load_translator
from mingyue.api.model import Model
from mingyue.api.repetition import repetition
from mingyue.api.run import processes_of_run, resume, train
from mingyue.api.translator import TranslationReport, Translator, one_line
from mingyue.data import data_folder
from mingyue.diagnostics import Diagnosis, diagnose
from mingyue.runs import Outcome, RunResult, run_path
from mingyue.runs.loading import translates


def doctor() -> Diagnosis:
    """Check this machine: versions, cores, speed, memory, disk, missing packages."""
    return diagnose(data_folder=data_folder())


__all__ = [
    "Diagnosis",
    "Info",
    "Inspection",
    "Model",
    "Outcome",
    "RunResult",
    "TranslateDemo",
    "TranslationReport",
    "Translator",
    "curve",
    "describe",
    "doctor",
    "info",
    "inspect",
    "load",
    "load_either",
    "load_translator",
    "one_line",
    "processes_of_run",
    "repetition",
    "resume",
    "run_path",
    "text_demo",
    "train",
    "translate_demo",
    "translates",
]
