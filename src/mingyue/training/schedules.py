"""Learning-rate schedules: pure functions from a step to a share of the peak rate."""

from __future__ import annotations

import math
from typing import Literal

ScheduleKind = Literal["wsd", "cosine", "paper", "constant"]


def warmup_steps(kind: ScheduleKind, warmup: float, total_steps: int) -> int:
    """Length of the warm-up: a share of all steps below 1, a number of steps from 1 on.

    Never more than all steps; but in the paper's schedule the rate of every step depends on the length of the warm-up,
    and a run that ends before it follows the beginning of the same curve.
    """
    wanted = math.ceil(warmup * total_steps) if warmup < 1 else round(warmup)
    return wanted if kind == "paper" else min(wanted, total_steps)


def decay_start(kind: ScheduleKind, total_steps: int, warmup: int, decay_share: float) -> int:
    """The step (counted from 0) at which the rate begins to fall towards the end; `total_steps` if it never does.

    (The paper's rate falls too, but without looking at the end.)
    """
    if kind == "wsd":
        return max(warmup, total_steps - round(decay_share * total_steps))
    return warmup if kind == "cosine" else total_steps


def multiplier(
    kind: ScheduleKind, step: int, *, total_steps: int, warmup: int, decay_from: int, final_share: float = 0.0
) -> float:
    """Share of the peak rate at `step`, counted from 0; above 0 at every step below `total_steps`.

    The warm-up rises linearly and reaches 1 at its last step. What falls reaches `final_share` at the end of the
    last step, so no step is spent at rate 0.

    - wsd (warm-up, stable, decay; Hu et al. 2024, section 4): linear fall from `decay_from` on.
    - cosine (Loshchilov and Hutter 2017): half a cosine from `decay_from` (the end of the warm-up) to the end.
    - paper (Vaswani et al. 2017, section 5.3): min(n^-0.5, n · warmup^-1.5) with n counted from 1, divided by its
      largest value, warmup^-0.5; see `paper_peak` for the peak itself.
    - constant: 1 after the warm-up.
    """
    number = step + 1
    if kind == "paper":
        peak_at = max(1, warmup)
        return min((peak_at / number) ** 0.5, number / peak_at)
    if step < warmup:
        return number / warmup
    if kind == "constant" or step < decay_from:
        return 1.0
    done = min(1.0, (step - decay_from) / max(1, total_steps - decay_from))
    left = 1.0 - done if kind == "wsd" else 0.5 * (1.0 + math.cos(math.pi * done))
    return final_share + (1.0 - final_share) * left


def paper_peak(d_model: int, warmup: int) -> float:
    """The largest rate of the paper's schedule: d_model^-0.5 · warmup^-0.5 (Vaswani et al. 2017, equation 3)."""
    return d_model**-0.5 * max(1, warmup) ** -0.5
