"""What tests of claims share: each small form is measured once a process, and judged as often as needed."""

from __future__ import annotations

import functools

from mingyue.claims.claim import CORRECTED, NOT_SUPPORTED, SUPPORTED, Measurement, Number, Numbers, Trial
from mingyue.claims.registry import find

__all__ = ["CORRECTED", "NOT_SUPPORTED", "SUPPORTED", "judged", "small", "unsure", "value"]


@functools.cache
def small(name: str) -> Measurement:
    return find(name).measure(Trial("small"))


def value(name: str, number: str) -> float:
    return small(name).numbers[number].value


def unsure(numbers: Numbers) -> Numbers:
    """The same values in the middle of intervals that reach everywhere: as measured once, with nothing known."""
    return {name: Number(number.value, -1e9, 1e9) for name, number in numbers.items()}


def judged(name: str, **changes: float | Number) -> str:
    """The verdict on the measured numbers with some of them changed."""
    changed = {key: number if isinstance(number, Number) else Number.exact(number) for key, number in changes.items()}
    claim = find(name)
    assert changed.keys() <= claim.labels.keys()
    return claim.judge({**small(name).numbers, **changed}).verdict
