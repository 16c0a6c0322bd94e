"""Weights in safetensors files: read into memory of this process, and checked before a model is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import psutil
import torch
from safetensors import SafetensorError
from torch import Tensor

from mingyue.config import EncoderDecoderConfig
from mingyue.errors import BundleError
from mingyue.models.build import Transformer, TransformerConfig, empty_model, table_bytes
from mingyue.models.size import sizes
from mingyue.models.weights_file import WeightsFile, cannot_read
from mingyue.words import tr

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_SMALL = 1 << 20  # parameters for which a wrong tensor is named, however small the file is


def read_weights_file(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises as `WeightsFile`."""
    with WeightsFile(path) as file:
        return {name: _read(file, name) for name in file.stored}


def _read(file: WeightsFile, name: str) -> Tensor:
    found = file.stored[name]
    if found.n_bytes == 0:
        return torch.empty(found.shape, dtype=_DTYPES[found.dtype], device="cpu")
    return torch.from_numpy(file.read(name)).view(_DTYPES[found.dtype]).reshape(found.shape)


def first_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity; None if all are finite."""
    return next((name for name, weight in weights.items() if not bool(torch.isfinite(weight).all())), None)


def read_model(
    path: Path, config: TransformerConfig, *, device: torch.device | str
) -> tuple[Transformer, tuple[str, ...]]:
    """(the model of `config` with the weights of a safetensors file, in evaluation mode; notes about conversions).

    What the config asks for is compared with the file before memory is taken for it. Raises `BundleError` that names
    the first tensor that is missing, unexpected, of a wrong shape, not of real numbers, or not finite.
    """
    try:
        with WeightsFile(path) as file:
            _check_sizes(path, file, config)
            model = empty_model(config, device)
            _check_header(path, file, model)
            weights = {name: _read(file, name) for name in file.stored}
    except OSError as error:
        raise cannot_read(path, error) from error
    except SafetensorError as error:
        raise BundleError(
            tr("{path} is damaged: {error}", path, error),
            advice=tr("Copy it again, or use another checkpoint."),
        ) from error
    converted = [name for name, weight in weights.items() if weight.dtype is not torch.float32]
    notes = []
    if converted:
        kind, others = _name_of(weights[converted[0]].dtype), len(converted) - 1
        also = tr(" and {others:,} more", others) if others else ""
        notes.append(tr("Tensor {converted} ({kind}){also} was converted to float32.", converted[0], kind, also))
    weights |= {name: weights[name].float() for name in converted}
    if (name := first_not_finite(weights)) is not None:
        raise BundleError(
            tr("{path}: tensor {name} holds NaN or infinity", path, name),
            advice=tr("The model was damaged, or it was saved after training diverged: use an earlier one."),
        )
    model.load_state_dict({name: weight.to(device) for name, weight in weights.items()}, strict=True, assign=True)
    return model.eval(), tuple(notes)


def _check_sizes(path: Path, file: WeightsFile, config: TransformerConfig) -> None:
    """Refuse a config that asks for far more than the file holds, or for tables that do not fit into memory."""
    layers = config.n_layers + (config.n_encoder_layers if isinstance(config, EncoderDecoderConfig) else 0)
    if layers > len(file.stored):
        raise BundleError(
            tr(
                "{path} holds {n_stored:,} tensors, too few for the {layers:,} layers of the config",
                path,
                len(file.stored),
                layers,
            )
        )
    asked, held = sizes(config).parameters, sum(math.prod(one.shape) for one in file.stored.values())
    if asked > 2 * held + _SMALL:
        raise BundleError(tr("{path} holds {held:,} parameters, the config asks for {asked:,}", path, held, asked))
    needed, free = table_bytes(config), psutil.virtual_memory().available
    if needed > free:
        raise BundleError(
            tr(
                "{with_name}: the positions of a context of {context:,} need {needed:,.1f} GB of "
                "memory, and {free:,.1f} GB are free",
                path.with_name("config.json"),
                config.context,
                needed / 1000000000.0,
                free / 1000000000.0,
            )
        )


def _check_header(path: Path, file: WeightsFile, model: Transformer) -> None:
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in file.stored:
            raise BundleError(tr("{path}: tensor {name} {shape} is missing", path, name, list(tensor.shape)))
    for name in sorted(set(file.stored) - set(expected)):
        raise BundleError(tr("{path}: tensor {name} does not belong to this model", path, name))
    for name, tensor in expected.items():
        found = file.stored[name]
        if found.shape != tuple(tensor.shape):
            raise BundleError(
                tr(
                    "{path}: tensor {name} is {shape}, the config asks for {config_shape}",
                    path,
                    name,
                    list(found.shape),
                    list(tensor.shape),
                )
            )
        if not _DTYPES[found.dtype].is_floating_point:
            raise BundleError(
                tr(
                    "{path}: tensor {name} is of {dtype}, and weights are real numbers",
                    path,
                    name,
                    _name_of(_DTYPES[found.dtype]),
                )
            )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
