"""A function for each command of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mingyue.lazy import lazy_names

if TYPE_CHECKING:
    from mingyue.api.demo import TranslateDemo, text_demo, translate_demo
    from mingyue.api.inspecting import Inspection, curve, inspect
    from mingyue.api.loading import load, load_either, load_translator
    from mingyue.api.model import Model
    from mingyue.api.model_info import Info, describe, info
    from mingyue.api.repeating import repetition
    from mingyue.api.run import processes_of_run, resume, train
    from mingyue.api.translator import TranslationReport, Translator, one_line
    from mingyue.diagnostics import Diagnosis
    from mingyue.runs import Outcome, RunResult, run_path
    from mingyue.runs.loading import translates


def doctor() -> Diagnosis:
    """Check this machine: versions, cores, speed, memory, disk, missing packages."""
    from mingyue.data import data_folder
    from mingyue.diagnostics import diagnose

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

__getattr__ = lazy_names(
    __name__,
    {
        "demo": ("TranslateDemo", "text_demo", "translate_demo"),
        "model_info": ("Info", "describe", "info"),
        "inspecting": ("Inspection", "curve", "inspect"),
        "loading": ("load", "load_either", "load_translator"),
        "model": ("Model",),
        "repeating": ("repetition",),
        "run": ("processes_of_run", "resume", "train"),
        "translator": ("TranslationReport", "Translator", "one_line"),
        "mingyue.diagnostics": ("Diagnosis",),
        "mingyue.runs": ("Outcome", "RunResult", "run_path"),
        "mingyue.runs.loading": ("translates",),
    },
)
