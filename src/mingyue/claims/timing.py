"""Times of two or more ways to compute the same, measured beside one another.

A machine is never quite still. So the ways take turns, and what is compared are times of one turn: what slows the
machine for seconds slows both. With one thread it is the time of the process that counts, without that of others which
share the core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from mingyue.claims.claim import Number


def alternating(
    ways: Mapping[str, Callable[[], object]], *, turns: int, least_seconds: float = 2e-3
) -> dict[str, list[float]]:
    """Seconds of one call of each way, once a turn, by name.

    Before the first turn each is called until it has run for `least_seconds`, and as often again in each turn: short
    calls are not lost in the clock. Who begins changes from turn to turn.
    """
    calls = {name: _calls(way, least_seconds) for name, way in ways.items()}
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(_seconds(ways[name], calls[name]) / calls[name])
    return times


def times_as_long(times: Sequence[float], reference: Sequence[float]) -> Number:
    """How many times as long as the reference, turn by turn: the median, between its quartiles."""
    ratios = [time / other for time, other in zip(times, reference, strict=True)]
    if len(ratios) == 1:
        return Number.exact(ratios[0], "×")
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Number(middle, low, high, "×")


def _calls(way: Callable[[], object], least_seconds: float) -> int:
    way()  # what happens only once is not counted
    calls, spent = 0, 0.0
    while not calls or spent < least_seconds:
        spent += _seconds(way, 1)
        calls += 1
    return calls


def _seconds(way: Callable[[], object], calls: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    for _ in range(calls):
        way()
    return clock() - began
