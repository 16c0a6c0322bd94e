"""Loading a model: from a model folder, or from a checkpoint of a run that has not ended."""

from __future__ import annotations

from pathlib import Path

from mingyue.api.caller import speaks_python
from mingyue.api.model import Model
from mingyue.api.translator import Translator
from mingyue.bundle import Bundle
from mingyue.runs.loading import DECODER_ONLY, ENCODER_DECODER, ModelKind, ModuleType, read_bundle, translates
from mingyue.runtime import Runtime, choose_runtime


@speaks_python()
def load(path: str | Path, *, device: str | None = None, threads: int | None = None, step: int | None = None) -> Model:
    """Load the decoder-only model of a model folder or run folder (the best checkpoint of a run that has not ended).

    `device` and `threads` as in the settings of a run. `step`: the model of a run after that many steps, where that
    checkpoint is kept. Raises `BundleError` (also for an encoder-decoder model), `CheckpointError`, `SettingsError`.
    """
    bundle, checkpoint, runtime = _load(DECODER_ONLY, path, device, threads, step)
    return Model(bundle, checkpoint=checkpoint, runtime=runtime)


@speaks_python()
def load_translator(
    path: str | Path, *, device: str | None = None, threads: int | None = None, step: int | None = None
) -> Translator:
    """Load the encoder-decoder model of a model folder or run folder.

    Arguments and errors as in `load`; raises `BundleError` also for a decoder-only model.
    """
    bundle, checkpoint, runtime = _load(ENCODER_DECODER, path, device, threads, step)
    return Translator(bundle, checkpoint=checkpoint, runtime=runtime)


@speaks_python()
def load_either(
    path: str | Path, *, device: str | None = None, threads: int | None = None, step: int | None = None
) -> Model | Translator:
    """Load whichever kind of model a folder holds. Arguments and errors as in `load`."""
    return (load_translator if translates(path) else load)(path, device=device, threads=threads, step=step)


def _load(
    kind: ModelKind[ModuleType], path: str | Path, device: str | None, threads: int | None, step: int | None
) -> tuple[Bundle[ModuleType], int | None, Runtime]:
    """The bundle; the step of its checkpoint where it is from a run that has not ended; the runtime for its calls."""
    runtime = choose_runtime(device, "fp32", threads)
    with runtime.applied():
        bundle, checkpoint = read_bundle(kind, path, runtime.device, step)
    return bundle, checkpoint, runtime
