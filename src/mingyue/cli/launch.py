"""`--nproc`: starts the same command in several processes, with torchrun's launcher, and reports worker failures.

Only rank 0 prints. A process that ends deliberately (finished, stopped, an error that the user can correct) writes its
exit code to a file and exits with 0, so that the launcher does not restart it.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import tempfile
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mingyue.cli.invocation import ARGUMENTS, FAULT, INTERRUPTED, OK
from mingyue.errors import TrainingError
from mingyue.interrupts import HANGUP, is_ignored
from mingyue.runtime import LAUNCH_FOLDER, processes
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.api import RunResult
    from mingyue.config import RunSettings
    from mingyue.training import Observer

"""Environment variable: folder in which the processes of `--nproc` leave their exit codes."""
_SECONDS_TO_END = 20
"""Time for the other processes to end after a worker failure, before they are killed."""


def is_launched() -> bool:
    """Whether this process was started by `--nproc`."""
    return LAUNCH_FOLDER in os.environ


def hand_over(code: int) -> int:
    """Pass the exit code to the launcher, if `--nproc` started this process; returns the code to exit with."""
    if not is_launched():
        return code
    place = processes()
    (Path(os.environ[LAUNCH_FOLDER]) / f"{place.restarts}-{place.rank}").write_text(str(code), encoding="ascii")
    return code if code == FAULT else OK


@contextmanager
def progress_screen() -> Generator[tuple[Observer | None, float]]:
    """The progress display (None in ranks other than 0), and the seconds since the user started the command."""
    if processes().rank:
        yield None, 0.0
        return
    from mingyue.cli.progress import RunScreen

    with RunScreen() as screen:
        yield screen, _waited()


def report(result: RunResult) -> int:
    """Show how a run ended, in rank 0; returns the exit code."""
    if processes().rank:
        return INTERRUPTED if result.training.reason == "stopped" else OK
    from mingyue.cli.verdict import show_result

    return show_result(result)


def _waited() -> float:
    """Seconds since the user started the command, launcher included."""
    from mingyue.runtime import seconds_since_process_start

    return seconds_since_process_start(os.getppid() if is_launched() and not processes().restarts else None)


def needs_launch(settings: RunSettings) -> bool:
    """Whether this process has to start the processes of the run."""
    return settings.nproc > 1 and processes().launch is None


def launch(settings: RunSettings, folder: str | Path) -> int:
    """Start the processes that `settings` ask for, each with the command line of this one; returns their exit code.

    Raises `TrainingError` that names the process that failed.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # failures are reported here
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=settings.nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=settings.restarts,
        shutdown_timeout=_SECONDS_TO_END,
        signals_to_handle="SIGQUIT",  # one must be given; those of `_signals_passed_on` stay ours
    )
    with tempfile.TemporaryDirectory(prefix="mingyue-") as handed, _signals_passed_on():
        os.environ[LAUNCH_FOLDER] = handed
        try:
            elastic_launch(config, sys.executable)("-m", "mingyue", *ARGUMENTS.get())
        except ChildFailedError as error:
            return _explain(error.failures, _codes(Path(handed)), settings, folder)
        finally:
            del os.environ[LAUNCH_FOLDER]
        return _codes(Path(handed)).get(0, OK)


@contextmanager
def _signals_passed_on() -> Generator[None]:
    """Forward Ctrl-C, SIGTERM and SIGHUP to the processes, which save and stop; a second one ends them at once."""
    import psutil

    asked = False

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            if number == HANGUP:  # a closed terminal may send several
                return
            raise KeyboardInterrupt
        asked = True
        for process in psutil.Process().children():
            process.send_signal(signal.SIGINT)

    hangup = () if HANGUP is None or is_ignored(HANGUP) else (HANGUP,)
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _codes(handed: Path) -> dict[int, int]:
    """Exit codes by rank, of the processes that ended deliberately since the last restart."""
    found = {tuple(map(int, path.name.split("-"))): int(path.read_text(encoding="ascii")) for path in handed.iterdir()}
    latest = max((restart for restart, _ in found), default=0)
    return {rank: code for (restart, rank), code in found.items() if restart == latest}


def _explain(failures: Mapping[int, Any], codes: Mapping[int, int], settings: RunSettings, folder: str | Path) -> int:
    """Raise `TrainingError` that names the process that failed first, and why.

    Returns an exit code where the processes have reported the error themselves.
    """
    died = {rank: failure for rank, failure in failures.items() if rank not in codes}
    if not died:
        said = [code for code in codes.values() if code not in (OK, FAULT)]
        return said[0] if said else FAULT
    rank, failure = min(died.items(), key=lambda one: (one[1].exitcode == -signal.SIGTERM, one[0]))
    if failure.exitcode < 0:
        what = tr("was killed ({signal_name})", failure.signal_name())
    else:
        what = tr("failed with exit code {exitcode}", failure.exitcode)
    again = (
        tr(", after {restarts} restart{plural}", settings.restarts, "s" * (settings.restarts != 1))
        if settings.restarts
        else ""
    )
    hint = tr(", probably out of memory") if failure.exitcode == -signal.SIGKILL else ""
    raise TrainingError(
        tr(
            "rank {rank} of {nproc} (process {pid}) {what}{hint}{again}; the others were stopped",
            rank,
            settings.nproc,
            failure.pid,
            what,
            hint,
            again,
        ),
        advice=tr(
            "Resume from the last checkpoint: mingyue resume {folder}. With --restarts N the "
            "processes are restarted automatically.",
            shlex.quote(str(folder)),
        ),
    )
