"""The tensors of a sharded checkpoint: which files they are in, and how one process reads them whole.

Files are those of the safetensors writer of `torch.distributed.checkpoint`: each rank's share of the weights
(shard-00001-model-00001-of-00002.safetensors) and of the optimisers' state (…-00002-of-00002), with the place of every
share in the header. Its reader takes any cut of any tensor out of them, or out of a plain safetensors file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from mingyue.errors import CheckpointError

_OF_OPTIMISERS = ("adamw.", "muon.")


def is_optimiser_state(name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to an optimiser, by its name; else it is a weight."""
    return name.startswith(_OF_OPTIMISERS)


def file_numbers(names: Iterable[str]) -> dict[str, int]:
    """Which of a rank's files each tensor goes into: weights into the first, optimisers' state into the second."""
    return {name: 2 if is_optimiser_state(name) else 1 for name in names}


def shapes_in(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and number format of every tensor in a folder, whole, read from the headers of its files."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: (tensor.size, tensor.properties.dtype)
        for name, tensor in found.items()
        if isinstance(tensor, TensorStorageMetadata)
    }


def read_whole(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, optimisers' state) of a sharded checkpoint, put together in the memory of this process alone."""
    from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, load

    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in shapes_in(folder).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it reads in one process: that is what is wanted here
        try:
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise CheckpointError(f"{folder} cannot be put together: {error.failures}") from error
    weights = {name: tensor for name, tensor in tensors.items() if not is_optimiser_state(name)}
    return weights, {name: tensor for name, tensor in tensors.items() if is_optimiser_state(name)}
