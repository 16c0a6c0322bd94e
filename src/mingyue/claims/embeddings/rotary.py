"""Rotary positions: queries and keys turn, lengths stay, scores know distances alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds, tiny
from mingyue.nn import RotaryPositions, Taps
from mingyue.nn.positions import rotary_frequencies
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

ROUNDING = 1e-5
"""Of numbers near 1: what 32 bits may do to a sum of products, and to angles of hundreds of radians."""
ANGLE_ROUNDING = 1e-3
"""Radians, measured from vectors in the deepest layer."""
TURNED = 1e-2
"""A share of its length by which a query surely changed."""
_KINDS = ("none", "learned", "sinusoidal", "rotary")
_SHIFT = 37
_PICTURE = 48


def _measure(trial: Trial) -> Measurement:
    d_head, span = trial.pick((16, 64), (64, 512), (128, 4096))
    chosen = seeds(trial, 3, 10, 20)
    scores = [_scores(d_head, span, seed) for seed in chosen]
    shifted = {kind: [_shift(kind, seed) for seed in chosen] for kind in _KINDS}
    rotary = shifted["rotary"]

    def median(values: Sequence[dict[str, float]], name: str) -> Number:
        return Number.median([sample[name] for sample in values])

    numbers = {
        "score_error": median(scores, "spread"),
        "length_error": median(scores, "length"),
        "query_turned": median(rotary, "query"),
        "key_turned": median(rotary, "key"),
        "value_turned": median(rotary, "value"),
        "angle_error": median(rotary, "angle"),
        "pairs": Number.exact(d_head // 2),
        "angles": Number.exact(_different_angles(d_head)),
        **{f"logits_{kind}": median(samples, "logits") for kind, samples in shifted.items()},
    }
    bars = [
        {"kind": kind, "change": number.value, "low": number.low, "high": number.high}
        for kind in _KINDS
        for number in [numbers[f"logits_{kind}"]]
    ]
    return Measurement(numbers, {"logits": bars, "scores": _picture(trial.seed)})


def _turned(d_head: int, span: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """One random query and one random key at every position: query_TD, key_TD, and as they were, [2, D]."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "rotary"))
    pair_2D = torch.randn(2, d_head, generator=generator)
    rotation = RotaryPositions(span, d_head).rotation(torch.arange(span)[None])
    turned_12TD = rotation.rotate(pair_2D[None, :, None].expand(1, 2, span, d_head))
    return turned_12TD[0, 0], turned_12TD[0, 1], pair_2D


def _scores(d_head: int, span: int, seed: int) -> dict[str, float]:
    """How much q·k at one distance varies with the place, and vectors in length, both relative."""
    query_TD, key_TD, pair_2D = _turned(d_head, span, seed)
    length_2 = pair_2D.norm(dim=1)
    scores_TS = (query_TD @ key_TD.T / length_2.prod()).numpy()
    diagonals = [scores_TS.diagonal(offset) for offset in range(1 - span, span)]
    lengths_2T = torch.stack([query_TD, key_TD]).norm(dim=2) / length_2[:, None]
    return {
        "spread": max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals),
        "length": float((lengths_2T - 1).abs().max()),
    }


@torch.no_grad()
def _shift(positions: str, seed: int) -> dict[str, float]:
    """What changes in a model of three layers when all tokens stand `_SHIFT` positions further on.

    Queries and keys: the least change, of all layers. Values and logits: the greatest. All relative.
    """
    model = tiny(32, context=64, d_model=64, n_heads=2, n_layers=3, seed=seed, positions=positions,
                 initialisation="xavier", embedding_scale=True).eval()  # fmt: skip
    generator = torch.Generator().manual_seed(derive_seed(seed, "shift"))
    ids_1T = torch.randint(32, (1, 24), generator=generator)
    seen = list[dict[str, Tensor]]()
    for start in (0, _SHIFT):
        taps = Taps(("blocks.*.attention.query", "blocks.*.attention.key", "blocks.*.attention.value", "logits"))
        model(ids_1T, positions_BT=torch.arange(24)[None] + start, taps=taps)
        seen.append(taps.values)
    here, there = seen

    def changes(kind: str) -> list[float]:
        return [
            float((there[name] - value).norm() / value.norm()) for name, value in here.items() if name.endswith(kind)
        ]

    queries = [(value, there[name]) for name, value in here.items() if name.endswith("query")]
    return {
        "query": min(changes("query")),
        "key": min(changes("key")),
        "value": max(changes("value")),
        "logits": max(changes("logits")),
        "angle": max(_angle_error(*pair) for pair in queries) if positions == "rotary" else math.nan,
    }


def _angle_error(query_BHTD: Tensor, moved_BHTD: Tensor) -> float:
    """Largest difference, in radians, of the angles that pairs turned by from those that they should have."""
    before, after = (torch.complex(*part.chunk(2, dim=-1)).flatten(0, 2) for part in (query_BHTD, moved_BHTD))
    turned_I = (before.conj() * after).sum(dim=0)  # over tokens and heads: one angle a pair, whatever it holds
    wanted_I = _SHIFT * rotary_frequencies(query_BHTD.shape[-1], 10000.0, None)
    return float((turned_I * torch.polar(torch.ones_like(wanted_I), -wanted_I)).angle().abs().max())


def _different_angles(d_head: int) -> int:
    """Different angles by which the pairs of one vector turn in one step."""
    cosine_I, sine_I = (part[0, 0, 0] for part in RotaryPositions(2, d_head).rotation(torch.tensor([[1]])).angles or ())
    return int((torch.atan2(sine_I, cosine_I).diff().abs() > 1e-9).sum()) + 1


def _picture(seed: int) -> list[dict[str, Any]]:
    """q·k ÷ ‖q‖‖k‖ for one query and one key at all pairs of positions."""
    query_TD, key_TD, pair_2D = _turned(16, _PICTURE, seed)
    scores_TS = query_TD @ key_TD.T / pair_2D.norm(dim=1).prod()
    return [
        {"query": place, "values": [round(value, 3) for value in row]} for place, row in enumerate(scores_TS.tolist())
    ]


def _judge(numbers: Numbers) -> Finding:
    score, length, value, logits, angle = (
        numbers[name].high for name in ("score_error", "length_error", "value_turned", "logits_rotary", "angle_error")
    )
    query, key = numbers["query_turned"].low, numbers["key_turned"].low
    pairs, angles = int(numbers["pairs"].value), int(numbers["angles"].value)
    holds = (
        max(score, length, value, logits) <= ROUNDING
        and angle <= ANGLE_ROUNDING
        and min(query, key) >= TURNED
        and pairs == angles
    )
    verb_en, verb_zh = ("", "") if holds else ("Not all of it is so. ", "并非全都成立。")
    return Finding(
        "holds" if holds else "does not hold here",
        Words(
            f"{verb_en}Scores at one distance vary by {score:.0e} of their scale, lengths by {length:.0e}. Moved by "
            f"{_SHIFT} positions, queries change by {query:.2f} of their length or more, keys by {key:.2f}, values by "
            f"{value:.0e}, logits by {logits:.0e}; {pairs} pairs turn by {angles} angles, the same in every layer to "
            f"{angle:.0e} radians.",
            f"{verb_zh}同一距离的分数只变化 {score:.0e}（相对值），长度变化 {length:.0e}。整体移动 {_SHIFT} 个位置后，"
            "查询至少变化自身长度的 "
            f"{query:.2f}，键 {key:.2f}，值 {value:.0e}，logits {logits:.0e}；{pairs} 对各转 {angles} 种角度，"
            "各层相同，误差 "
            f"{angle:.0e} 弧度。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import BarChart, MatrixChart

    names = {
        "none": Words("none", "无"),
        "learned": Words("learned", "可学习"),
        "sinusoidal": Words("sinusoidal", "正余弦"),
        "rotary": Words("rotary", "旋转"),
    }
    picture = measurement.tables["scores"]
    places = [str(row["query"]) for row in picture]
    return [
        MatrixChart(
            Words("One query and one key at all pairs of places", "同一个查询与同一个键，放在各个位置").of(language),
            np.array([row["values"] for row in picture]),
            row_labels=places,
            column_labels=places,
            row_title=Words("position of the query", "查询的位置").of(language),
            column_title=Words("position of the key", "键的位置").of(language),
            low=-1.0,
            high=1.0,
            diverging=True,
            note=Words(
                "q·k ÷ lengths. Each diagonal, one distance, has one colour.",
                "q·k ÷ 长度。每条对角线（同一距离）只有一种颜色。",
            ).of(language),
        ),
        BarChart(
            Words(
                f"Change of the logits when a text stands {_SHIFT} positions further on",
                f"整段文本后移 {_SHIFT} 个位置，logits 变化多少",
            ).of(language),
            [
                {**row, "kind": names[row["kind"]].of(language)}
                | {column: max(row[column], 1e-9) for column in ("change", "low", "high")}
                for row in measurement.tables["logits"]
            ],
            x="kind",
            y="change",
            low="low",
            high="high",
            x_title=Words("positions", "位置编码").of(language),
            y_title=Words("relative change", "相对变化").of(language),
            log_y=True,
            note=Words(
                "Median of the seeds, least to greatest. No positions: exactly 0, drawn as 1e-9.",
                "各种子的中位数，最小到最大。无位置编码时恰好为 0，画作 1e-9。",
            ).of(language),
        ),
    ]


CLAIM = Claim(
    name="rotary",
    group="embeddings",
    claim=Words(
        "Rotary positions add nothing to the embeddings. In every layer they turn queries and keys, pair by pair, by "
        "angles that grow with the position; values are left alone. So a score depends on how far apart two tokens "
        "stand, not on where.",
        "旋转位置编码不往嵌入里加任何东西，而是在每一层把查询和键两两一对地旋转，角度随位置增大；值不动。"
        "于是分数只取决于两个 token "
        "相隔多远，与它们在哪里无关。",
    ),
    prediction=Words(
        f"For a given query and key, q·k at one distance varies by at most {ROUNDING:.0e} of ‖q‖‖k‖, and turning "
        "changes "
        f"lengths by at most {ROUNDING:.0e}. When a whole text moves, queries and keys change (by {TURNED} or more), "
        f"values and logits do not ({ROUNDING:.0e}). Each pair has an angle of its own, the same in every layer.",
        f"对给定的查询和键，同一距离的 q·k 变化不超过 ‖q‖‖k‖ 的 {ROUNDING:.0e}，旋转使长度变化不超过 {ROUNDING:.0e}。"
        "整段文本移动时，"
        f"查询和键会变（不小于 {TURNED}），值和 logits 不变（{ROUNDING:.0e}）。每一对各有一个角度，各层相同。",
    ),
    method=Words(
        "Random queries and keys at all positions, several seeds. Then models of three layers read a text at two "
        "places; "
        "taps record queries, keys, values and logits, and the angles are read off the queries.",
        "随机的查询和键放到所有位置，多个种子。再让三层模型在两处读同一段文本，用 taps 记录查询、键、值和 logits，"
        "角度从查询中量出。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "score_error": Words("how much a score at one distance varies", "同一距离的分数变化"),
        "length_error": Words("how much lengths vary", "长度变化"),
        "query_turned": Words("change of queries when the text moves", "文本移动时查询的变化"),
        "key_turned": Words("change of keys", "键的变化"),
        "value_turned": Words("change of values", "值的变化"),
        "angle_error": Words("error of the angles, all layers (radians)", "各层角度的误差（弧度）"),
        "pairs": Words("pairs of a head", "每个头的对数"),
        "angles": Words("different angles", "不同的角度数"),
        "logits_none": Words("change of logits, no positions", "logits 的变化，无位置编码"),
        "logits_learned": Words("change of logits, learned positions", "logits 的变化，可学习"),
        "logits_sinusoidal": Words("change of logits, sinusoidal positions", "logits 的变化，正余弦"),
        "logits_rotary": Words("change of logits, rotary positions", "logits 的变化，旋转"),
    },
)
