"""The label of a head: its nearest attention pattern, with the score; and the loss without the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mingyue.inspection.head_patterns import EARNED, Pattern, Scores
from mingyue.inspection.parts import Part

Floats = NDArray[np.float64]
_LEAST_ABOVE = 0.005
Source = Literal["random", "texts"]
"""Probe texts: a random sequence repeated once, and the texts that were given."""


@dataclass(frozen=True)
class Best:
    """The pattern that a head is nearest to."""

    pattern: Pattern
    measured_on: Source
    score: float
    threshold: float
    uniform: float
    earned: bool
    """Whether the score reaches the threshold."""

    @property
    def stands_out(self) -> bool:
        """Whether the score is above that of uniform attention, to two decimals."""
        return self.score - self.uniform >= _LEAST_ABOVE


@dataclass(frozen=True)
class PartHeads:
    """The heads of one kind of attention. Arrays are [L layers, H heads]."""

    part: Part
    scores: Mapping[Source, Scores]
    """By the probe texts that they were measured on."""
    zero_LH: Floats | None = None
    """Change of the loss (nats per token) with the head's output at 0; above 0 = the head lowers the loss.

    None: not measured.
    """
    mean_LH: Floats | None = None
    """The same when its output is its mean over the text."""
    zero_error_LH: Floats | None = None
    """The standard error of `zero_LH`; NaN where a single token was measured."""
    mean_error_LH: Floats | None = None
    """The standard error of `mean_LH`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        n_layers, n_heads, _ = next(iter(self.scores.values())).scores_LHP.shape
        return n_layers, n_heads

    def best(self, layer: int, head: int) -> Best:
        """The pattern of a head whose score is furthest above that of uniform attention, on any of the probe texts."""
        found = []
        for source, scores in self.scores.items():
            number = int(scores.excess_LHP[layer, head].argmax())
            score, threshold, uniform = (
                float(values[number])
                for values in (scores.scores_LHP[layer, head], scores.thresholds_P, scores.uniform_P)
            )
            excess = float(scores.excess_LHP[layer, head, number])
            found.append((excess, Best(scores.patterns[number], source, score, threshold, uniform, excess >= EARNED)))
        return max(found, key=lambda one: one[0])[1]

    def label(self, layer: int, head: int) -> Pattern:
        """The pattern of the head if its score reaches the threshold, else "mixed"."""
        best = self.best(layer, head)
        return best.pattern if best.earned else "mixed"

    @property
    def labels_LH(self) -> tuple[tuple[Pattern, ...], ...]:  # noqa: N802
        """The labels of all heads."""
        n_layers, n_heads = self.shape
        return tuple(tuple(self.label(layer, head) for head in range(n_heads)) for layer in range(n_layers))
