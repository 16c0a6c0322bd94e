"""A local folder in the format of transformers: config.json and model.safetensors, in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from mingyue.config import ModelConfig
from mingyue.errors import FormatError, InteropError
from mingyue.files import explain_os_error, reason_of, write_bytes_atomically, write_text_atomically
from mingyue.interop.families import from_hf_state, to_hf_state
from mingyue.models import first_not_finite, read_weights_file
from mingyue.parsing import read_json_object
from mingyue.words import tr

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load_hf_folder(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read a folder of a known family: (config, state of a `DecoderOnly(config)`, fp32).

    Raises `InteropError` that names the file, and the first key or tensor that is missing, unexpected or not
    supported. Nothing in the folder is executed.
    """
    if not folder.is_dir():
        raise InteropError(tr("{folder} is not a folder", folder))
    theirs = _read_json(folder / CONFIG)
    tensors = _read_weights(folder)
    if (name := first_not_finite(tensors)) is not None:
        raise InteropError(tr("{folder}: tensor {name} holds NaN or infinity", folder, name))
    try:
        return from_hf_state(theirs, tensors)
    except InteropError as error:
        raise InteropError(tr("{folder}: {message}", folder, error.message), advice=error.advice) from error


def save_hf_folder(
    folder: Path,
    config: ModelConfig,
    state: Mapping[str, Tensor],
    *,
    family: str | None = None,
    special_ids: Mapping[str, int] | None = None,
) -> None:
    """Write a folder that transformers loads; arguments as in `to_hf_state`. `verify_hf` compares it with the model.

    Raises `InteropError` for a config that no family can express, or when the folder cannot be written.
    """
    theirs, tensors = to_hf_state(config, state, family=family, special_ids=special_ids)
    plain = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INDEX).unlink(missing_ok=True)  # of an older model: it would be read instead
        write_bytes_atomically(folder / WEIGHTS, save(plain, metadata={"format": "pt"}))
        write_text_atomically(folder / CONFIG, json.dumps(theirs, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        message, advice = explain_os_error(tr("the exported model"), folder, error)
        raise InteropError(message, advice=advice) from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS).is_file():
        return _read_file(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        if pickled:
            raise InteropError(
                tr(
                    "{folder} holds its weights as a pickle ({pickled}), which can run code when it is loaded",
                    folder,
                    pickled[0],
                ),
                advice=tr("Use a copy with model.safetensors; transformers writes one: model.save_pretrained(folder)."),
            )
        raise InteropError(tr("{folder} has neither {weights} nor {index}", folder, WEIGHTS, INDEX))
    shard_of = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise InteropError(tr("{folder} has no weight_map of tensor names to file names", folder / INDEX))
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise InteropError(
                tr("{folder} names {shard}, which is not a file in {parent}", folder / INDEX, shard, folder)
            )
        tensors |= _read_file(folder / shard)
    for name, shard in shard_of.items():
        if name not in tensors:
            raise InteropError(tr("{folder}: tensor {name} is not in {shard}", folder / INDEX, name, shard))
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        return read_weights_file(path)
    except OSError as error:
        raise InteropError(tr("{path} cannot be read: {reason}", path, reason_of(error))) from error
    except SafetensorError as error:
        raise InteropError(tr("{path} is damaged: {error}", path, error), advice=tr("Copy it again.")) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise InteropError(
            tr("{folder} has no {name}: it is not a model of transformers", path.parent, path.name)
        ) from None
    except (OSError, FormatError) as error:
        raise InteropError(tr("{path} cannot be read: {error}", path, error)) from error
