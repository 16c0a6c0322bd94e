"""What is asked of a model: a prompt as ids, and how to continue it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mingyue.config import GenerateSettings


@dataclass(frozen=True)
class Request:
    """One text to generate. Its tokens are a pure function of these fields, whatever else is generated beside it."""

    prompt: str
    """The prompt as text, for the result; it is not read."""
    ids: tuple[int, ...]
    """The prompt as the model reads it, BOS included; at least one token."""
    settings: GenerateSettings = field(default_factory=GenerateSettings)
    """Sampling and stopping of this text alone; `samples` and `batch_size` are not used here."""
    prompt_index: int = 0
    """Index of the prompt among those that share a seed: each has its own random stream."""
    sample: int = 0
    """Index among the samples of the prompt: each has its own random stream."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens before they are sampled."""
    top_logprobs: int | None = None
    """Log-probabilities of each generated token, and of so many of the likeliest; None = none at all."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""


@dataclass(frozen=True)
class PromptToken:
    """A token of a prompt and its log P (natural) under the model; the first token has none."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens at this position and their log P, the likeliest first."""
