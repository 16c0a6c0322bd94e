"""The common base of `Model` and `Translator`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

from mingyue.api.caller import for_caller
from mingyue.bundle import Bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.config.base import Settings
from mingyue.reprs import facts_html
from mingyue.runtime import Runtime, choose_runtime
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.models import DecoderOnly, EncoderDecoder

ConfigType = TypeVar("ConfigType", ModelConfig, EncoderDecoderConfig)
ModuleType = TypeVar("ModuleType", "DecoderOnly", "EncoderDecoder")
Item = TypeVar("Item")
SettingsType = TypeVar("SettingsType", bound=Settings)


class _LatestNotes(threading.local):
    """The notes of the latest call of each thread: the calls of other threads do not mix with them."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()  # a copy of a model has no notes


class LoadedModel(Generic[ConfigType, ModuleType]):
    """A trained model with its tokenizer, loaded from a model folder or from a checkpoint of a run."""

    def __init__(
        self, bundle: Bundle[ModuleType], *, checkpoint: int | None, runtime: Runtime | None, threads: int | None = None
    ) -> None:
        """`runtime` None: the CPU, with so many threads; default: those of PyTorch."""
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

    @property
    def module(self) -> ModuleType:
        """The PyTorch module."""
        return self._bundle.model

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
        """Around a call: the settings of the process that it needs."""
        return self.runtime.applied()

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
