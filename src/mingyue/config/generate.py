"""Settings of writing: how the next token is chosen and when to stop."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from mingyue.config.base import Settings


def _as_texts(given: object) -> object:
    """One text stands for a list of one."""
    return (given,) if isinstance(given, str) else given


class GenerateSettings(Settings):
    """How text is written. The defaults sample from the whole distribution at temperature 0.8."""

    max_new_tokens: Annotated[int, Field(ge=0)] = 200
    """Most tokens written."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    """The end mark and stop strings count only after so many tokens."""
    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.8
    """Divides the logits; 0 = always the likeliest token."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k likeliest tokens; 0 = off; more than the vocabulary = all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities reach p (nucleus; Holtzman et al. 2020)."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Drop tokens less likely than this share of the likeliest one."""
    repetition_penalty: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Makes tokens already seen less likely (Keskar et al. 2019): positive logits divided, negative multiplied."""
    allow_unseen: bool = False
    """Allow tokens that the training text does not use."""
    stop: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = ()
    """Texts that end the writing; they are not part of the result."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Each sample of each prompt draws from its own stream of this seed, whatever the batch."""
    samples: Annotated[int, Field(ge=1)] = 1
    """Texts written for each prompt."""
    batch_size: Annotated[int, Field(ge=1)] = 16
    """Most texts written side by side; changes the speed, never the text."""
    prefill_chunk: Annotated[int, Field(ge=1)] = 512
    """Most tokens of a prompt read in one pass; changes the memory, never the text."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}")
        if any(not text for text in self.stop):
            raise ValueError("a stop text is empty: it would end every text at once")
        return self
