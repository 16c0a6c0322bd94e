"""What run.toml records of a new run besides its sizes: its folder and its threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mingyue.config import TrainSettings
from mingyue.paths import path_of
from mingyue.runtime import Runtime
from mingyue.training.threads import are_chosen

_LONGEST = 60  # characters of the name of a folder


def run_path(settings: TrainSettings) -> Path:
    """The folder of a run: `--out`, or runs/<name of the first source>."""
    if settings.run.out is not None:
        return path_of(settings.run.out)
    pairs = settings.pairs
    files: Sequence[str] = settings.data.sources or pairs.source or pairs.pairs
    first = files[0].removesuffix(".gz")
    names = ["stdin"] if first == "-" else [Path(first).stem, Path(first).parent.name]
    cleaned = (re.sub(r"[^\w.-]+", "-", name).strip("-.") for name in names)
    return Path("runs") / next(filter(None, cleaned), "run")[:_LONGEST]


def chosen_threads(settings: TrainSettings, runtime: Runtime) -> int | None:
    """The threads that are recorded: those of the runtime, if they are not measured later (`Run.train` records those).

    Of a run on several processes only those that were given, since their share depends on the number of processes.
    """
    measured = runtime.world_size > 1 or are_chosen(settings, runtime)
    return settings.run.threads if measured else runtime.threads
