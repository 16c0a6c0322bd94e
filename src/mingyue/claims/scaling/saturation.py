"""Claim: without scaling, softmax over many dimensions goes to one-hot and its gradient vanishes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
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
_ARMS = ("plain", "scaled")
_TOP = 0.1
_PIECE = 512


def measure(trial: Trial) -> Measurement:
    """Largest weight, norm of the softmax Jacobian and of the gradient that reaches the query, by width and arm."""
    widths = trial.pick((4, 64, 1024), tuple(4**power for power in range(1, 7)), tuple(4**p for p in range(1, 8)))
    n_rows = trial.pick(512, 2048, 8192)
    chosen = seeds(trial, 3, 8, 16)
    rows: list[dict[str, Any]] = []
    numbers = {"least_width": Number.exact(widths[0]), "most_width": Number.exact(widths[-1])}
    for arm in _ARMS:
        for width in widths:
            found = [_medians(width, n_rows, arm == "scaled", seed) for seed in chosen]
            means = {name: Number.mean([one[name] for one in found]) for name in found[0]}
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
    largest, jacobians, gradients = list[Tensor](), list[Tensor](), list[Tensor]()
    for start in range(0, n_rows, _PIECE):
        count = min(_PIECE, n_rows - start)
        query_ND = torch.randn(count, width, generator=draw)
        key_SD = torch.randn(KEYS, width, generator=draw)
        weights_NS = (factor * query_ND @ key_SD.T).double().softmax(-1)  # in fp32, 1 − p would be 0 too soon
        # ∂weights/∂scores = diag(p) − p pᵀ
        jacobian_NSS = torch.diag_embed(weights_NS) - weights_NS[:, :, None] * weights_NS[:, None, :]
        jacobians.append(jacobian_NSS.flatten(1).norm(dim=-1))
        # ‖J K‖² = Σ (J K Kᵀ) ∘ J: never a [S, D] matrix a row.
        products_SS = (key_SD @ key_SD.T).double()
        gradients.append(factor * ((jacobian_NSS @ products_SS) * jacobian_NSS).sum((1, 2)).clamp(min=0).sqrt())
        largest.append(weights_NS.amax(-1))
    jacobian_N, gradient_N = torch.cat(jacobians), torch.cat(gradients)
    ordered_N = gradient_N.sort(descending=True).values
    return {
        "largest": float(torch.cat(largest).median()),
        "jacobian": float(jacobian_N.median()),
        "vanished": float((jacobian_N < VANISHED).float().mean()),
        "gradient_median": float(gradient_N.median()),
        "gradient_mean": float(gradient_N.mean()),
        "top_share": float(ordered_N[: round(_TOP * n_rows)].sum() / ordered_N.sum()),
    }


def judge(numbers: Numbers) -> Judgement:
    """Medians without scaling collapse and with scaling stay; if the mean does not collapse too, a correction."""
    value = values(numbers)
    one_hot = value["plain_largest_most"] >= ONE_HOT
    falls = value["plain_jacobian_most"] <= FALLS * value["plain_jacobian_least"]
    changes = [_factor(value[f"scaled_{name}_least"], value[f"scaled_{name}_most"]) for name in ("largest", "jacobian")]
    stays = max(changes) <= STAYS and value["scaled_vanished_most"] == 0
    mean_stays = value["plain_gradient_mean_most"] >= value["plain_gradient_mean_least"]
    return Judgement.when(one_hot and falls and stays, "found", correction=mean_stays)


def _factor(one: float, other: float) -> float:
    return max(one, other) / min(one, other) if min(one, other) > 0 else math.inf


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
    seconds=9,
)
