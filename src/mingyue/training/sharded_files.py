"""The files of a sharded checkpoint: which tensors they contain, and how one process reads them whole.

Files are those of the safetensors writer of `torch.distributed.checkpoint`: each rank's share of the weights
(shard-00001-model-00001-of-00002.safetensors) and of the optimisers' state (…-00002-of-00002), with the position of
every share in the header. Its reader can read any rows of any tensor from them, or from a plain safetensors file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from mingyue.errors import CheckpointError
from mingyue.words import tr

_OF_OPTIMISERS = ("adamw.", "muon.")


def is_optimiser_state(name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to an optimiser, by its name; else it is a weight."""
    return name.startswith(_OF_OPTIMISERS)


def file_numbers(names: Iterable[str]) -> dict[str, int]:
    """The number of the file of each tensor: weights in the first, optimisers' state in the second."""
    return {name: 2 if is_optimiser_state(name) else 1 for name in names}


def shapes_in(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of every whole tensor in a folder, from the headers of its files."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: (tensor.size, tensor.properties.dtype)
        for name, tensor in found.items()
        if isinstance(tensor, TensorStorageMetadata)
    }


def read_whole(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, optimisers' state) of a sharded checkpoint, whole, in the memory of this process."""
    from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageReader, load

    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in shapes_in(folder).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it warns that it reads in one process, as intended
        try:
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise CheckpointError(tr("{folder} cannot be put together: {failures}", folder, error.failures)) from error
    weights = {name: tensor for name, tensor in tensors.items() if not is_optimiser_state(name)}
    return weights, {name: tensor for name, tensor in tensors.items() if is_optimiser_state(name)}
