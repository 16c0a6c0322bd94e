"""Settings of translation: how a target text is searched for."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from mingyue.config.base import Settings


class TranslateSettings(Settings):
    """How a translation is found. The defaults are the paper's (section 6.1): beam 4, α 0.6, at most 50 tokens more."""

    beam: Annotated[int, Field(ge=1)] = 4
    """Hypotheses kept at every step; 1 = greedy."""
    length_penalty: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.6
    """α: a hypothesis scores log P / ((5 + length) / 6)^α (Wu et al. 2016); 0 = log P alone."""
    extra_tokens: Annotated[int, Field(ge=0)] = 50
    """A translation has at most so many tokens more than its source."""
    allow_unseen: bool = False
    """Allow tokens that no target of the training pairs uses."""
    n_best: Annotated[int, Field(ge=1)] = 1
    """Translations given for each line: the best first, at most as many as the beam; with sample, as they are drawn."""
    sample: bool = False
    """Draw each token from the model's distribution instead of searching; beam and length_penalty then do nothing, and
    n_best counts the draws."""
    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0
    """With sample: divides the logits; 0 = always the likeliest token."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """With sample: keep the k likeliest tokens; 0 = off."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """With sample: keep the smallest set of likeliest tokens whose probabilities reach p."""
    seed: Annotated[int, Field(ge=0)] = 1
    """With sample: each draw of each line has its own stream of this seed, whatever the batch."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Most lines translated side by side; changes the speed, never the text."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.sample and self.n_best > self.beam:
            raise ValueError(f"n_best {self.n_best} is above beam {self.beam}: no more hypotheses than that are kept")
        if not self.sample and (self.temperature != 1.0 or self.top_k or self.top_p != 1.0):
            raise ValueError("temperature, top_k and top_p change what is drawn: give sample, or leave them out")
        return self
