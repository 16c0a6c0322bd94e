"""A model folder: everything that is needed to use a model, nothing that executes, loadable anywhere.

    config.json        {"format": 1, "model": {… every field of ModelConfig …}}
    model.safetensors  the weights, under the names of `DecoderOnly.state_dict()`
    tokenizer.json     the tokenizer
    training.json      how it was trained, for people and for prompts ("starts_with_bos"); no local paths

The format version is written into config.json. A version that this program does not know is refused with a reason.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mingyue.config import ModelConfig
from mingyue.errors import BundleError
from mingyue.files import explain_os_error, write_text_atomically
from mingyue.models import DecoderOnly
from mingyue.text import Tokenizer

FORMAT = 1
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "training.json")


@dataclass
class Bundle:
    """A loaded model folder."""

    model: DecoderOnly
    tokenizer: Tokenizer
    training: dict[str, Any]

    @property
    def config(self) -> ModelConfig:
        """The model's complete config."""
        return self.model.config

    @property
    def starts_with_bos(self) -> bool:
        """Whether a text of this model begins with the start mark (it was trained on more than one document)."""
        return bool(self.training.get("starts_with_bos", False))


def save_bundle(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    training: dict[str, Any],
) -> None:
    """Write a bundle. The folder is made beside its place and renamed: what stood there before is whole until then.

    Raises `BundleError` when the disk refuses, or when tokenizer and model disagree about the vocabulary.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise BundleError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {config.vocab_size}: "
            "they do not belong together"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
        try:
            _write(fresh, config, weights, tokenizer, training)
            _put_in_place(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        message, advice = explain_os_error("the model", folder, error)
        raise BundleError(message, advice=advice) from error


def load_bundle(folder: Path, *, device: torch.device | str = "cpu") -> Bundle:
    """Read a bundle. Nothing in it is executed: JSON and tensors only.

    Raises `BundleError` that names the file, and the first tensor that is missing, not expected, or of a wrong shape.
    """
    if not folder.exists() and _aside(folder).is_dir():
        _aside(folder).replace(folder)  # a program was killed between the two renames of `_put_in_place`
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a model folder", advice="A model folder holds " + ", ".join(_FILES) + ".")
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise BundleError(f"{folder} is not a whole model folder: {', '.join(missing)} missing")
    config = _read_config(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        raise BundleError(
            f"{folder}: tokenizer.json has {tokenizer.vocab_size} ids, config.json says {config.vocab_size}",
            advice="The tokenizer belongs to another model.",
        )
    training = _read_json(folder / "training.json")
    with torch.device("meta"):
        model = DecoderOnly(config)
    weights = read_weights(folder / "model.safetensors", model, device=device)
    # Built again on the device: buffers that are not stored (angles, sinusoids) need real values.
    with torch.device(device):
        model = DecoderOnly(config)
    model.load_state_dict(weights, strict=True, assign=True)
    return Bundle(model.eval(), tokenizer, training)


def read_weights(path: Path, model: torch.nn.Module, *, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, checked against the names and shapes of `model`. Raises `BundleError`."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    weights: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            stored = set(file.keys())
            for name, shape in expected.items():
                if name not in stored:
                    raise BundleError(f"{path}: tensor {name} {list(shape)} is missing")
            for name in sorted(stored - set(expected)):
                raise BundleError(f"{path}: tensor {name} does not belong to this model")
            for name, shape in expected.items():
                found = tuple(file.get_slice(name).get_shape())
                if found != shape:
                    raise BundleError(f"{path}: tensor {name} is {list(found)}, the config asks for {list(shape)}")
                weights[name] = file.get_tensor(name)
    except SafetensorError as error:
        raise BundleError(f"{path} is damaged: {error}", advice="Copy it again, or use another checkpoint.") from error
    return weights


def _write(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    training: dict[str, Any],
) -> None:
    header = {"format": FORMAT, "model": config.model_dump(mode="json")}
    write_text_atomically(folder / "config.json", _json(header))
    write_text_atomically(folder / "tokenizer.json", tokenizer.to_json())
    write_text_atomically(folder / "training.json", _json(training))
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    with (folder / "model.safetensors").open("rb+") as file:
        os.fsync(file.fileno())
    # safetensors keeps its file to its owner, and a temporary folder is made so: a model is there to be given away.
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    (folder / "model.safetensors").chmod(0o666 & ~mask)


def _put_in_place(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        fresh.replace(folder)
        return
    # A folder cannot be replaced by a rename where one exists: the old one steps aside, and back if the new one fails.
    aside = _aside(folder)
    shutil.rmtree(aside, ignore_errors=True)
    folder.replace(aside)
    try:
        fresh.replace(folder)
    except OSError:
        aside.replace(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old.tmp")


def _read_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    header = _read_json(path)
    version = header.get("format")
    if version is None:
        raise BundleError(f"{path} has no format version: it is not one of Mingyue's model folders")
    if not isinstance(version, int) or version < 1:
        raise BundleError(f"{path}: format version {version!r} is not a version")
    if version > FORMAT:
        raise BundleError(
            f"{path} is of format version {version}; this program knows versions up to {FORMAT}",
            advice="Install a newer mingyue.",
        )
    return ModelConfig.read(header.get("model", {}), source=str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} does not hold a JSON object")
    return value


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
