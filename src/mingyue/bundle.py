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
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.data.unseen import from_ranges
from mingyue.errors import BundleError, FormatError
from mingyue.files import (
    explain_os_error,
    find_folder,
    replace_folder,
    sha256_of,
    share_as_folder,
    sync_folder,
    write_text_atomically,
)
from mingyue.models import (
    DecoderOnly,
    EncoderDecoder,
    Transformer,
    TransformerConfig,
    cannot_read,
    first_not_finite,
    read_model,
)
from mingyue.parsing import read_json_object, take
from mingyue.paths import utf8_name
from mingyue.text import Tokenizer
from mingyue.words import tr

FORMAT = 1
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "training.json")
_SOURCE_TOKENIZER = "source_tokenizer.json"


ModelT = TypeVar("ModelT", bound=Transformer)
_REFUSALS = {
    DecoderOnly: (
        tr("holds an encoder-decoder model, which does not continue prompts"),
        tr("Use `mingyue translate`, or in Python load_translator."),
    ),
    EncoderDecoder: (
        tr("holds a decoder-only model, which does not translate"),
        tr("Use `mingyue generate`, or in Python load."),
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
    notes: tuple[str, ...] = ()
    """For the user: what is not as Mingyue writes it."""

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
        return bool(self.training.get("starts_with_bos", False))  # a bool: `read_training` has checked it

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
        raise BundleError(tr("training.json is damaged: its unseen ids are not ranges of ids of the vocabulary"))

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
    folder cannot be written, when a tokenizer has more ids than the model, and for weights that are not finite.
    """
    if (name := first_not_finite(weights)) is not None:
        raise BundleError(tr("tensor {name} holds NaN or infinity: the model is not saved", name))
    _check_vocabulary(tr("the tokenizer"), tokenizer, config.vocab_size)
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        if source_tokenizer is None:
            raise BundleError(tr("the model has a separate source vocabulary, but no source tokenizer was given"))
        _check_vocabulary(tr("the source tokenizer"), source_tokenizer, config.source_vocab_size)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # As `mkdtemp` names it, but with the permissions that the umask gives: a model is meant to be shared.
        fresh = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}.tmp")
        fresh.mkdir()
        try:
            _write(fresh, config, weights)
            write_text_atomically(fresh / "tokenizer.json", tokenizer.to_json())
            if source_tokenizer is not None:
                write_text_atomically(fresh / _SOURCE_TOKENIZER, source_tokenizer.to_json())
            checksums = {path.name: sha256_of(path) for path in sorted(fresh.iterdir())}
            write_text_atomically(fresh / "training.json", _json({**training, "checksums": checksums}))
            replace_folder(fresh, folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        message, advice = explain_os_error(tr("the model"), folder, error)
        raise BundleError(message, advice=advice) from error
    except SafetensorError as error:  # raised in Rust: the operating system's error is in its text only
        if "os error" not in str(error):
            raise
        full = OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error))
        message, advice = explain_os_error(tr("the model"), folder, full)
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
        raise BundleError(tr("{folder} {message}", folder, message), advice=advice)
    training = read_training(folder)  # before any file is trusted: it has the checksums of the others
    folder = _present(folder)
    tokenizer, source_tokenizer = _read_tokenizer(folder, "tokenizer.json", config.vocab_size), None
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        source_tokenizer = _read_tokenizer(folder, _SOURCE_TOKENIZER, config.source_vocab_size)
    model, notes = read_model(folder / "model.safetensors", config, device=device)
    return Bundle(model, tokenizer, training, source_tokenizer, notes)


def read_training(folder: Path) -> dict[str, Any]:
    """The content of training.json, after the checksums of all files were compared. Raises `BundleError`."""
    read_bundle_config(folder)
    folder = _present(folder)
    training = _read_training(folder)
    check_files(folder, training)
    return training


def _read_training(folder: Path) -> dict[str, Any]:
    path = folder / "training.json"
    training = _read_json(path)
    try:
        take(training, "starts_with_bos", bool, False)
        if training.get("begin_id") is not None:
            take(training, "begin_id", int)
        for name in take(training, "checksums", dict, {}):
            take(training["checksums"], name, str)
    except FormatError as error:
        raise BundleError(
            tr("{path} is damaged: {message}", path, error.message), advice=tr("Copy it again.")
        ) from None
    return training


def add_to_training(folder: Path, values: Mapping[str, Any]) -> None:
    """Add values to the training.json of a model folder, or replace them there. Raises `BundleError`."""
    path = folder / "training.json"
    try:
        write_text_atomically(path, _json({**_read_json(path), **values}))
    except OSError as error:
        message, advice = explain_os_error(tr("the description of the training"), path, error)
        raise BundleError(message, advice=advice) from error


def check_files(folder: Path, training: Mapping[str, Any]) -> None:
    """Compare the files with the checksums in training.json, if any. Raises `BundleError` for the first mismatch."""
    for name, expected in training.get("checksums", {}).items():
        path = folder / Path(name).name
        _check_present(folder, Path(name).name)
        try:
            found = sha256_of(path)
        except OSError as error:
            raise cannot_read(path, error) from error
        if found != expected:
            raise BundleError(
                tr(
                    "{path} is damaged: its SHA-256 is {found}…, training.json says {expected}…",
                    path,
                    found[:12],
                    expected[:12],
                ),
                advice=tr(
                    "Copy it again; `mingyue resume` writes that of a run again. If you changed it on "
                    "purpose, remove its entry from the checksums in training.json."
                ),
            )


def read_bundle_config(folder: Path) -> TransformerConfig:
    """The config of the model in a folder, without loading its weights. Raises `BundleError`."""
    folder = _present(folder)
    _check_present(folder, *_FILES)
    return _read_config(folder)


def is_model_folder(folder: Path) -> bool:
    """Whether there is a model folder of that name, whole or not."""
    return _present(folder).is_dir()


def _present(folder: Path) -> Path:
    """`folder`, or where the old model is if the program was killed between the two renames of `replace_folder`."""
    try:
        return find_folder(folder)
    except OSError as error:
        raise cannot_read(folder, error) from error


def _check_present(folder: Path, *names: str) -> None:
    """Raise `BundleError` for files that are missing, and for one that cannot be reached, with the reason."""
    missing = []
    for name in names:
        try:
            if not stat.S_ISREG((folder / name).stat().st_mode):
                missing.append(name)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(name)
        except OSError as error:
            raise cannot_read(folder / name, error) from error
    if missing and not folder.is_dir():
        raise BundleError(
            tr("{folder} is not a model folder", folder),
            advice=tr("A model folder holds ") + ", ".join(_FILES) + ".",
        )
    if missing:
        raise BundleError(tr("{folder} is not a complete model folder: {missing} missing", folder, ", ".join(missing)))


def _read_tokenizer(folder: Path, name: str, vocab_size: int) -> Tokenizer:
    _check_present(folder, name)
    tokenizer = Tokenizer.load(folder / name)
    if tokenizer.vocab_size > vocab_size:
        raise BundleError(
            tr(
                "{folder}: {name} has {vocab_size} ids, config.json says {wanted}",
                folder,
                name,
                tokenizer.vocab_size,
                vocab_size,
            ),
            advice=tr("The tokenizer belongs to another model."),
        )
    return tokenizer


def _check_vocabulary(what: str, tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.vocab_size > vocab_size:
        raise BundleError(
            tr(
                "{what} has {vocab_size} ids, the model only {wanted}: they do not belong together",
                what,
                tokenizer.vocab_size,
                vocab_size,
            )
        )


def _write(
    folder: Path,
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
) -> None:
    header = {"format": FORMAT, "model": config.model_dump(mode="json")}
    write_text_atomically(folder / "config.json", _json(header))
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
    with utf8_name(folder / "model.safetensors", new=True) as name:
        save_file(plain, name, metadata={"format": "pt"})
    with (folder / "model.safetensors").open("rb+") as file:
        os.fsync(file.fileno())
    share_as_folder(folder / "model.safetensors")


def _read_config(folder: Path) -> TransformerConfig:
    path = folder / "config.json"
    header = _read_json(path)
    version = header.get("format")
    if version is None:
        raise BundleError(tr("{path} has no format version: it is not a model folder of Mingyue", path))
    if type(version) is not int or version < 1:
        raise BundleError(tr("{path}: format version {version!r} is not a version", path, version))
    if version > FORMAT:
        raise BundleError(
            tr(
                "{path} has format version {version}; this program knows versions up to {format}", path, version, FORMAT
            ),
            advice=tr("Install a newer mingyue."),
        )
    model = header.get("model")
    if not isinstance(model, dict):
        raise BundleError(tr('{path} is damaged: its "model" is not a JSON object', path), advice=tr("Copy it again."))
    encoder_decoder = model.get("architecture") == "encoder-decoder"
    return (EncoderDecoderConfig if encoder_decoder else ModelConfig).read(model, source=str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    except FormatError as error:
        raise BundleError(tr("{path} cannot be read: {error}", path, error)) from error


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
