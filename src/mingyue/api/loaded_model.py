"""The common base of `Model` and `Translator`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from mingyue.api.caller import for_caller
from mingyue.bundle import Bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.config.base import Settings
from mingyue.errors import MingyueError, SettingsError
from mingyue.generation.backends import check_choice, is_plain, missing_package, weights_state
from mingyue.reprs import facts_html
from mingyue.runtime import Runtime, choose_runtime
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.generation.backends import BackendKind
    from mingyue.generation.onnx_backend import OnnxModel
    from mingyue.generation.onnx_decoding import OnnxDecoder
    from mingyue.graphs import WeightKind
    from mingyue.models import DecoderOnly, EncoderDecoder

ConfigType = TypeVar("ConfigType", ModelConfig, EncoderDecoderConfig)
ModuleType = TypeVar("ModuleType", "DecoderOnly", "EncoderDecoder")
OpenedType = TypeVar("OpenedType", "OnnxModel", "OnnxDecoder")
Item = TypeVar("Item")
SettingsType = TypeVar("SettingsType", bound=Settings)


class _LatestNotes(threading.local):
    """The notes of the latest call of each thread: the calls of other threads do not mix with them."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()  # a copy of a model has no notes


class LoadedModel(Generic[ConfigType, ModuleType, OpenedType]):
    """A trained model with its tokenizer, loaded from a model folder or from a checkpoint of a run."""

    def __init__(
        self,
        bundle: Bundle[ModuleType],
        *,
        checkpoint: int | None,
        runtime: Runtime | None,
        threads: int | None = None,
        backend: BackendKind | None = None,
        weights: WeightKind = "fp32",
        opened: OpenedType | None = None,
    ) -> None:
        """`runtime` None: the CPU, with `threads` (default: those of PyTorch). `opened`: in onnxruntime already."""
        check_choice(backend, weights)
        self._asked, self._kind = backend, weights
        self._opened, self._why_torch = opened, None if opened is not None else ""
        self._state: tuple[object, ...] | None = None
        self._lock = threading.RLock()
        self._bundle, self._given_runtime, self._threads = bundle, runtime, threads
        self.config = cast(ConfigType, bundle.config)
        """The model's config: every size, and the kind of every part."""
        self.tokenizer = bundle.tokenizer
        """The tokenizer; of an encoder-decoder model, that of the target side."""
        self.training = bundle.training
        """The content of training.json."""
        self.unseen = bundle.unseen
        """Ids that do not occur in the training text (the targets, for pairs); generated only with `allow_unseen`."""
        self.checkpoint = checkpoint
        """The step of the checkpoint that was loaded; None for a model folder."""
        self.loading_notes = (*bundle.notes, *_of_given(bundle))
        """Notes for the user about the model itself (such as which checkpoint of a run it is)."""
        self._latest = _LatestNotes()

    def __getstate__(self) -> dict[str, Any]:
        """A copy opens its own session of onnxruntime."""
        return {**vars(self), "_opened": None, "_why_torch": "", "_state": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    @property
    def module(self) -> ModuleType:
        """The PyTorch module. Changes of its weights take effect on the next call."""
        loaded = self._bundle.loaded
        module = self._bundle.model
        if not loaded and self._opened is not None:  # it was opened from the same tensors
            self._state = weights_state(module)
        return module

    @property
    def backend(self) -> str:
        """What generation runs on: `torch` or `onnxruntime`."""
        return "torch" if self._onnx() is None else "onnxruntime"

    @property
    def why_torch(self) -> str | None:
        """Why generation does not run on onnxruntime; None if it does."""
        self._onnx()
        return self._why_torch

    def _onnx(self) -> OpenedType | None:
        """The model in onnxruntime, or None, with the reason in `_why_torch`.

        Raises `SettingsError` where onnxruntime is asked for and cannot be used.
        """
        with self._lock:
            untried = self._why_torch == ""
            if untried or (self._bundle.loaded and weights_state(self._bundle.model) != self._state):
                # The file has the weights that were loaded, not those that were changed since.
                self._opened, self._why_torch = self._try_onnx(self._bundle.weights_sha256 if untried else None)
                self._state = weights_state(self._bundle.model) if self._bundle.loaded else None
            if self._why_torch is not None and (self._asked == "onnxruntime" or self._kind == "int8"):
                raise SettingsError(
                    tr("this model cannot be used with onnxruntime: {reason}", self._why_torch),
                    advice=tr("Use --backend torch and --weights fp32."),
                )
            return self._opened

    def _try_onnx(self, sha256: str | None) -> tuple[OpenedType | None, str | None]:
        if (reason := self._not_on_onnx()) is not None:
            return None, reason
        try:
            return self._open_onnx(sha256, self.runtime.threads), None
        except ImportError as error:
            return None, tr("{name} is not installed", error.name or "onnx")
        except MingyueError as error:
            return None, error.message

    def _not_on_onnx(self) -> str | None:
        """Why onnxruntime is not tried."""
        if self._asked == "torch":
            return tr("the torch back end was asked for")
        if self.runtime.device.type != "cpu":
            return tr("the device is {device}", str(self.runtime.device))
        if not is_plain(self._bundle.model):
            return tr("the model has hooks or parts of other libraries")
        return missing_package()

    def _open_onnx(self, sha256: str | None, threads: int) -> OpenedType:
        """The model in onnxruntime, checked. `sha256`: of the weights, where they are those of a file."""
        raise NotImplementedError

    @cached_property
    def runtime(self) -> Runtime:
        """Device and threads of every call; the process has its own settings again when a call returns."""
        if self._given_runtime is not None:
            return self._given_runtime
        if self._threads is not None:
            return choose_runtime("cpu", "fp32", self._threads)
        import torch

        return Runtime(self.module.embedding.weight.device, torch.float32, torch.get_num_threads())

    def _applied(self) -> AbstractContextManager[object]:
        """Around a call: the settings of the process that it needs; onnxruntime has threads of its own."""
        return nullcontext() if self._opened is not None else self.runtime.applied()

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the latest call of this thread (such as a prompt longer than the context)."""
        return [for_caller(note) for note in self._latest.notes]

    def note(self, sentence: str) -> None:
        """Add a note about the latest call."""
        self._latest.notes.append(sentence)

    def _new_notes(self) -> list[str]:
        """The empty list of notes of a new call."""
        self._latest.notes = []
        return self._latest.notes

    def _stepwise(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items of a call that computes them one by one; between them the process has the caller's settings."""
        while True:
            with self._applied():
                item = next(items, None)
            if item is None:
                return
            yield item

    def __repr__(self) -> str:
        config, tokenizer = self.config, self.tokenizer
        encoder = f"{config.n_encoder_layers}+" if isinstance(config, EncoderDecoderConfig) else ""
        return (
            f"<mingyue.{type(self).__name__}: depth {encoder}{config.n_layers}, width {config.d_model}, "
            f"context {config.context}, {tokenizer.kind} tokenizer of {tokenizer.vocab_size}>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: sizes, parts and training."""
        from mingyue.models import sizes

        config, training = self.config, self.training
        encoder = f"{config.n_encoder_layers} + " if isinstance(config, EncoderDecoderConfig) else ""
        facts: dict[str, object] = {
            "parameters": f"{sizes(config).parameters:,}",
            "layers": f"{encoder}{config.n_layers}",
            "width": f"{config.d_model:,}",
            "heads": f"{config.n_heads} × {config.d_head}",
            "positions": config.positions,
            "context": f"{config.context:,}",
            "tokenizer": tr("{kind}, ids: {vocab_size:,}", self.tokenizer.kind, self.tokenizer.vocab_size),
        }
        if isinstance(training.get("steps"), int):
            facts["trained"] = tr("steps: {training:,}", training["steps"])
        if isinstance(training.get("heldout_loss"), float):
            facts["held-out loss"] = tr("{training:.4f} nats per token", training["heldout_loss"])
        return facts_html(f"mingyue.{type(self).__name__}", facts)


def merge_settings(
    kind: type[SettingsType], settings: SettingsType | None, keywords: dict[str, object]
) -> SettingsType:
    """`settings` (default: those of `kind`) with the fields named in `keywords` replaced. Raises `SettingsError`."""
    base = settings or kind()
    return kind.read({**base.model_dump(), **keywords}, source=tr("the arguments")) if keywords else base


def _of_given(bundle: Bundle[ModuleType]) -> tuple[str, ...]:
    """What tokenizers from elsewhere do to a text."""
    both = dict.fromkeys([bundle.tokenizer, bundle.source_tokenizer])
    return tuple(
        tr("The tokenizer {loss}.", loss) for loss in dict.fromkeys(loss for one in both for loss in one.losses)
    )
