"""Loading a model: from a model folder, or from a checkpoint of a run that has not ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mingyue.api.caller import speaks_python
from mingyue.api.model import Model
from mingyue.bundle import Bundle, open_bundle
from mingyue.config import ModelConfig, Workers, checked
from mingyue.errors import MingyueError
from mingyue.generation.backends import check_choice, kept_onnx_model, missing_package
from mingyue.paths import path_of
from mingyue.runtime import Runtime, choose_runtime, default_threads, has_only_cpu, processes

if TYPE_CHECKING:
    from mingyue.api.translator import Translator
    from mingyue.generation.backends import BackendKind
    from mingyue.graphs import WeightKind
    from mingyue.runs.loading import ModelKind, ModuleType


@speaks_python()
def load(
    path: str | Path,
    *,
    device: str | None = None,
    threads: int | None = None,
    step: int | None = None,
    backend: BackendKind | None = None,
    weights: WeightKind = "fp32",
) -> Model:
    """Load the decoder-only model of a model folder or run folder (the best checkpoint of a run that has not ended).

    `device` and `threads` as in the settings of a run. `step`: the model of a run after that many steps, where that
    checkpoint is kept. `backend`: what generates, `torch` or `onnxruntime`; default: onnxruntime on the CPU, where it
    is installed and can compute the model. `weights` int8: the numbers of the weights in generation, with onnxruntime.
    Raises `BundleError` (also for an encoder-decoder model), `CheckpointError`, `SettingsError`.
    """
    check_choice(backend, weights)
    checked("threads", threads, Workers | None)
    if step is None and backend != "torch" and has_only_cpu(device) and missing_package() is None:
        model = _load_without_torch(path_of(path), threads or default_threads(processes()), backend, weights)
        if model is not None:
            return model
    from mingyue.runs.loading import DECODER_ONLY

    bundle, checkpoint, runtime = _load(DECODER_ONLY, path, device, threads, step)
    return Model(bundle, checkpoint=checkpoint, runtime=runtime, backend=backend, weights=weights)


def _load_without_torch(path: Path, threads: int, backend: BackendKind | None, weights: WeightKind) -> Model | None:
    """A model whose graph was checked before; its PyTorch module is made when it is asked for.

    None where anything is unusual: then the ordinary way loads the model, or says what is wrong.
    """
    folder = path if (path / "config.json").is_file() else path / "model"
    try:
        bundle, arrays = open_bundle(folder, of_pairs=False)
        assert isinstance(bundle.config, ModelConfig)
        if arrays is None or bundle.weights_sha256 is None:
            return None
        opened = kept_onnx_model(bundle.config, arrays, kind=weights, threads=threads, sha256=bundle.weights_sha256)
        if opened is None:
            return None
        return Model(bundle, threads=threads, backend=backend, weights=weights, opened=opened)
    except (MingyueError, OSError, ValueError):
        return None


@speaks_python()
def load_translator(
    path: str | Path,
    *,
    device: str | None = None,
    threads: int | None = None,
    step: int | None = None,
    backend: BackendKind | None = None,
    weights: WeightKind = "fp32",
) -> Translator:
    """Load the encoder-decoder model of a model folder or run folder.

    Arguments and errors as in `load`; raises `BundleError` also for a decoder-only model.
    """
    check_choice(backend, weights)
    from mingyue.api.translator import Translator
    from mingyue.runs.loading import ENCODER_DECODER

    bundle, checkpoint, runtime = _load(ENCODER_DECODER, path, device, threads, step)
    return Translator(bundle, checkpoint=checkpoint, runtime=runtime, backend=backend, weights=weights)


@speaks_python()
def load_either(
    path: str | Path, *, device: str | None = None, threads: int | None = None, step: int | None = None
) -> Model | Translator:
    """Load whichever kind of model a folder holds. Arguments and errors as in `load`."""
    from mingyue.runs.loading import translates

    return (load_translator if translates(path) else load)(path, device=device, threads=threads, step=step)


def _load(
    kind: ModelKind[ModuleType], path: str | Path, device: str | None, threads: int | None, step: int | None
) -> tuple[Bundle[ModuleType], int | None, Runtime]:
    """The bundle; the step of its checkpoint where it is from a run that has not ended; the runtime for its calls."""
    from mingyue.runs.loading import read_bundle

    runtime = choose_runtime(device, "fp32", threads)
    with runtime.applied():
        bundle, checkpoint = read_bundle(kind, path, runtime.device, step)
    return bundle, checkpoint, runtime
