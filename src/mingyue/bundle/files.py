"""The files of a model folder: which there are, whether they are whole, and what the small ones say."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.errors import BundleError, FormatError
from mingyue.files import (
    explain_os_error,
    find_folder,
    sha256_of,
    write_text_atomically,
)
from mingyue.models.weights_file import cannot_read
from mingyue.parsing import read_json_object, take
from mingyue.text import Tokenizer
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.models import TransformerConfig

FORMAT = 1
"""The version of the format, in config.json."""
WEIGHTS = "model.safetensors"
SOURCE_TOKENIZER = "source_tokenizer.json"
FILES = ("config.json", WEIGHTS, "tokenizer.json", "training.json")


def read_training(folder: Path) -> dict[str, Any]:
    """The content of training.json, after the checksums of all files were compared. Raises `BundleError`."""
    read_bundle_config(folder)
    folder = present(folder)
    training = _read_training(folder)
    check_files(folder, training)
    return training


def _read_training(folder: Path) -> dict[str, Any]:
    path = folder / "training.json"
    training = read_json(path)
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
        write_text_atomically(path, as_json({**read_json(path), **values}))
    except OSError as error:
        message, advice = explain_os_error(tr("the description of the training"), path, error)
        raise BundleError(message, advice=advice) from error


def check_files(folder: Path, training: Mapping[str, Any]) -> None:
    """Compare the files with the checksums in training.json, if any. Raises `BundleError` for the first mismatch."""
    for name, expected in training.get("checksums", {}).items():
        path = folder / Path(name).name
        check_present(folder, Path(name).name)
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
    folder = present(folder)
    check_present(folder, *FILES)
    return _read_config(folder)


def is_model_folder(folder: Path) -> bool:
    """Whether there is a model folder of that name, whole or not."""
    return present(folder).is_dir()


def present(folder: Path) -> Path:
    """`folder`, or where the old model is if the program was killed between the two renames of `replace_folder`."""
    try:
        return find_folder(folder)
    except OSError as error:
        raise cannot_read(folder, error) from error


def check_present(folder: Path, *names: str) -> None:
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
            advice=tr("A model folder holds ") + ", ".join(FILES) + ".",
        )
    if missing:
        raise BundleError(tr("{folder} is not a complete model folder: {missing} missing", folder, ", ".join(missing)))


def _read_config(folder: Path) -> TransformerConfig:
    path = folder / "config.json"
    header = read_json(path)
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises `BundleError`."""
    try:
        return read_json_object(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    except FormatError as error:
        raise BundleError(tr("{path} cannot be read: {error}", path, error)) from error


def check_vocabulary(what: str, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise `BundleError` for a tokenizer that has more ids than the model."""
    if tokenizer.vocab_size > vocab_size:
        raise BundleError(
            tr(
                "{what} has {vocab_size} ids, the model only {wanted}: they do not belong together",
                what,
                tokenizer.vocab_size,
                vocab_size,
            )
        )


def as_json(value: dict[str, Any]) -> str:
    """The content of a JSON file."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
