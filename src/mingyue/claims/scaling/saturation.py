"""Claim: without scaling, softmax over many dimensions goes to one-hot and its gradient vanishes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import seeds

KEYS = 32
VANISHED = 1e-3
"""A Jacobian of a smaller norm counts as vanished."""
ONE_HOT = 0.95
"""A median largest weight above this is called one-hot."""
FALLS = 0.01
"""Without scaling the median Jacobian must fall to this share of what it is at the least width, or below."""
STAYS = 1.5
"""With scaling, medians may change by this factor at most."""
CARRIES = 0.5
"""A tenth of the rows that has at least this share of the gradient carries it."""
_ARMS = ("plain", "scaled")
_SHARES = ("vanished", "top_share")
_TOP = 0.1
_PIECE = 512


def measure(trial: Trial) -> Measurement:
    """Largest weight, norm of the softmax Jacobian and of the gradient that reaches the query, by width and arm."""
    widths = trial.pick((4, 64, 4096), tuple(4**power for power in range(1, 7)), tuple(4**p for p in range(1, 8)))
    n_rows = trial.pick(512, 2048, 8192)
    chosen = seeds(trial, 8, 8, 16)
    rows: list[dict[str, Any]] = []
    numbers = {"least_width": Number.exact(widths[0]), "most_width": Number.exact(widths[-1])}
    for arm in _ARMS:
        for width in widths:
            found = [_medians(width, n_rows, arm == "scaled", seed) for seed in chosen]
            means = {
                name: (Number.share if name in _SHARES else Number.mean)([one[name] for one in found])
                for name in found[0]
            }
            row: dict[str, Any] = {"d_k": width, "arm": arm}
            for name, number in means.items():
                row |= {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
            rows.append(row)
            for end, at in (("least", widths[0]), ("most", widths[-1])):
                if width == at:
                    numbers |= {f"{arm}_{name}_{end}": number for name, number in means.items()}
    return Measurement(numbers, {"rows": rows})


def _medians(width: int, n_rows: int, scaled: bool, seed: int) -> dict[str, float]:
    draw = torch.Generator().manual_seed(seed)
    factor = 1 / math.sqrt(width) if scaled else 1.0
    largest, gaps, jacobians, gradients = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    for start in range(0, n_rows, _PIECE):
        count = min(_PIECE, n_rows - start)
        query_ND = torch.randn(count, width, generator=draw)
        key_SD = torch.randn(KEYS, width, generator=draw)
        scores_NS = (factor * query_ND @ key_SD.T).double()  # in fp32, 1 − p would be 0 too soon
        weights_NS = scores_NS.softmax(-1)
        first_N, second_N = scores_NS.topk(2).values.unbind(-1)
        gaps.append(first_N - second_N)
        # ∂weights/∂scores = diag(p) − p pᵀ
        jacobian_NSS = torch.diag_embed(weights_NS) - weights_NS[:, :, None] * weights_NS[:, None, :]
        jacobians.append(jacobian_NSS.flatten(1).norm(dim=-1))
        # ‖J K‖² = Σ (J K Kᵀ) ∘ J: never a [S, D] matrix a row.
        products_SS = (key_SD @ key_SD.T).double()
        gradients.append(factor * ((jacobian_NSS @ products_SS) * jacobian_NSS).sum((1, 2)).clamp(min=0).sqrt())
        largest.append(weights_NS.amax(-1))
    jacobian_N, gradient_N, gap_N = torch.cat(jacobians), torch.cat(gradients), torch.cat(gaps)
    ordered_N, order_N = gradient_N.sort(descending=True)
    n_top = round(_TOP * n_rows)
    return {
        "largest": float(torch.cat(largest).median()),
        "jacobian": float(jacobian_N.median()),
        "vanished": float((jacobian_N < VANISHED).float().mean()),
        "gradient_median": float(gradient_N.median()),
        "gradient_mean": float(gradient_N.mean()),
        "gradient_spread": float(gradient_N.std() / gradient_N.mean()),
        "top_share": float(ordered_N[:n_top].sum() / ordered_N.sum()),
        "gap_top": float(gap_N[order_N[:n_top]].median()),
        "gap_rest": float(gap_N[order_N[n_top:]].median()),
    }


def judge(numbers: Numbers) -> Judgement:
    """Medians without scaling collapse and with scaling stay; if the mean does not collapse too, a correction."""
    one_hot = numbers["plain_largest_most"].at_least(ONE_HOT)
    falls = all(_falls(numbers, name) for name in ("jacobian", "gradient_median"))
    stays = all(_changes(numbers, name) <= STAYS for name in ("largest", "jacobian", "gradient_median"))
    stays = stays and numbers["scaled_vanished_most"].value == 0
    if not (one_hot and falls and stays):
        return Judgement.not_supported("found", "mean")
    if _falls(numbers, "gradient_mean"):
        return Judgement.supported("found", "mean")
    few = numbers["plain_top_share_most"].at_least(CARRIES)
    close = numbers["plain_gap_top_most"].high < numbers["plain_gap_rest_most"].low
    return Judgement.corrected("found", "mean", *(("few",) if few and close else ()))


def _falls(numbers: Numbers, name: str) -> bool:
    """Whether it surely falls, without scaling, to at most `FALLS` of what it is at the least width."""
    return numbers[f"plain_{name}_most"].at_most(FALLS * numbers[f"plain_{name}_least"].low)


def _changes(numbers: Numbers, name: str) -> float:
    """The largest factor, by the ends of the intervals, by which it changes with scaling."""
    least, most = numbers[f"scaled_{name}_least"], numbers[f"scaled_{name}_most"]
    if not min(least.low, most.low) > 0:
        return math.inf
    return max(most.high / least.low, least.high / most.low)


def _gradients(measurement: Measurement) -> Table:
    """Median and mean of the gradient at the query as two series."""
    return [
        {"d_k": row["d_k"], "arm": row["arm"], "statistic": name, "value": row[f"gradient_{name}"],
         "low": row[f"gradient_{name}_low"], "high": row[f"gradient_{name}_high"]}
        for row in measurement.tables["rows"] for name in ("median", "mean")
    ]  # fmt: skip


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines(
            "jacobian",
            table="rows",
            x="d_k",
            y="jacobian",
            series="arm",
            interval=("jacobian_low", "jacobian_high"),
            log_x=True,
            log_y=True,
        ),
        Lines("gradient", rows=_gradients, x="d_k", series=("arm", "statistic"), log_x=True, log_y=True),
    ],
    seconds=6,
)
