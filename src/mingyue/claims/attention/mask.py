"""Claim: the causal mask hides the future exactly."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import Matrix, matrix_rows
from mingyue.claims.training import seeds, tiny
from mingyue.claims.wording import Phrase
from mingyue.nn import CAUSAL, Attend, Taps, explicit_attention

ROUNDING = 1e-5
"""Largest change that counts as none."""
CONTROL = 100 * ROUNDING
"""Without the mask, vectors must change by more than this."""
_CHARACTERS = "床前明月"
_WIDTH, _VOCABULARY = 16, 50
_LARGE = -1e9
"""The constant that is often added in place of −∞."""


def measure(trial: Trial) -> Measurement:
    """The 5 × 5 mask, what is added to scores and in which number format, and a model with later tokens replaced."""
    hidden_TS = torch.tensor([[int(key > query) for key in range(5)] for query in range(5)])  # 1 = hidden
    drawn = Attend.from_hidden(hidden_TS).matrix(5, 5) != CAUSAL.matrix(5, 5)
    above, constant, first = list[float](), list[float](), list[float]()
    future, without, sums = list[float](), list[float](), list[float]()
    chosen = seeds(trial, 2, 5, 20)
    for seed in chosen:
        scores_TS, weights_TS = _scores(seed)
        first.append(float((weights_TS[0] - torch.tensor([1.0, 0.0, 0.0, 0.0])).abs().max()))
        infinite_TS = _added(scores_TS, float("-inf"))
        above += [float(infinite_TS.triu(1).abs().max()), float(weights_TS.triu(1).abs().max())]
        constant.append(float((_added(scores_TS, _LARGE) - infinite_TS).abs().max()))
        for model, found in (("decoder-only", future), ("encoder-decoder", without)):
            before, after = _changed(model, seed)
            found.append(float((before - after).abs().max()))
        sums.append(float((scores_TS.sum(-1) - 1).abs().median()))
    half = torch.tensor(_LARGE).to(torch.float16)
    # A row that may attend to nothing: −∞ everywhere divides 0 by 0, a finite constant attends to all.
    empty = torch.zeros(1, 4)
    numbers = {
        "mask_cells_that_differ": Number.exact(float(drawn.sum())),
        "above_diagonal": Number.largest(above),
        "first_row_error": Number.largest(first),
        "constant_fp32": Number.largest(constant),
        "constant_fp16_overflows": Number.exact(float(torch.isinf(half))),
        "empty_row_is_nan": Number.exact(float((empty + float("-inf")).softmax(-1).isnan().any())),
        "future_changes_past": Number.largest(future),
        "future_without_mask": Number.median(without),
        "sum_of_scores_off": Number.median(sums),
    }
    scores_TS, weights_TS = _scores(trial.seed)
    tables = {"scores": matrix_rows(scores_TS.tolist()), "weights": matrix_rows(weights_TS.tolist())}
    return Measurement(numbers, tables)


def _scores(seed: int) -> tuple[Tensor, Tensor]:
    """(scores_TS before mask and softmax, weights_TS after both) of four random tokens under the causal mask."""
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 1, len(_CHARACTERS), _WIDTH, generator=draw) for _ in range(3))
    taps = Taps(["scores", "weights"])
    explicit_attention(query, key, value, CAUSAL, taps=taps)
    return taps.values["scores"][0, 0], taps.values["weights"][0, 0]


def _added(scores_TS: Tensor, constant: float) -> Tensor:
    """Weights when `constant` is added to the scores above the diagonal."""
    hidden_TS = torch.ones_like(scores_TS).triu(1).bool()
    return (scores_TS + torch.zeros_like(scores_TS).masked_fill(hidden_TS, constant)).softmax(-1)


@torch.no_grad()
def _changed(architecture: str, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of the first half of a text, before and after its second half is replaced."""
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(_VOCABULARY, (4, 16), generator=draw)
    other_BT = ids_BT.clone()
    other_BT[:, 8:] = torch.randint(_VOCABULARY, (4, 8), generator=draw)
    if architecture == "decoder-only":
        model = tiny(_VOCABULARY, context=16, seed=seed, initialisation="xavier")
        return model(ids_BT)[:, :8], model(other_BT)[:, :8]
    pairs = tiny(_VOCABULARY, context=16, seed=seed, architecture="encoder-decoder", initialisation="xavier")
    return pairs.encode(ids_BT)[:, :8], pairs.encode(other_BT)[:, :8]


def judge(numbers: Numbers) -> Judgement:
    """Hidden cells exactly 0 and no change of earlier tokens; the constant may need a correction."""
    value = values(numbers)
    exact = value["above_diagonal"] == 0 and value["mask_cells_that_differ"] == 0 and value["constant_fp32"] == 0
    shut = all(numbers[name].at_most(ROUNDING) for name in ("first_row_error", "future_changes_past"))
    control = numbers["future_without_mask"].low > CONTROL
    overflows = value["constant_fp16_overflows"] == 1
    in_fp16 = Phrase("overflows" if overflows else "finite")
    return Judgement.when(exact and shut and control, "found", correction=overflows, in_fp16=in_fp16)


def _labelled(measurement: Measurement, table: str) -> Table:
    """The rows of a matrix with their characters."""
    return [{**row, "character": _CHARACTERS[row["row"]]} for row in measurement.tables[table]]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Matrix("scores", rows=partial(_labelled, table="scores"), labels="character", diverging=True),
        Matrix("weights", rows=partial(_labelled, table="weights"), labels="character", low=0.0, high=1.0),
    ],
    seconds=0,
)
