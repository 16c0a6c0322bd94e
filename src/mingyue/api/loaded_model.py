"""The common base of `Model` and `Translator`."""

from __future__ import annotations

from typing import Generic, TypeVar

from mingyue.bundle import Bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.config.base import Settings
from mingyue.models import DecoderOnly, EncoderDecoder

ConfigType = TypeVar("ConfigType", ModelConfig, EncoderDecoderConfig)
ModuleType = TypeVar("ModuleType", DecoderOnly, EncoderDecoder)
SettingsType = TypeVar("SettingsType", bound=Settings)


class LoadedModel(Generic[ConfigType, ModuleType]):
    """A trained model with its tokenizer, loaded from a model folder or from a checkpoint of a run."""

    def __init__(self, bundle: Bundle[ModuleType], config: ConfigType, *, checkpoint: int | None) -> None:
        self.config = config
        """The model's config: every size, and the kind of every part."""
        self.module = bundle.model
        """The PyTorch module."""
        self.tokenizer = bundle.tokenizer
        """The tokenizer; of an encoder-decoder model, that of the target side."""
        self.training = bundle.training
        """The content of training.json."""
        self.unseen = bundle.unseen
        """Ids that do not occur in the training text (the targets, for pairs); generated only with `allow_unseen`."""
        self.checkpoint = checkpoint
        """The step of the checkpoint that was loaded; None for a model folder."""
        self.notes: list[str] = []
        """Notes for the user about the latest call (such as a prompt longer than the context)."""

    def __repr__(self) -> str:
        config, tokenizer = self.config, self.tokenizer
        encoder = f"{config.n_encoder_layers}+" if isinstance(config, EncoderDecoderConfig) else ""
        return (
            f"<mingyue.{type(self).__name__}: {encoder}{config.n_layers} layers, width {config.d_model}, "
            f"context {config.context}, {tokenizer.kind} tokenizer of {tokenizer.vocab_size}>"
        )


def merge_settings(
    kind: type[SettingsType], settings: SettingsType | None, keywords: dict[str, object]
) -> SettingsType:
    """`settings` (default: those of `kind`) with the fields named in `keywords` replaced. Raises `SettingsError`."""
    base = settings or kind()
    return kind.read({**base.model_dump(), **keywords}, source="the arguments") if keywords else base
