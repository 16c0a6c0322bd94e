"""Names of weights without those of wrappers: a checkpoint has the model's own names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mingyue.errors import CheckpointError
from mingyue.words import tr

_WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module")  # torch.compile, DistributedDataParallel, FSDP


def clean_name(name: str) -> str:
    """The name of a weight without the parts that compiling or a distributed wrapper adds."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts)


def clean_state(model: nn.Module) -> dict[str, Tensor]:
    """`state_dict()` under clean names."""
    return {clean_name(name): tensor for name, tensor in model.state_dict().items()}


def load_clean_state(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights with clean names into a model, wrapped or not.

    Raises `CheckpointError` that names the first tensor that is missing, unexpected, or of the wrong shape.
    """
    own = clean_state(model)
    for name, tensor in own.items():
        if name not in weights:
            raise CheckpointError(tr("tensor {name} {shape} is missing", name, list(tensor.shape)))
        if weights[name].shape != tensor.shape:
            raise CheckpointError(
                tr(
                    "tensor {name} is {shape}, the model asks for {model_shape}",
                    name,
                    list(weights[name].shape),
                    list(tensor.shape),
                )
            )
    for name in weights:
        if name not in own:
            raise CheckpointError(tr("tensor {name} does not belong to this model", name))
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
