"""The size of a model from the machine's speed, the budget and the text, where the settings do not give it."""

from __future__ import annotations

from dataclasses import dataclass

from mingyue.config import ModelConfig, TrainSettings
from mingyue.models import resolve_config
from mingyue.models.size import sizes

DEFAULT_CONTEXT = 256
LEAST_DEPTH, MOST_DEPTH = 2, 24
NARROW = (96, 64)
"""Widths for a budget that is too short for depth 2: two narrow layers learn faster than one of the usual width."""
EFFICIENCY = 0.35
"""Share of the matrix-multiply peak that training of small models reaches on two cores."""
_TOKENS_PER_PARAMETER = 2.0  # trained tokens per parameter in the blocks, at least
_PARAMETERS_PER_TOKEN = 8.0  # parameters in the blocks per token of the training text, at most
_MICRO_TOKENS = 8192  # larger micro-batches are not faster on a CPU
_ACTIVATION_BYTES = 2 << 30


@dataclass(frozen=True)
class Speed:
    """The speed of the machine and the time for training."""

    flops_per_second: float
    """Of matrix products, as measured by `measure_peak`."""
    seconds: float
    """Time for training."""


def choose_sizes(settings: TrainSettings, *, vocab_size: int, train_tokens: int, speed: Speed) -> TrainSettings:
    """`settings` with depth, context, batch_tokens and micro_batch_tokens filled in where they are not given.

    The depth is the largest whose blocks are trained on at least two tokens per parameter within the budget, and are
    not far larger than the text; if the budget is too short for depth 2, its width is one of `NARROW`. The batch grows
    with the square root of the tokens that will be trained on (the critical batch size grows during training;
    McCandlish et al. 2018).
    """
    context = settings.model.context or DEFAULT_CONTEXT
    depth = settings.model.depth or settings.model.n_layers
    if depth is None:
        depth = _choose_depth(settings, vocab_size, train_tokens, context, speed)
        if depth == LEAST_DEPTH and settings.model.d_model is None:
            width = _choose_width(settings, vocab_size, train_tokens, context, speed)
            settings = settings.with_flat(d_model=width) if width else settings
    config = resolve_config(settings.model, vocab_size=vocab_size, depth=depth, context=context)
    micro = settings.batch.micro_batch_tokens or _micro_tokens(config, context, recompute=settings.batch.recompute)
    batch = settings.batch.batch_tokens
    if batch is None:
        total = _trained_tokens(settings, config, train_tokens, speed)
        batch = _in_windows(2 * total**0.5, context, least=max(context, 512), most=1 << 19)
        if batch > micro:  # whole micro-batches: a step of 17 windows has no equal parts
            batch = round(batch / micro) * micro
    return settings.with_flat(depth=depth, context=context, batch_tokens=batch, micro_batch_tokens=min(micro, batch))


def _choose_depth(settings: TrainSettings, vocab_size: int, train_tokens: int, context: int, speed: Speed) -> int:
    best = LEAST_DEPTH
    for depth in range(1, MOST_DEPTH + 1):
        config = resolve_config(settings.model, vocab_size=vocab_size, depth=depth, context=context)
        parameters = sizes(config).parameters_without_embeddings
        trained = _trained_tokens(settings, config, train_tokens, speed)
        if parameters > _PARAMETERS_PER_TOKEN * train_tokens:
            return max(1, depth - 1)
        if trained < _TOKENS_PER_PARAMETER * parameters:
            return max(LEAST_DEPTH, depth - 1)
        best = depth
    return best


def _choose_width(
    settings: TrainSettings, vocab_size: int, train_tokens: int, context: int, speed: Speed
) -> int | None:
    """The width of two layers; None: the usual width of depth 2."""
    for width in (None, *NARROW):
        narrow = settings.with_flat(d_model=width) if width else settings
        config = resolve_config(narrow.model, vocab_size=vocab_size, depth=LEAST_DEPTH, context=context)
        parameters = sizes(config).parameters_without_embeddings
        if _trained_tokens(settings, config, train_tokens, speed) >= _TOKENS_PER_PARAMETER * parameters:
            return width
    return NARROW[-1]


def _trained_tokens(settings: TrainSettings, config: ModelConfig, train_tokens: int, speed: Speed) -> float:
    """Approximate number of tokens that a run of this model is trained on."""
    budget = settings.budget
    if budget.epochs is not None:
        return budget.epochs * train_tokens
    if budget.steps is not None:
        return budget.steps * (settings.batch.batch_tokens or 8 * config.context)
    return max(1.0, speed.seconds) * EFFICIENCY * speed.flops_per_second / sizes(config).training_flops()


def _micro_tokens(config: ModelConfig, context: int, *, recompute: bool) -> int:
    a_row = sizes(config).activation_bytes(1, context, recompute=recompute)
    fitting = max(1, _ACTIVATION_BYTES // a_row) * context
    return max(context, min(_MICRO_TOKENS, fitting) // context * context)


def _in_windows(tokens: float, context: int, *, least: int, most: int) -> int:
    return max(1, round(min(max(tokens, least), most) / context)) * context
