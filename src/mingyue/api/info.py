"""What a model or a run consists of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mingyue.api.model import Model, load
from mingyue.models.sizes import Sizes, sizes


@dataclass(frozen=True)
class Info:
    """Everything that `mingyue info` shows."""

    config: dict[str, Any]
    """Every field of the model's config."""
    sizes: Sizes
    """Parameters by part, FLOPs and bytes by formula."""
    tokenizer: dict[str, Any]
    """Kind and size of the vocabulary."""
    training: dict[str, Any]
    """training.json."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        counted = self.sizes
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
            "training": self.training,
        }


def info(path: str | Path) -> Info:
    """Look at a model folder or a run folder. Raises as `load` does."""
    return describe(load(path, device="cpu"))


def describe(model: Model) -> Info:
    """The same for a model at hand."""
    tokenizer = model.tokenizer
    return Info(model.config.model_dump(), sizes(model.config), tokenizer.describe(), dict(model.training))
