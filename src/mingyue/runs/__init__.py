"""Training runs on text or on pairs, from settings to verdict: what `mingyue train` and `mingyue resume` do.

`new_run` and `resumed_run` open a `Run`; `Run.train` trains it, judges the model and saves it.
"""

from mingyue.runs.paths import run_path
from mingyue.runs.result import RunResult
from mingyue.runs.run import Run
from mingyue.runs.run_config import pair_config, run_config
from mingyue.runs.start import new_run, resumed_run
from mingyue.runs.verdict import Outcome

__all__ = ["Outcome", "Run", "RunResult", "new_run", "pair_config", "resumed_run", "run_config", "run_path"]
