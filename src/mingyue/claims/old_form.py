"""Claims whose words are still in their code; each is to become a `Claim` with files of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mingyue.charts import Chart
from mingyue.claims.claim import Finding, Measurement, Numbers, Trial
from mingyue.words import Language, Words

_SECONDS: dict[str, float] = {"hallucination": 47, "shift": 30, "maximum-likelihood": 29, "chain-rule": 17}


@dataclass(frozen=True)
class OldClaim:
    """A claim with its words."""

    name: str
    group: str
    claim: Words
    prediction: Words
    method: Words
    measure: Callable[[Trial], Measurement]
    judge: Callable[[Numbers], Finding]
    draw: Callable[[Measurement, Language], Sequence[Chart]]
    labels: Mapping[str, Words]
    correction: Words | None = None

    @property
    def seconds(self) -> float:
        """Roughly what the report size takes."""
        return _SECONDS.get(self.name, 1)

    def finding(self, numbers: Numbers) -> Finding:
        """The verdict and its reason."""
        return self.judge(numbers)
