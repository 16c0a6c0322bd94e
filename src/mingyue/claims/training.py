"""Small models, and training them: what claims that need a trained model have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.claim import Trial
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.errors import TrainingError
from mingyue.models import DecoderOnly, EncoderDecoder, build_model
from mingyue.runtime import derive_seed
from mingyue.words import tr

_Model = TypeVar("_Model", bound=nn.Module)
_Batch = TypeVar("_Batch")
_LAST_RATE = 0.05
"""Share of the learning rate that is left at the last step of a decaying fit."""


@dataclass
class Fit:
    """How a training went."""

    losses: list[float] = field(default_factory=list)
    """Loss of each step, before its update."""
    steps: int = 0
    """Steps taken."""
    reached: int | None = None
    """The step after which `until` was first true; None = never, or not asked."""
    seconds: float = 0.0


def fit(
    model: _Model,
    batch: Callable[[int], _Batch],
    loss: Callable[[_Model, _Batch], Tensor],
    *,
    steps: int,
    learning_rate: float,
    seed: int = 0,
    warmup: float = 0.05,
    decay: bool = True,
    until: Callable[[_Model], bool] | None = None,
    check_every: int = 10,
    clip: float = 1.0,
    weight_decay: float = 0.0,
) -> Fit:
    """Train with AdamW (Loshchilov & Hutter 2019); the model is left in eval mode.

    `batch(step)` gives the data of a step, a pure function of it; `loss(model, data)` a scalar. The rate rises over the
    share `warmup` of the steps and falls along a cosine if `decay`. `until(model)`, asked every `check_every` steps in
    eval mode and without gradients, ends the training where it is true. `seed` is that of dropout. Raises
    `TrainingError` for a loss that is not a number.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=weight_decay)
    result, began = Fit(), time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "fit"))
        model.train()
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * _rate(step, steps, warmup, decay)
            value = loss(model, batch(step))
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
            result.losses.append(float(value.detach()))
            result.steps = step + 1
            if not math.isfinite(result.losses[-1]):
                raise TrainingError(tr("the loss at step {step} is {loss}: training diverged", step, result.losses[-1]))
            if until is not None and result.steps % check_every == 0:
                model.eval()
                with torch.no_grad():
                    done = until(model)
                model.train()
                if done:
                    result.reached = result.steps
                    break
    model.eval()
    result.seconds = time.perf_counter() - began
    return result


def _rate(step: int, steps: int, warmup: float, decay: bool) -> float:
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    if not decay:
        return 1.0
    share = (step - rising) / max(1, steps - rising)
    return _LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))


@overload
def tiny(
    vocab_size: int,
    *,
    context: int,
    d_model: int = 32,
    n_layers: int = 2,
    n_heads: int = 4,
    seed: int = 0,
    architecture: Literal["decoder-only"] = "decoder-only",
    **config: Any,  # noqa: ANN401
) -> DecoderOnly: ...


@overload
def tiny(
    vocab_size: int,
    *,
    context: int,
    d_model: int = 32,
    n_layers: int = 2,
    n_heads: int = 4,
    seed: int = 0,
    architecture: Literal["encoder-decoder"],
    **config: Any,  # noqa: ANN401
) -> EncoderDecoder: ...


def tiny(
    vocab_size: int,
    *,
    context: int,
    d_model: int = 32,
    n_layers: int = 2,
    n_heads: int = 4,
    seed: int = 0,
    architecture: Literal["decoder-only", "encoder-decoder"] = "decoder-only",
    **config: Any,
) -> DecoderOnly | EncoderDecoder:
    """A small model: pre-norm, LayerNorm, GELU, learned positions, tied output, unless `config` says otherwise.

    `config` holds further fields of `ModelConfig` (or `EncoderDecoderConfig`) by name.
    """
    d_head = config.get("d_head", d_model // n_heads)
    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "context": context,
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "d_head": d_head,
        "d_ff": 4 * d_model,
        "positions": "learned",
        "feedforward": "gelu",
        "norm": "layer",
        "initialisation": "gpt2",
        **config,
    }
    if architecture == "encoder-decoder":
        values = {"n_encoder_layers": n_layers, **values}
        return build_model(EncoderDecoderConfig.read(values, source="a claim"), seed=seed)
    return build_model(ModelConfig.read(values, source="a claim"), seed=seed)


def next_token_loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """Mean −log P of ids_BT[:, 1:], each given what stands before it: scalar, in nats."""
    return F.cross_entropy(model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten())


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """Share of the targets (of any shape, −100 not counted) that have the largest of their logits [..., V]."""
    counted = targets != -100
    return float((logits.argmax(-1) == targets)[counted].float().mean())


def seeds(trial: Trial, small: int, report: int, full: int) -> list[int]:
    """So many seeds as the size asks for; those of two trials with other seeds do not meet."""
    return [1000 * trial.seed + number for number in range(trial.pick(small, report, full))]
