"""Settings of translation: beam search, or sampling."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from mingyue.config.base import Settings
from mingyue.config.numbers import Count, NonNegative, Nucleus, Positive, Seed
from mingyue.words import tr

_OF_SAMPLING = {"temperature", "top_k", "top_p", "seed"}
_OF_SEARCH = {"beam", "length_penalty"}


class TranslateSettings(Settings):
    """Beam search or sampling. The defaults are the paper's (section 6.1): beam 4, α 0.6, at most 50 tokens more."""

    beam: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Beam size: number of hypotheses kept at every step; 1 = greedy."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False)] = 0.6
    """α of the score log P / ((5 + length) / 6)^α (Wu et al. 2016); 0 = log P alone."""
    extra_tokens: Count = 50
    """Largest length of a translation, in tokens beyond that of its source."""
    allow_unseen: bool = False
    """Generate tokens that do not occur in the training targets too."""
    n_best: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of translations for each line, best first, at most as many as the beam; with sample, in drawing order."""
    sample: bool = False
    """Sampling from the model's distribution instead of beam search, without beam and length_penalty (`translate`:
    n_best is the number of samples)."""
    temperature: NonNegative = 1.0
    """With sample: divisor of the logits; 0 = always the likeliest token."""
    top_k: Count = 0
    """With sample: number of likeliest tokens to sample from; 0 = off."""
    top_p: Nucleus = 1.0
    """With sample: nucleus sampling, the smallest set of likeliest tokens whose probabilities sum to p."""
    seed: Seed = 1
    """With sample: seed; each sample of each line has its own random stream, whatever the batch."""
    batch_size: Positive = 64
    """Largest number of lines translated at once; changes the speed, and the text only at near-ties."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.sample and self.n_best > self.beam:
            raise ValueError(
                tr("n_best {n_best} is above beam {beam}: only that many hypotheses are kept", self.n_best, self.beam)
            )
        given = {name for name, info in type(self).model_fields.items() if getattr(self, name) != info.default}
        if unused := sorted(given & (_OF_SEARCH if self.sample else _OF_SAMPLING)):
            verb, other = (
                (tr("beam search"), tr("leave sample out")) if self.sample else (tr("sampling"), tr("give sample"))
            )
            raise ValueError(
                tr(
                    "{unused}: without effect except in {verb}; {other}, or leave them out",
                    ", ".join(unused),
                    verb,
                    other,
                )
            )
        return self
