"""A model folder: everything needed to use a model, nothing that executes, loadable on any machine.

    config.json            {"format": 1, "model": {… every field of ModelConfig or EncoderDecoderConfig …}}
    model.safetensors      the weights, under the names of the model's `state_dict()`
    tokenizer.json         the tokenizer
    source_tokenizer.json  the source tokenizer of an encoder-decoder model whose sides have separate vocabularies
    training.json          how it was trained; what generation needs ("starts_with_bos", "begin_id", "unseen"); no
                           local paths; the SHA-256 of the other files

The format version is written into config.json. A version that this program does not know is refused with a reason.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.data.unseen import from_ranges
from mingyue.errors import BundleError
from mingyue.files import explain_os_error, sha256_of, sync_folder, write_text_atomically
from mingyue.models import DecoderOnly, EncoderDecoder, Transformer, TransformerConfig, make_model
from mingyue.text import Tokenizer

FORMAT = 1
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "training.json")
_SOURCE_TOKENIZER = "source_tokenizer.json"


ModelT = TypeVar("ModelT", bound=Transformer)
_REFUSALS = {
    DecoderOnly: (
        "holds an encoder-decoder model, which does not continue prompts",
        "Use `mingyue translate`, or in Python load_translator.",
    ),
    EncoderDecoder: (
        "holds a decoder-only model, which does not translate",
        "Use `mingyue generate`, or in Python load.",
    ),
}
"""Message and advice where a folder holds the other architecture than the one that was asked for."""


@dataclass
class Bundle(Generic[ModelT]):
    """A loaded model folder."""

    model: ModelT
    tokenizer: Tokenizer
    """The tokenizer; of an encoder-decoder model, that of the target side."""
    training: dict[str, Any]
    """The content of training.json."""
    separate_source_tokenizer: Tokenizer | None = None
    """The tokenizer of the source side, if the sides do not share a vocabulary."""

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the source side; the same object as `tokenizer` if the sides share a vocabulary."""
        return self.separate_source_tokenizer or self.tokenizer

    @property
    def config(self) -> TransformerConfig:
        """The complete config of the model."""
        return self.model.config

    @property
    def starts_with_bos(self) -> bool:
        """Whether a text of a decoder-only model begins with BOS (it was trained on more than one document)."""
        return bool(self.training.get("starts_with_bos", False))

    @property
    def unseen(self) -> tuple[int, ...]:
        """Token ids that the training text (the targets of training pairs) does not use; empty if unknown."""
        ranges = self.training.get("unseen", [])
        try:
            sound = all(0 <= first <= last < self.config.vocab_size for first, last in ranges)
            if sound:
                return from_ranges(ranges)
        except (TypeError, ValueError):
            pass
        raise BundleError("training.json is damaged: its unseen ids are not ranges of ids of the vocabulary")

    @property
    def begin_id(self) -> int | None:
        """The token that stands for an empty prompt of a decoder-only model; None if unknown."""
        found = self.training.get("begin_id")
        return found if isinstance(found, int) and 0 <= found < self.config.vocab_size else None


def save_bundle(
    folder: Path,
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    training: dict[str, Any],
    *,
    source_tokenizer: Tokenizer | None = None,
) -> None:
    """Write a model folder. It is written under a temporary name and renamed: an older folder stays intact until then.

    `source_tokenizer`: that of the source side, if the sides have separate vocabularies. Raises `BundleError` when the
    folder cannot be written, or when a tokenizer has more ids than the model.
    """
    _check_vocabulary("the tokenizer", tokenizer, config.vocab_size)
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        if source_tokenizer is None:
            raise BundleError("the model has a separate source vocabulary, but no source tokenizer was given")
        _check_vocabulary("the source tokenizer", source_tokenizer, config.source_vocab_size)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
        try:
            _write(fresh, config, weights)
            write_text_atomically(fresh / "tokenizer.json", tokenizer.to_json())
            if source_tokenizer is not None:
                write_text_atomically(fresh / _SOURCE_TOKENIZER, source_tokenizer.to_json())
            checksums = {path.name: sha256_of(path) for path in sorted(fresh.iterdir())}
            write_text_atomically(fresh / "training.json", _json({**training, "checksums": checksums}))
            _put_in_place(fresh, folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        message, advice = explain_os_error("the model", folder, error)
        raise BundleError(message, advice=advice) from error
    except SafetensorError as error:  # raised in Rust: the operating system's error is in its text only
        if "os error" not in str(error):
            raise
        full = OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error))
        message, advice = explain_os_error("the model", folder, full)
        raise BundleError(message, advice=advice) from error


@overload
def load_bundle(folder: Path, *, device: torch.device | str = "cpu") -> Bundle[DecoderOnly]: ...


@overload
def load_bundle(folder: Path, model_class: type[ModelT], *, device: torch.device | str = "cpu") -> Bundle[ModelT]: ...


def load_bundle(
    folder: Path, model_class: type[Transformer] = DecoderOnly, *, device: torch.device | str = "cpu"
) -> Bundle[Any]:
    """Load a model folder that holds a `model_class`: `DecoderOnly` or `EncoderDecoder`.

    Nothing in it is executed: it is JSON and tensors only. Raises `BundleError` that names the file, and the first
    tensor that is missing, unexpected or of a wrong shape; for the other architecture it says what to use instead.
    """
    config = read_bundle_config(folder)
    if isinstance(config, ModelConfig) is not (model_class is DecoderOnly):
        message, advice = _REFUSALS[model_class]
        raise BundleError(f"{folder} {message}", advice=advice)
    tokenizer, source_tokenizer = _read_tokenizer(folder, "tokenizer.json", config.vocab_size), None
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        source_tokenizer = _read_tokenizer(folder, _SOURCE_TOKENIZER, config.source_vocab_size)
    model = _read_model(folder, config, device)
    training = _read_json(folder / "training.json")
    check_files(folder, training)
    return Bundle(model, tokenizer, training, source_tokenizer)


def load_pair_bundle(folder: Path, *, device: torch.device | str = "cpu") -> Bundle[EncoderDecoder]:
    """Deprecated: use `load_bundle(folder, EncoderDecoder)`."""
    warnings.warn("use load_bundle(folder, EncoderDecoder)", DeprecationWarning, stacklevel=2)
    return load_bundle(folder, EncoderDecoder, device=device)


def read_training(folder: Path) -> dict[str, Any]:
    """The content of training.json, after the checksums of all files were compared. Raises `BundleError`."""
    read_bundle_config(folder)
    training = _read_json(folder / "training.json")
    check_files(folder, training)
    return training


def add_to_training(folder: Path, values: Mapping[str, Any]) -> None:
    """Add values to the training.json of a model folder, or replace them there. Raises `BundleError`."""
    path = folder / "training.json"
    try:
        write_text_atomically(path, _json({**_read_json(path), **values}))
    except OSError as error:
        message, advice = explain_os_error("the description of the training", path, error)
        raise BundleError(message, advice=advice) from error


def check_files(folder: Path, training: Mapping[str, Any]) -> None:
    """Compare the files with the checksums in training.json, if any. Raises `BundleError` for the first mismatch."""
    checksums = training.get("checksums", {})
    if not isinstance(checksums, dict):
        raise BundleError(f"{folder / 'training.json'} is damaged: its checksums are not a JSON object")
    for name, expected in checksums.items():
        path = folder / Path(name).name
        if not path.is_file():
            raise BundleError(f"{folder} is not a complete model folder: {name} missing")
        found = sha256_of(path)
        if found != expected:
            raise BundleError(
                f"{path} is damaged: its SHA-256 is {found[:12]}…, training.json says {str(expected)[:12]}…",
                advice="Copy it again; `mingyue resume` writes that of a run again. If you changed it on purpose, "
                "remove its entry from the checksums in training.json.",
            )


def read_bundle_config(folder: Path) -> TransformerConfig:
    """The config of the model in a folder, without loading its weights. Raises `BundleError`."""
    if not folder.exists() and _aside(folder).is_dir():
        _aside(folder).replace(folder)  # the process was killed between the two renames of `_put_in_place`
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a model folder", advice="A model folder holds " + ", ".join(_FILES) + ".")
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise BundleError(f"{folder} is not a complete model folder: {', '.join(missing)} missing")
    return _read_config(folder)


def _read_tokenizer(folder: Path, name: str, vocab_size: int) -> Tokenizer:
    if not (folder / name).is_file():
        raise BundleError(f"{folder} is not a complete model folder: {name} missing")
    tokenizer = Tokenizer.load(folder / name)
    if tokenizer.vocab_size > vocab_size:
        raise BundleError(
            f"{folder}: {name} has {tokenizer.vocab_size} ids, config.json says {vocab_size}",
            advice="The tokenizer belongs to another model.",
        )
    return tokenizer


def _read_model(folder: Path, config: TransformerConfig, device: torch.device | str) -> Transformer:
    with torch.device("meta"):
        model = make_model(config)
    weights = read_weights(folder / "model.safetensors", model, device=device)
    # Built again on the device: buffers that are not stored (rotary angles, sinusoids) need real values.
    with torch.device(device):
        model = make_model(config)
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval()


def _check_vocabulary(what: str, tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.vocab_size > vocab_size:
        raise BundleError(
            f"{what} has {tokenizer.vocab_size} ids, the model only {vocab_size}: they do not belong together"
        )


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
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
) -> None:
    header = {"format": FORMAT, "model": config.model_dump(mode="json")}
    write_text_atomically(folder / "config.json", _json(header))
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    with (folder / "model.safetensors").open("rb+") as file:
        os.fsync(file.fileno())
    # safetensors and mkdtemp let only the owner read; a model is meant to be shared, so the umask decides.
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    (folder / "model.safetensors").chmod(0o666 & ~mask)


def _put_in_place(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        fresh.replace(folder)
        return
    # A rename cannot replace a folder: move the old one aside, and back if the new one cannot be renamed.
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


def _read_config(folder: Path) -> TransformerConfig:
    path = folder / "config.json"
    header = _read_json(path)
    version = header.get("format")
    if version is None:
        raise BundleError(f"{path} has no format version: it is not a model folder of Mingyue")
    if not isinstance(version, int) or version < 1:
        raise BundleError(f"{path}: format version {version!r} is not a version")
    if version > FORMAT:
        raise BundleError(
            f"{path} has format version {version}; this program knows versions up to {FORMAT}",
            advice="Install a newer mingyue.",
        )
    model = header.get("model", {})
    encoder_decoder = isinstance(model, dict) and model.get("architecture") == "encoder-decoder"
    return (EncoderDecoderConfig if encoder_decoder else ModelConfig).read(model, source=str(path))


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
