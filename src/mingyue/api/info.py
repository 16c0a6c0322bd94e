"""What a model or a run consists of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mingyue.api.model import Model, load
from mingyue.api.translator import Translator, load_translator, translates
from mingyue.models import Sizes, sizes


@dataclass(frozen=True)
class Info:
    """Everything that `mingyue info` shows."""

    config: dict[str, Any]
    """Every field of the model's config."""
    sizes: Sizes
    """Parameters by part, FLOPs and bytes by formula; of a model of pairs a target token, for whole contexts."""
    tokenizer: dict[str, Any]
    """Kind and size of the vocabulary (of the target side, where there are two)."""
    training: dict[str, Any]
    """training.json."""
    source_tokenizer: dict[str, Any] | None = None
    """The same of a source side with its own vocabulary."""

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
            "training": self.training,
        }


def info(path: str | Path) -> Info:
    """Look at a model folder or a run folder, of either kind of model. Raises as `load` and `load_translator` do."""
    return describe(load_translator(path, device="cpu") if translates(path) else load(path, device="cpu"))


def describe(model: Model | Translator) -> Info:
    """The same for a model at hand."""
    tokenizer, training = model.tokenizer.describe(), dict(model.training)
    if isinstance(model, Model):
        return Info(model.config.model_dump(), sizes(model.config), tokenizer, training)
    own = None if model.config.source_vocab_size is None else model.source_tokenizer.describe()
    return Info(model.config.model_dump(), sizes(model.config), tokenizer, training, own)
