"""Loading a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy.typing as npt
from safetensors import SafetensorError

from mingyue.bundle.files import (
    SOURCE_TOKENIZER,
    WEIGHTS,
    check_present,
    present,
    read_bundle_config,
    read_training,
)
from mingyue.config import EncoderDecoderConfig
from mingyue.data.unseen import from_ranges
from mingyue.errors import BundleError
from mingyue.models.weights_file import cannot_read, read_arrays
from mingyue.text import Tokenizer
from mingyue.words import tr

if TYPE_CHECKING:
    import torch

    from mingyue.models import DecoderOnly, Transformer, TransformerConfig

ModelT = TypeVar("ModelT", bound="Transformer")
_REFUSALS = {
    False: (
        tr("holds an encoder-decoder model, which does not continue prompts"),
        tr("Use `mingyue translate`, or in Python load_translator."),
    ),
    True: (
        tr("holds a decoder-only model, which does not translate"),
        tr("Use `mingyue generate`, or in Python load."),
    ),
}
"""Message and advice where a folder holds the other architecture than the one that was asked for (True: pairs)."""


class Bundle(Generic[ModelT]):
    """The model of a folder with its tokenizers. The weights may be read later, when `model` is first asked for."""

    def __init__(
        self,
        config: TransformerConfig,
        tokenizer: Tokenizer,
        training: dict[str, Any],
        separate_source_tokenizer: Tokenizer | None = None,
        *,
        model: ModelT | partial[ModelT],
        notes: tuple[str, ...] = (),
        weights: Path | None = None,
    ) -> None:
        self.config = config
        """The complete config of the model."""
        self.tokenizer = tokenizer
        """The tokenizer; of an encoder-decoder model, that of the target side."""
        self.training = training
        """The content of training.json."""
        self.separate_source_tokenizer = separate_source_tokenizer
        """The tokenizer of the source side, if the sides do not share a vocabulary."""
        self.notes = notes
        """For the user: what is not as Mingyue writes it."""
        self._weights = weights
        self._given = model

    @cached_property
    def model(self) -> ModelT:
        """The PyTorch model. Raises as `load_bundle` if it is read only now."""
        given = self._given
        return given() if isinstance(given, partial) else given

    @property
    def loaded(self) -> bool:
        """Whether the PyTorch model is in memory."""
        return "model" in vars(self) or not isinstance(self._given, partial)

    @property
    def weights_sha256(self) -> str | None:
        """SHA-256 of the file of weights, which was compared; None without a checksum, and for a checkpoint."""
        return None if self._weights is None else self.training.get("checksums", {}).get(self._weights.name)

    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """The tensors of the PyTorch model, as numpy arrays."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.model.state_dict().items()}

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the source side; the same object as `tokenizer` if the sides share a vocabulary."""
        return self.separate_source_tokenizer or self.tokenizer

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


@overload
def load_bundle(folder: Path, *, device: torch.device | str = "cpu") -> Bundle[DecoderOnly]: ...


@overload
def load_bundle(folder: Path, model_class: type[ModelT], *, device: torch.device | str = "cpu") -> Bundle[ModelT]: ...


def load_bundle(
    folder: Path, model_class: type[Transformer] | None = None, *, device: torch.device | str = "cpu"
) -> Bundle[Any]:
    """Load a model folder that holds a `model_class`: `DecoderOnly` (the default) or `EncoderDecoder`.

    Nothing in it is executed: it is JSON and tensors only. Raises `BundleError` that names the file, and the first
    tensor that is missing, unexpected or of a wrong shape; for the other architecture it says what to use instead.
    """
    from mingyue.models import EncoderDecoder, read_model

    found = _open(folder, of_pairs=model_class is EncoderDecoder)
    weights = present(folder) / WEIGHTS
    model, notes = read_model(weights, found.config, device=device)
    return Bundle(
        found.config,
        found.tokenizer,
        found.training,
        found.separate_source_tokenizer,
        model=model,
        notes=notes,
        weights=weights,
    )


def open_bundle(folder: Path, *, of_pairs: bool) -> tuple[Bundle[Any], Mapping[str, npt.NDArray[Any]] | None]:
    """The same on the CPU, without PyTorch: the bundle, and its tensors. `model` is made when it is first asked for.

    Whether the tensors are those of the config is found out then. They are None if they are not all of fp32 and finite;
    then there is no model. Raises `BundleError` for what is wrong besides the tensors.
    """
    bundle = _open(folder, of_pairs=of_pairs)
    path = present(folder) / WEIGHTS
    try:
        arrays = read_arrays(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    except SafetensorError:
        arrays = None
    bundle = Bundle(
        bundle.config,
        bundle.tokenizer,
        bundle.training,
        bundle.separate_source_tokenizer,
        model=partial(_model_of, bundle.config, arrays or {}),
        weights=path,
    )
    return bundle, arrays


def _open(folder: Path, *, of_pairs: bool) -> Bundle[Any]:
    """All but the model, which is None."""
    config = read_bundle_config(folder)
    if isinstance(config, EncoderDecoderConfig) is not of_pairs:
        message, advice = _REFUSALS[of_pairs]
        raise BundleError(tr("{folder} {message}", folder, message), advice=advice)
    training = read_training(folder)  # before any file is trusted: it has the checksums of the others
    folder = present(folder)
    tokenizer, source_tokenizer = _read_tokenizer(folder, "tokenizer.json", config.vocab_size), None
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        source_tokenizer = _read_tokenizer(folder, SOURCE_TOKENIZER, config.source_vocab_size)
    nothing: Any = None
    return Bundle(config, tokenizer, training, source_tokenizer, model=nothing)


def _model_of(config: TransformerConfig, arrays: Mapping[str, npt.NDArray[Any]]) -> Transformer:
    import torch

    from mingyue.models import empty_model

    with torch.inference_mode(False):  # a caller's mode must not stay with the weights
        model = empty_model(config)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


def _read_tokenizer(folder: Path, name: str, vocab_size: int) -> Tokenizer:
    check_present(folder, name)
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
