"""Parameters, FLOPs, bytes and tokenizers of a model or a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mingyue.api.loading import load_either
from mingyue.api.model import Model
from mingyue.api.translator import Translator
from mingyue.models import Sizes, sizes
from mingyue.runs.initial import initial_of


@dataclass(frozen=True)
class Info:
    """The content of `mingyue info`."""

    config: dict[str, Any]
    """Every field of the model's config."""
    sizes: Sizes
    """Parameters by part, FLOPs and bytes by formula (encoder-decoder: per target token, both texts a full context)."""
    tokenizer: dict[str, Any]
    """Kind and size of the vocabulary; of an encoder-decoder model, that of the target side."""
    training: dict[str, Any]
    """Content of training.json."""
    source_tokenizer: dict[str, Any] | None = None
    """Kind and size of the source vocabulary, where it is not shared."""
    init: str | None = None
    """The model that the run started from (`--init`), as its run.toml names it; None for a model folder alone."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as which checkpoint of a run was read."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        counted = self.sizes
        source = {} if self.source_tokenizer is None else {"source_tokenizer": self.source_tokenizer}
        return {
            "model": self.config,
            "parameters": {
                **counted.parts(),
                "total": counted.parameters,
                "in_blocks": counted.parameters_without_embeddings,
            },
            "flops_per_token": {"forward": counted.forward_flops(), "training": counted.training_flops()},
            "bytes": {
                "weights": counted.weight_bytes(),
                "training_muon": counted.training_bytes("muon", 1).total,
                "training_adamw": counted.training_bytes("adamw", 1).total,
                "cache_of_a_text": counted.cache_bytes(),
            },
            "tokenizer": self.tokenizer,
            **source,
            **({} if self.init is None else {"init": self.init}),
            "training": self.training,
        }


def info(path: str | Path) -> Info:
    """Describe the model in a model folder or run folder, of either architecture. Raises as `load` does."""
    return replace(describe(load_either(path, device="cpu")), init=initial_of(path))


def describe(model: Model | Translator) -> Info:
    """Describe a loaded model."""
    tokenizer, training = model.tokenizer.describe(), dict(model.training)
    if isinstance(model, Model):
        return Info(model.config.model_dump(), sizes(model.config), tokenizer, training, notes=model.loading_notes)
    source = None if model.config.source_vocab_size is None else model.source_tokenizer.describe()
    return Info(model.config.model_dump(), sizes(model.config), tokenizer, training, source, notes=model.loading_notes)
