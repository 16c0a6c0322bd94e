"""Recipes: training settings that belong together. A setting that is given always wins over the recipe."""

from __future__ import annotations

from typing import Any

from mingyue.config import TrainSettings, with_effective_defaults
from mingyue.words import tr

# "Attention Is All You Need": Adam with β₂ 0.98 and ε 1e-9 and the rate of section 5.3, label smoothing 0.1 (5.4), the
# last 5 checkpoints averaged (6.1). The paper says nothing of weight decay or clipping.
_PAPER: dict[str, Any] = {
    "optimiser": "adamw",
    "beta2": 0.98,
    "adam_eps": 1e-9,
    "weight_decay": 0.0,
    "clip": 0.0,
    "label_smoothing": 0.1,
    "schedule": "paper",
    "warmup": 4000,
    "average_last": 5,
}
# Label smoothing as in the paper; a vocabulary for corpora of some ten thousand pairs, where the paper has 37,000 ids
# for 4.5 million.
_PAIRS: dict[str, Any] = {
    "label_smoothing": 0.1,
    "tokenizer": "bpe",
    "tokenizer_size": 4096,
    "muon_momentum": 0.95,
}


def with_recipe(settings: TrainSettings) -> TrainSettings:
    """`settings` with the values of their recipe, and the defaults for pairs, where nothing was given."""
    values = dict(_PAIRS) if settings.pairs.given else {}
    if settings.optimiser.recipe == "paper":
        values |= _PAPER
    return with_effective_defaults(settings, tr("the recipe"), values)
