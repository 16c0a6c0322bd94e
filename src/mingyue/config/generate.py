"""Settings of generation: how the next token is sampled and when to stop."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from mingyue.config.base import Settings
from mingyue.config.numbers import Count, NonNegative, Nucleus, Positive, Seed, Share
from mingyue.words import tr


def _as_texts(given: object) -> object:
    """A single text as a list of one."""
    return (given,) if isinstance(given, str) else given


class GenerateSettings(Settings):
    """Sampling and stopping. The defaults sample from the whole distribution at temperature 0.8."""

    max_new_tokens: Count = 200
    """Largest number of generated tokens."""
    min_new_tokens: Count = 0
    """Number of tokens before which the EOS token and stop strings do not end the text."""
    temperature: NonNegative = 0.8
    """Divisor of the logits; 0 = greedy, always the likeliest token."""
    top_k: Count = 0
    """Number of likeliest tokens to sample from; 0 = off; more than the vocabulary = all."""
    top_p: Nucleus = 1.0
    """Nucleus sampling: the smallest set of likeliest tokens whose probabilities sum to p (Holtzman et al. 2020)."""
    min_p: Share = 0.0
    """Smallest probability of a token, as a share of that of the likeliest one."""
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = 1.0
    """Penalty on tokens already seen: positive logits divided by it, negative multiplied (Keskar et al. 2019)."""
    presence_penalty: Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)] = 0.0
    """Subtracted from the logit of each token that was generated already."""
    frequency_penalty: Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)] = 0.0
    """Subtracted from the logit of a token once for each time that it was generated."""
    ignore_eos: bool = False
    """Never generate the EOS token: the text ends at a stop string or at the limit."""
    allow_unseen: bool = False
    """Sample tokens that do not occur in the training text too."""
    valid_utf8: bool = True
    """Valid UTF-8 only: no bytes that are not a character; a character cut by the length limit is left out."""
    stop: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = ()
    """Strings that end the text; they are not part of the result."""
    seed: Seed = 1
    """Seed; each sample of each prompt has its own random stream, whatever the batch."""
    samples: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Number of samples for each prompt."""
    batch_size: Positive = 16
    """Largest number of texts generated at once; changes the speed, and on torch the text at near-ties."""
    prefill_chunk: Positive = 128
    """Largest number of prompt tokens in one forward pass; changes the memory, and the text at near-ties."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                tr(
                    "min_new_tokens {min_new_tokens} is above max_new_tokens {max_new_tokens}",
                    self.min_new_tokens,
                    self.max_new_tokens,
                )
            )
        if any(not text for text in self.stop):
            raise ValueError(tr("a stop text is empty: it would end every text at its start"))
        return self
