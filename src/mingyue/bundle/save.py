"""Writing a model folder."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from mingyue.bundle.files import FORMAT, SOURCE_TOKENIZER, as_json, check_vocabulary
from mingyue.config import EncoderDecoderConfig
from mingyue.errors import BundleError
from mingyue.files import (
    explain_os_error,
    replace_folder,
    sha256_of,
    share_as_folder,
    sync_folder,
    write_text_atomically,
)
from mingyue.paths import utf8_name
from mingyue.text import Tokenizer
from mingyue.words import tr

if TYPE_CHECKING:
    import torch

    from mingyue.models import TransformerConfig


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
    from mingyue.models import first_not_finite

    if (name := first_not_finite(weights)) is not None:
        raise BundleError(tr("tensor {name} holds NaN or infinity: the model is not saved", name))
    check_vocabulary(tr("the tokenizer"), tokenizer, config.vocab_size)
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        if source_tokenizer is None:
            raise BundleError(tr("the model has a separate source vocabulary, but no source tokenizer was given"))
        check_vocabulary(tr("the source tokenizer"), source_tokenizer, config.source_vocab_size)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # As `mkdtemp` names it, but with the permissions that the umask gives: a model is meant to be shared.
        fresh = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}.tmp")
        fresh.mkdir()
        try:
            _write(fresh, config, weights)
            write_text_atomically(fresh / "tokenizer.json", tokenizer.to_json())
            if source_tokenizer is not None:
                write_text_atomically(fresh / SOURCE_TOKENIZER, source_tokenizer.to_json())
            checksums = {path.name: sha256_of(path) for path in sorted(fresh.iterdir())}
            write_text_atomically(fresh / "training.json", as_json({**training, "checksums": checksums}))
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


def _write(
    folder: Path,
    config: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
) -> None:
    header = {"format": FORMAT, "model": config.model_dump(mode="json")}
    write_text_atomically(folder / "config.json", as_json(header))
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
    from safetensors.torch import save_file

    with utf8_name(folder / "model.safetensors", new=True) as name:
        save_file(plain, name, metadata={"format": "pt"})
    with (folder / "model.safetensors").open("rb+") as file:
        os.fsync(file.fileno())
    share_as_folder(folder / "model.safetensors")
