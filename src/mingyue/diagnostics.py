"""What this machine has, how fast it is, and what is missing. Values only; the command line prints them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mingyue
from mingyue.runtime import available_cores
from mingyue.words import tr

EXTRAS = {
    "data": ("pyarrow", "fsspec", "huggingface_hub", "opencc"),
    "fast": ("onnxruntime", "onnx"),
    "hf": ("transformers",),
    "plot": ("altair", "vl_convert", "PIL"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "eval": ("lm_eval",),
    "track": ("tensorboard",),
    "translate": ("sacrebleu",),
}
"""The importable names behind each extra of pyproject.toml."""

_CORE = ("torch", "numpy", "tokenizers", "safetensors", "pydantic", "cyclopts", "rich", "charset-normalizer", "psutil")
_GB = 1e9
_GAIN = 1.1  # ratio to one thread below which more threads are no use
_LOW_MEMORY, _LOW_DISK = 2 * _GB, 2 * _GB


@dataclass(frozen=True)
class Finding:
    """One line of the report. `warning` says what is wrong and what to do about it, if anything."""

    topic: str
    value: str
    warning: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order in which they are shown."""

    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> list[str]:
        """The warnings of all findings."""
        return [finding.warning for finding in self.findings if finding.warning is not None]

    def to_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON."""
        return {"findings": [asdict(finding) for finding in self.findings], "warnings": self.warnings}


def diagnose(folder: Path | None = None, *, data_folder: Path | None = None) -> Diagnosis:
    """Check the machine (about two seconds, mostly the import of torch and a short speed measurement).

    `folder` is where runs are written (default: the current folder); `data_folder` is where known corpora are kept.
    """
    folder = Path.cwd() if folder is None else folder
    return Diagnosis(
        (
            *_versions(),
            *_processor(),
            *_accelerators(),
            *_memory(),
            *_disk(tr("disk"), folder),
            *(() if data_folder is None else _disk(tr("data folder"), data_folder)),
            *_backend(),
            *_extras(),
            *_terminal(),
        )
    )


def _versions() -> Iterator[Finding]:
    yield Finding("mingyue", mingyue.__version__)
    yield Finding("python", tr("{python_version} on {platform}", platform.python_version(), platform.platform()))
    for name in _CORE:
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                name,
                tr("missing"),
                tr("{name} is missing: install mingyue again (pip install --force-reinstall).", name),
            )


def _processor() -> Iterator[Finding]:
    usable, present = available_cores(), os.cpu_count() or 1
    yield Finding(tr("cores"), tr("{usable} of {present} usable", usable, present))
    quota = _container_cores()
    if quota is not None and quota < usable:
        advice = tr(
            "This container may use {quota:.1f} cores, but sees {usable}. Use --threads {max}.",
            quota,
            usable,
            max(1, int(quota)),
        )
        yield Finding(tr("container limit"), tr("{quota:.1f} cores", quota), advice)
    busy = _load()
    if busy is not None and busy > usable * 0.8:
        yield Finding(
            tr("load"),
            f"{busy:.1f}",
            tr("Other programs use the processor: training will be slower. Stop them if you can."),
        )
    speeds = {threads: _matrix_speed(threads) / 1e9 for threads in sorted({1, usable})}
    for threads, speed in speeds.items():
        value = tr("{speed:.0f} GFLOP/s with --threads {threads}, measured now", speed, threads)
        advice = None
        if speed < _GAIN * speeds[1] and threads > 1:
            advice = tr(
                "{threads} threads are not faster than one here ({speed:.0f} and {speeds:.0f} "
                "GFLOP/s). Use --threads 1, or set OMP_NUM_THREADS=1; a new run measures its own "
                "number of threads.",
                threads,
                speed,
                speeds[1],
            )
        yield Finding(tr("matrix product, fp32"), value, advice)


def _matrix_speed(threads: int) -> float:
    """FLOP/s of fp32 matrix products, measured as training measures it to plan a run."""
    import torch

    from mingyue.training import measure_peak

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return measure_peak("cpu")
    finally:
        torch.set_num_threads(before)


def _container_cores() -> float | None:
    """The limit of a Linux control group on the number of cores, if there is one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _accelerators() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            yield Finding(f"cuda:{index}", f"{device.name}, {device.total_memory / _GB:.0f} GB")
    elif shutil.which("nvidia-smi"):
        advice = tr("There is an NVIDIA driver, but this torch cannot use it. Install a CUDA build of torch.")
        yield Finding("cuda", tr("not usable"), advice)
    else:
        yield Finding("cuda", tr("none"))
    if sys.platform == "darwin":
        yield Finding("mps", tr("yes") if torch.backends.mps.is_available() else tr("none"))


def _backend() -> Iterator[Finding]:
    """What generates on this machine."""
    from mingyue.generation.backends import missing_package
    from mingyue.runtime import choose_runtime

    device, missing = choose_runtime().device.type, missing_package()
    topic = tr("generation")
    if device != "cpu":
        yield Finding(topic, tr("torch, on {device}", device))
    elif missing is None:
        version = importlib.metadata.version("onnxruntime")
        yield Finding(topic, tr("onnxruntime {version}; for models that it cannot compute: torch", version))
    else:
        advice = tr('{missing}: generation is several times slower. Install: pip install "mingyue[fast]"', missing)
        yield Finding(topic, "torch", advice)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    warning = None
    if memory.available < _LOW_MEMORY:
        warning = tr(
            "Only {available:.1f} GB of memory are free. Close programs, or train a smaller model.",
            memory.available / _GB,
        )
    yield Finding(
        tr("memory"),
        tr("{available:.1f} of {total:.1f} GB free", memory.available / _GB, memory.total / _GB),
        warning,
    )


def _disk(topic: str, folder: Path) -> Iterator[Finding]:
    existing = next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), None)
    if existing is None:
        yield Finding(
            topic, tr("{folder}: missing", folder), tr("{folder} cannot be created. Choose another folder.", folder)
        )
        return
    free = shutil.disk_usage(existing).free
    warning = None
    if free < _LOW_DISK:
        warning = tr(
            "Only {free:.1f} GB are free at {existing}: checkpoints may not fit. Free disk space.", free / _GB, existing
        )
    elif not os.access(existing, os.W_OK):
        warning = tr("{existing} is not writable. Choose another folder.", existing)
    yield Finding(topic, tr("{free:.1f} GB free at {folder}", free / _GB, folder), warning)


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        value = (
            tr("installed")
            if not missing
            else tr("without {missing} (pip install 'mingyue[{extra}]')", ", ".join(missing), extra)
        )
        yield Finding(tr("extra: {extra}", extra), value)


def _terminal() -> Iterator[Finding]:
    encoding = (getattr(sys.stdout, "encoding", None) or "unknown").lower()
    warning = None
    if not encoding.replace("-", "").startswith("utf8"):
        warning = tr("This terminal uses {encoding}: characters that it lacks appear as ?. Try PYTHONUTF8=1.", encoding)
    yield Finding(tr("terminal"), encoding, warning)
