"""Runs on several processes: whether they were started, their threads, and the restart after one of them fails."""

from __future__ import annotations

from pathlib import Path

from mingyue.config import TrainSettings
from mingyue.errors import SettingsError
from mingyue.files import write_text_atomically
from mingyue.runtime import available_cores, processes
from mingyue.training import RunFolder
from mingyue.training.storage import disk_errors
from mingyue.words import tr

_LAUNCH = "launch.id"


def check_processes(settings: TrainSettings) -> None:
    """Raise `SettingsError` if `nproc` asks for several processes and this is the only one."""
    wanted, started = settings.run.nproc, processes()
    if wanted > 1 and started.launch is None and started.size == 1:
        raise SettingsError(
            tr("the run asks for {wanted} processes, and this is one", wanted),
            advice=tr(
                "On the command line --nproc {wanted} starts them. From Python, start the program "
                "with torchrun --nproc-per-node {wanted}, or give nproc=1.",
                wanted,
            ),
        )


def fitting_threads(old: TrainSettings, settings: TrainSettings) -> TrainSettings:
    """`settings` of a resumed run, without threads that were chosen for fewer processes than there are now."""
    threads, started = settings.run.threads, processes()
    share = max(1, available_cores() // started.local_size)
    if started.local_size != old.run.nproc and threads is not None and started.size > 1 and threads > share:
        return settings.with_flat(threads=None)
    return settings


def note_launch(folder: RunFolder) -> None:
    """Record which launch started the processes of a new run."""
    launch = processes().launch
    if launch is not None:
        path = folder.path / _LAUNCH
        with disk_errors(tr("the name of the launch"), path):
            write_text_atomically(path, launch + "\n")


def was_started_by_this_launch(path: Path) -> bool:
    """Whether the run in `path` was started by the launch of these processes, and can be resumed."""
    launch, noted = processes().launch, path / _LAUNCH
    if launch is None or not noted.is_file():
        return False
    return noted.read_text(encoding="utf-8").strip() == launch and RunFolder(path).begun
