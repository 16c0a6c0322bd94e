"""Claim: attention can be followed by hand, from scores to mask to softmax to V, and gives the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import WordTable
from mingyue.claims.grammar import generator
from mingyue.claims.number_figures import NumberTables
from mingyue.claims.training import seeds
from mingyue.nn import CAUSAL, EVERYONE, Attend, MultiHeadAttention, Rotation, Taps

ROUNDING = 1e-6
"""Largest difference between numbers computed by hand, in double precision, and those of the library, in fp32."""
_FIVE = ("<Begin>", "I", "have", "a", "cat")
_HIDDEN = ((0, 1, 1, 1, 1), (0, 0, 1, 1, 1), (0, 0, 0, 1, 1), (0, 0, 0, 0, 1), (0, 0, 0, 0, 0))
"""The mask of the example: 1 = hidden."""
_QUERY = ((1, 0, 1, 0), (0, 2, 0, 1), (1, 1, 0, 2), (0, 1, 2, 0), (2, 0, 1, 1))
_KEY = ((1, 1, 0, 0), (0, 1, 1, 0), (2, 0, 0, 1), (0, 0, 1, 1), (1, 0, 2, 1))
_VALUE = ((1, 0, 2, 0), (0, 3, 0, 1), (2, 1, 0, 0), (0, 0, 1, 4), (3, 0, 0, 2))
"""Small whole numbers, so that a reader can follow; √d_k is 2."""
_FOUR = "床前明月"
_FOUR_WEIGHTS = ((1.0, 0.0, 0.0, 0.0), (0.01, 0.99, 0.0, 0.0), (0.1, 0.2, 0.7, 0.0), (0.1, 0.2, 0.2, 0.5))
_LATER_SCORE = 2.0
"""Before the mask, a later token of the four may well have the largest score."""
_SEVEN = ("猫", "喜欢", "吃", "鱼", "它", "很", "聪明")
_SEVEN_WEIGHTS = (0.7, 0.05, 0.05, 0.1, 0.02, 0.03, 0.05)
_STEPS = ("query", "key", "value", "scores", "weights", "heads")

Matrix = Sequence[Sequence[float]]


def measure(trial: Trial) -> Measurement:
    """The steps by hand beside those of the library; the mask in other conventions; two more examples."""
    by_hand, computed = _steps_by_hand(_QUERY, _KEY, _VALUE, _HIDDEN), _steps_of_library(_QUERY, _KEY, _VALUE, _HIDDEN)
    drawn = [_drawn(seed, number) for seed in seeds(trial, 1, 5, 20) for number in range(10)]
    hidden_TS = torch.tensor(_HIDDEN)
    scores_TS = torch.tensor(by_hand["scores"], dtype=torch.float32)
    right_TS = torch.tensor(by_hand["weights"], dtype=torch.float32)
    converted = [_weights(scores_TS, attend) for attend in _conventions(hidden_TS)]
    added_TS = (scores_TS + hidden_TS).softmax(-1)
    multiplied_TS = scores_TS.softmax(-1) * (1 - hidden_TS)
    four = _four()
    seven_TS = torch.tensor(_SEVEN_WEIGHTS)[None].expand(len(_SEVEN), -1)
    pronoun = _SEVEN.index("它")
    causal_S = _weights(seven_TS.log(), CAUSAL)[pronoun]
    numbers = {
        "numbers_compared": Number.exact(sum(len(row) for name in _STEPS for row in by_hand[name])),
        "apart": Number.exact(_apart(by_hand, computed)),
        "drawn_apart": Number.largest(_apart(hand, library) for hand, library in drawn),
        "mask_cells_that_differ": Number.exact(
            float((Attend.from_hidden(hidden_TS).matrix(5, 5) != CAUSAL.matrix(5, 5)).sum())
        ),
        "conventions_apart": Number.largest(float((one - converted[0]).abs().max()) for one in converted),
        "added_future": Number.exact(float(added_TS[hidden_TS.bool()].max())),
        "multiplied_sum": Number.exact(float(multiplied_TS.sum(-1).min())),
        "boolean_rows_wrong": Number.exact(_rows_wrong(hidden_TS, right_TS)),
        "four_apart": Number.exact(float((four - torch.tensor(_FOUR_WEIGHTS)).abs().max())),
        "seven_apart": Number.exact(float((_weights(seven_TS.log(), EVERYONE) - seven_TS).abs().max())),
        "seven_later": Number.exact(sum(_SEVEN_WEIGHTS[pronoun + 1 :])),
        "seven_causal": Number.exact(float(causal_S[0])),
    }
    seven = [*_seven_row("encoder", _SEVEN_WEIGHTS), *_seven_row("causal", causal_S.tolist())]
    return Measurement(numbers, {**_tables(by_hand), "four": _four_rows(four), "seven": seven})


def _steps_by_hand(query: Matrix, key: Matrix, value: Matrix, hidden: Matrix) -> dict[str, list[list[float]]]:
    """Every number of attention, with the operations of arithmetic alone. Hidden scores are −∞ in `masked`."""
    width = len(query[0])
    products = [[sum(a * b for a, b in zip(q, k, strict=True)) for k in key] for q in query]
    scores = [[product / math.sqrt(width) for product in row] for row in products]
    masked = [
        [-math.inf if hides else score for score, hides in zip(*rows, strict=True)]
        for rows in zip(scores, hidden, strict=True)
    ]
    powers = [[math.exp(score) for score in row] for row in masked]
    weights = [[power / sum(row) for power in row] for row in powers]
    heads = [[sum(w * v[part] for w, v in zip(row, value, strict=True)) for part in range(width)] for row in weights]
    given = {"query": query, "key": key, "value": value, "products": products, "scores": scores}
    named = {**given, "masked": masked, "weights": weights, "heads": heads}
    return {name: [[float(number) for number in row] for row in matrix] for name, matrix in named.items()}


@torch.no_grad()
def _steps_of_library(query: Matrix, key: Matrix, value: Matrix, hidden: Matrix) -> dict[str, list[list[float]]]:
    """The same from the attention module of models. Its input is one-hot, so that W_Q, W_K and W_V are the tables."""
    attention = MultiHeadAttention(len(query), 1, 1, len(query[0]))
    attention.qkv.weight.copy_(torch.cat([torch.tensor(table).float().T for table in (query, key, value)]))
    taps = Taps(_STEPS)
    x_BTM = torch.eye(len(query))[None]
    attention(x_BTM, Attend.from_hidden(torch.tensor(hidden)), Rotation(), taps=taps)
    return {name: taps.values[name][0, 0].tolist() for name in _STEPS}


def _apart(by_hand: Mapping[str, Matrix], computed: Mapping[str, Matrix]) -> float:
    """Largest difference of all steps."""
    pairs = [(torch.tensor(by_hand[name]), torch.tensor(computed[name])) for name in _STEPS]
    return max(float((hand.double() - library.double()).abs().max()) for hand, library in pairs)


def _drawn(seed: int, number: int) -> tuple[dict[str, list[list[float]]], dict[str, list[list[float]]]]:
    """Both ways on drawn whole numbers, with 2 to 8 tokens of width 1 to 8, under the causal mask."""
    draw = generator(seed, f"worked example {number}")
    n_tokens, width = draw.randint(2, 8), draw.randint(1, 8)
    query, key, value = ([[draw.randint(-2, 2) for _ in range(width)] for _ in range(n_tokens)] for _ in range(3))
    hidden = [[int(key > query) for key in range(n_tokens)] for query in range(n_tokens)]
    return _steps_by_hand(query, key, value, hidden), _steps_of_library(query, key, value, hidden)


def _conventions(hidden_TS: Tensor) -> list[Attend]:
    """The mask as it is described: causal; 1 = hidden; True = may attend; 0 and −∞ to add."""
    added_TS = torch.zeros_like(hidden_TS, dtype=torch.float32).masked_fill(hidden_TS.bool(), -math.inf)
    return [CAUSAL, Attend.from_hidden(hidden_TS), Attend(allowed=hidden_TS == 0), Attend.from_additive(added_TS)]


def _weights(scores_TS: Tensor, attend: Attend) -> Tensor:
    """Weights for given scores: queries that hold them, and keys that are the unit vectors."""
    size = scores_TS.shape[-1]
    taps = Taps("weights")
    attention = MultiHeadAttention(len(scores_TS), 1, 1, size)
    with torch.no_grad():
        tables = scores_TS.T * math.sqrt(size), torch.eye(size), torch.eye(size)
        attention.qkv.weight.copy_(torch.cat(tables))
        attention(torch.eye(len(scores_TS))[None], attend, Rotation(), taps=taps)
    return taps.values["weights"][0, 0]


def _rows_wrong(hidden_TS: Tensor, right_TS: Tensor) -> int:
    """Rows that come out wrong when the matrix, 1 = hidden, goes to PyTorch's function as a boolean mask as it is."""
    query, key = (torch.tensor(table, dtype=torch.float32)[None, None] for table in (_QUERY, _KEY))
    value = torch.eye(len(_FIVE))[None, None]  # so that the output is the weights
    found_TS = F.scaled_dot_product_attention(query, key, value, attn_mask=hidden_TS.bool())[0, 0]
    return int((~torch.isclose(found_TS, right_TS, atol=1e-3)).any(-1).sum())


def _four() -> Tensor:
    """Weights of 床前明月 from scores that are logarithms of the weights, and large above the diagonal."""
    given_TS = torch.tensor(_FOUR_WEIGHTS)
    return _weights(torch.where(given_TS > 0, given_TS.clamp(min=1e-9).log(), _LATER_SCORE), CAUSAL)


def judge(numbers: Numbers) -> Judgement:
    """Both ways agree number for number; the 0/1 matrix needs a correction if it hides nothing as it is."""
    value = values(numbers)
    errors = [value[name] for name in ("apart", "drawn_apart", "four_apart", "seven_apart")]
    agree = all(error <= ROUNDING for error in errors)
    same = value["mask_cells_that_differ"] == 0 and value["conventions_apart"] <= ROUNDING
    misread = value["added_future"] > 0 or value["boolean_rows_wrong"] > 0
    return Judgement.when(agree and same, "found", *(["misread"] if misread else []), "examples", correction=misread)


def _panel(name: str, tokens: Sequence[str], matrix: Matrix, *, coloured: bool = True) -> Table:
    """One matrix of a figure: a row for each token, with the numbers as they are written."""
    return [
        {
            "panel": name,
            "row": f"{number} {tokens[number]}",
            "written": [_written(cell) for cell in row],
            "values": [float(cell) if coloured else None for cell in row],
        }
        for number, row in enumerate(matrix)
    ]


def _written(value: float) -> str:
    if math.isinf(value):
        return "−∞"
    return str(round(value)) if value == round(value) else f"{value:.3f}".rstrip("0").replace("-", "−")


def _tables(steps: Mapping[str, Matrix]) -> dict[str, Table]:
    """Tables of the figures: steps side by side."""
    conventions = {"hidden": ("0", "1"), "may": ("T", "F"), "added": ("0", "−∞")}
    masks = [
        {**row, "panel": name, "written": [written[int(cell)] for cell in row["values"]]}
        for name, written in conventions.items()
        for row in _panel(name, _FIVE, _HIDDEN)
    ]
    panels = {
        "mask": [masks],
        "scores": [_panel("products", _FIVE, steps["products"]), _panel("scores", _FIVE, steps["scores"])],
        "weights": [
            _panel("masked", _FIVE, steps["masked"], coloured=False),
            _panel("weights", _FIVE, steps["weights"]),
        ],
        "output": [_panel("value", _FIVE, steps["value"]), _panel("heads", _FIVE, steps["heads"])],
    }
    return {name: [row for rows in tables for row in rows] for name, tables in panels.items()}


def _four_rows(weights_TS: Tensor) -> Table:
    """Scores and weights of the four tokens, side by side."""
    given = [[math.log(cell) if cell else _LATER_SCORE for cell in row] for row in _FOUR_WEIGHTS]
    found = [[round(cell, 6) for cell in row] for row in weights_TS.tolist()]
    return [*_panel("scores", _FOUR, given, coloured=False), *_panel("weights", _FOUR, found)]


def _seven_row(name: str, weights: Sequence[float]) -> list[dict[str, Any]]:
    """The weights from 它 to the seven words, in one row of a table."""
    return [
        {"row": name, "column": word, "word": _written(round(weight, 3)), "value": weight, "hover": []}
        for word, weight in zip(_SEVEN, weights, strict=True)
    ]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        NumberTables("mask", low=0.0, high=1.0),
        NumberTables("scores", low=0.0, high=6.0),
        NumberTables("weights", low=0.0, high=1.0),
        NumberTables("output", low=0.0, high=4.0),
        NumberTables("four", low=0.0, high=1.0),
        WordTable("seven", low=0.0, high=1.0),
    ],
    seconds=0,
)
