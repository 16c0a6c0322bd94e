"""Claim: an embedding is a row of a table, the product of a one-hot vector and the matrix."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import Bars
from mingyue.claims.training import tiny
from mingyue.runtime import derive_seed

_ROWS = 24
"""Rows of the table whose gradients are shown."""


def measure(trial: Trial) -> Measurement:
    """A row against the product with a one-hot vector; the gradient of each row in one step, untied and tied."""
    vocab_size, d_model, n_tokens = trial.pick((300, 32, 64), (3000, 512, 512), (3000, 512, 4096))
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "lookup"))
    table = tiny(vocab_size, context=8, d_model=d_model, n_layers=1, seed=trial.seed).embedding
    ids_T = torch.randint(vocab_size, (n_tokens,), generator=generator)
    with torch.no_grad():
        one_hot_TV = F.one_hot(ids_T, vocab_size).float()
        apart = (table(ids_T) - one_hot_TV @ table.weight).abs().max()
        slower = _seconds(lambda: one_hot_TV @ table.weight) / _seconds(lambda: table(ids_T))

    # Ids are drawn from the first half of a small vocabulary, so that the other half cannot occur.
    ids_1T = torch.randint(_ROWS // 2, (1, 13), generator=generator)
    read = set(ids_1T[0, :-1].tolist())
    untied_V, tied_V = (_gradients(ids_1T, tied=tied, seed=trial.seed) for tied in (False, True))
    reached = {row for row in range(_ROWS) if untied_V[row] > 0}
    numbers = {
        "apart": Number.exact(float(apart)),
        "slower": Number.exact(slower),
        "vocab_size": Number.exact(_ROWS),
        "rows_read": Number.exact(len(read)),
        "rows_untied": Number.exact(len(reached)),
        "rows_astray": Number.exact(len(reached ^ read)),
        "rows_tied": Number.exact(float((tied_V > 0).sum())),
    }
    rows = [
        {"row": row, "read": row in read, "untied": float(untied_V[row]), "tied": float(tied_V[row])}
        for row in range(_ROWS)
    ]
    return Measurement(numbers, {"gradients": rows})


def _gradients(ids_1T: Tensor, *, tied: bool, seed: int) -> Tensor:
    """Norm of the gradient of the loss for each row of the table, [V]."""
    model = tiny(_ROWS, context=16, seed=seed, tied_output=tied)
    F.cross_entropy(model(ids_1T[:, :-1]).flatten(0, 1), ids_1T[:, 1:].flatten()).backward()
    gradient_VM = nn.Module.get_parameter(model, "embedding.weight").grad
    assert gradient_VM is not None
    return gradient_VM.norm(dim=1)


def _seconds(work: Callable[[], Tensor]) -> float:
    """Median time of a few runs."""
    taken = list[float]()
    for _ in range(7):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def judge(numbers: Numbers) -> Judgement:
    """Row and product are the same bits; without tying the rows that were read have a gradient, with tying all have."""
    value = values(numbers)
    equal = value["apart"] == 0 and value["rows_astray"] == 0 and value["rows_tied"] == value["vocab_size"]
    return Judgement.supported("equal") if equal else Judgement.not_supported("differ")


def _norms(measurement: Measurement) -> Table:
    """The gradients of both tables as two series."""
    return [
        {"row": str(row["row"]), "table": table, "norm": row[table]}
        for table in ("untied", "tied")
        for row in measurement.tables["gradients"]
    ]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Bars("gradients", rows=_norms, x="row", y="norm", series="table", interval=None)],
    seconds=0,
)
