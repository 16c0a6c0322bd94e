"""Training runs on text or on pairs, from settings to verdict: what `mingyue train` and `mingyue resume` do.

`new_run` and `resumed_run` open a `Run`; `Run.train` trains it, judges the model and saves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mingyue.lazy import lazy_names

if TYPE_CHECKING:
    from mingyue.runs.model_configs import pair_config, run_config
    from mingyue.runs.paths import run_path
    from mingyue.runs.result import RunResult
    from mingyue.runs.run import Run
    from mingyue.runs.start import new_run, resumed_run
    from mingyue.runs.verdict import Outcome

__all__ = [
    "Outcome",
    "Run",
    "RunResult",
    "new_run",
    "pair_config",
    "resumed_run",
    "run_config",
    "run_path",
]

__getattr__ = lazy_names(
    __name__,
    {
        "paths": ("run_path",),
        "result": ("RunResult",),
        "run": ("Run",),
        "model_configs": ("pair_config", "run_config"),
        "start": ("new_run", "resumed_run"),
        "verdict": ("Outcome",),
    },
)
