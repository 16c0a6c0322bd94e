"""The check that a run fits into memory, before it starts. It reports both numbers, and settings that would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from mingyue.config import TrainSettings
from mingyue.errors import SettingsError
from mingyue.words import stacked, tr

Estimate = Callable[[TrainSettings], int]
"""Peak bytes of a run with these settings."""
_LEAST_CONTEXT, _LEAST_WINDOW = 16, 64
_CGROUPS = Path("/sys/fs/cgroup")


def free_memory(device: torch.device, *, processes: int = 1) -> int | None:
    """Bytes that each of `processes` on this machine may still use; None if the device does not tell.

    On a CPU: what is available without swapping, within the limit of the container (cgroup version 1 or 2).
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]  # each process has its own
    if device.type != "cpu":
        return None
    import psutil

    left = [psutil.virtual_memory().available, *_container_left(_CGROUPS)]
    return max(0, min(left)) // processes


def _container_left(root: Path) -> Iterator[int]:
    """Bytes left by the limits of the control groups of this process: its own and those above it, where visible."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    own = [line.rpartition(":")[2].strip("/") for line in lines if ":memory:" in line or line.startswith("0::")]
    for base, limit, used in (
        (root, "memory.max", "memory.current"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for group in {base, *(above for name in own for above in (base / name, *(base / name).parents))}:
            if group != base and base not in group.parents:
                continue
            try:
                most, now = ((group / name).read_text(encoding="ascii").strip() for name in (limit, used))
            except OSError:
                continue
            if most.isdigit() and now.isdigit():
                # Cached pages of files count as used, but the system frees the inactive ones on demand.
                yield int(most) - int(now) + _idle_files(group)


def _idle_files(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    numbers = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(numbers.get("inactive_file", numbers.get("total_inactive_file", "0")))


def check_memory(settings: TrainSettings, estimate: Estimate, free: int | None) -> None:
    """Raise `SettingsError`, with settings that would fit, when a run needs more bytes than are `free`.

    The setting `memory_check` switches it off.
    """
    needed = estimate(settings)
    if not settings.run.memory_check or free is None or needed <= free:
        return
    fitting = [tr("  {options} ({size})", options, _spell(size)) for options, size in offers(settings, estimate, free)]
    advice = tr("A smaller --depth or --d-model would take less.")
    if fitting:
        advice = tr("What fits:\n") + stacked(fitting)
    raise SettingsError(
        tr("training would take about {needed} of memory, and {free} are free", _spell(needed), _spell(free)),
        advice=tr("{advice}\n--no-memory-check starts it anyway.", advice),
    )


def offers(settings: TrainSettings, estimate: Estimate, free: int) -> list[tuple[str, int]]:
    """Changes that make a run fit, as (options, bytes), each by itself; else two together."""
    found = list(_fitting(settings, estimate, free))
    if not found and not settings.batch.recompute:
        with_recompute = settings.with_flat(recompute=True)
        found = [(f"--recompute {options}", size) for options, size in _fitting(with_recompute, estimate, free)]
    return found


def _fitting(settings: TrainSettings, estimate: Estimate, free: int) -> Iterator[tuple[str, int]]:
    """The first value of each kind of change that fits."""
    for choices in _choices(settings):
        for changes in choices:
            size = estimate(settings.with_flat(**changes))
            if size <= free:
                yield " ".join(_option(name, value) for name, value in changes.items()), size
                break


def _choices(settings: TrainSettings) -> list[list[dict[str, object]]]:
    """The values of each kind of change, the smallest change first."""
    context = settings.model.context or 1
    micro = settings.batch.micro_batch_tokens or settings.batch.batch_tokens or context
    choices: list[list[dict[str, object]]] = []
    if settings.model.attention_dropout:
        choices.append([{"attention_dropout": 0.0}])
    if not settings.data.attend_across_documents:
        choices.append([{"attend_across_documents": True}])
    if settings.batch.chunked_loss is not True:
        choices.append([{"chunked_loss": True}])
    if not settings.batch.recompute:
        choices.append([{"recompute": True}])
    if not settings.pairs.given:
        rows = max(1, micro // context)
        choices.append([{"micro_batch_tokens": n * context} for n in _halves(rows, 1)])
        choices.append([{"window": n} for n in _halves(min(settings.model.window or context, context), _LEAST_WINDOW)])
        choices.append([{"context": n, "micro_batch_tokens": n} for n in _halves(context, _LEAST_CONTEXT)])
    else:
        choices.append([{"micro_batch_tokens": n} for n in _halves(micro, context)])
    return choices


def _halves(value: int, least: int) -> Iterator[int]:
    while (value := value // 2) >= least:
        yield value


def _option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {value:g}" if isinstance(value, float) else f"{option} {value}"


def _spell(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
