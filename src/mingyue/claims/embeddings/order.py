"""Without positions an encoder reads a bag of words; a causal decoder does not, from its second block on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import Lexicon
from mingyue.claims.training import seeds, tiny
from mingyue.nn import Taps
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

EQUAL = 1e-5
"""Vectors whose relative distance is at most this are the same: rounding is near 1e-7."""
DIFFERENT = 1e-3
"""And these are not."""
_KINDS = ("none", "learned", "sinusoidal", "rotary")
_LEXICON = Lexicon("狗咬人猫看鱼吃草")
_N_LAYERS = 4


def _measure(trial: Trial) -> Measurement:
    chosen = seeds(trial, 5, 20, 50)
    numbers = dict[str, Number]()
    curves: list[dict[str, Any]] = []

    def note(group: str, kind: str, samples_NL: Sequence[Sequence[float]]) -> None:
        for layer, samples in enumerate(zip(*samples_NL, strict=True)):
            middle = Number.median(samples)
            curves.append(
                {"group": group, "kind": kind, "block": layer + 1, "low": middle.low, "high": middle.high}
                | {"distance": middle.value}
            )

    for kind in _KINDS:
        samples = [_encoder(kind, seed) for seed in chosen]
        numbers[f"encoder_{kind}"] = Number.median([layers[-1] for layers in samples])
        note("encoder", kind, samples)
    bites = [_decoder("狗咬人", "人咬狗", 1, seed) for seed in chosen]
    last = [_decoder("狗人咬", "人狗咬", 2, seed) for seed in chosen]
    note("decoder", "middle", bites)
    note("decoder", "last", last)
    numbers["decoder_middle"] = Number.median([layers[0] for layers in bites])
    numbers["decoder_last_first_block"] = Number.median([layers[0] for layers in last])
    numbers["decoder_last_second_block"] = Number.median([layers[1] for layers in last])
    return Measurement(numbers, {"curves": curves})


def _options(positions: str) -> dict[str, Any]:
    """Initial weights of the paper, with which heads do not all look at everything alike."""
    return {"n_layers": _N_LAYERS, "positions": positions, "initialisation": "xavier", "embedding_scale": True}


@torch.no_grad()
def _encoder(positions: str, seed: int) -> list[float]:
    """How far 咬 in 狗咬人 is from 咬 in 人咬狗, after each block of an encoder."""
    model = tiny(len(_LEXICON), context=4, seed=seed, architecture="encoder-decoder", **_options(positions)).eval()
    taps = Taps("encoder.blocks.*.output")
    model.encode(_LEXICON.tensor(["狗咬人", "人咬狗"]), taps=taps)
    return [_apart(value[:, 1]) for value in taps.values.values()]


@torch.no_grad()
def _decoder(one: str, other: str, place: int, seed: int) -> list[float]:
    """How far the vectors of two texts at one place are apart, after each block of a decoder without positions."""
    model = tiny(len(_LEXICON), context=4, seed=seed, **_options("none")).eval()
    taps = Taps("blocks.*.output")
    model(_LEXICON.tensor([one, other]), taps=taps)
    return [_apart(value[:, place]) for value in taps.values.values()]


def _apart(x_2M: Tensor) -> float:
    """‖a − b‖ as a share of ‖a‖."""
    return float((x_2M[0] - x_2M[1]).norm() / x_2M[0].norm())


def _judge(numbers: Numbers) -> Finding:
    without = numbers["encoder_none"].high
    least = min(numbers[f"encoder_{kind}"].low for kind in _KINDS[1:])
    middle = numbers["decoder_middle"].low
    first, second = numbers["decoder_last_first_block"].high, numbers["decoder_last_second_block"].low
    if without > EQUAL or least < DIFFERENT:
        return Finding(
            "does not hold here",
            Words(
                f"Without positions the two vectors of 咬 differ by up to "
                f"{without:.1e}; with positions by as little as {least:.1e}.",
                f"没有位置编码时，两个“咬”的向量最多相差 {without:.1e}；有位置编码时，最少只相差 {least:.1e}。",
            ),
        )
    en = f"Encoder: at most {without:.0e} apart without positions, at least {least:.2f} with any of the three. "
    zh = f"编码器：没有位置编码时最多相差 {without:.0e}，有任意一种位置编码时至少相差 {least:.2f}。"
    if middle >= DIFFERENT and first <= EQUAL and second >= DIFFERENT:
        return Finding(
            "holds with a correction",
            Words(
                en + f"But a causal decoder can tell without positions: 咬 in the middle differs after the first block "
                f"({middle:.2f} or more: it has seen only the one before it); a 咬 that stands last has seen the same "
                f"words in both, is the same after the first block ({first:.0e}), and not after the second "
                f"({second:.3f} or more).",
                zh + f"但因果解码器没有位置编码也能分辨：中间的“咬”在第一个块之后就不同（至少 {middle:.2f}，"
                f"它只看见前面那个字）；排在末尾的“咬”两次看到的字相同，第一个块之后仍然一样（{first:.0e}），"
                f"第二个块之后就不一样了（至少 {second:.3f}）。",
            ),
        )
    return Finding(
        "holds",
        Words(
            en + f"A causal decoder shows no way around it here: middle {middle:.1e}, last {first:.1e} after the first "
            f"block and {second:.1e} after the second.",
            zh + f"这里的因果解码器也没能分辨：中间 {middle:.1e}，末尾第一个块之后 {first:.1e}、第二个块之后 "
            f"{second:.1e}。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import LineChart

    names = {
        "none": Words("none", "无"),
        "learned": Words("learned", "可学习"),
        "sinusoidal": Words("sinusoidal", "正余弦"),
        "rotary": Words("rotary", "旋转"),
        "middle": Words("狗咬人 / 人咬狗, at 咬", "狗咬人 / 人咬狗，看“咬”"),
        "last": Words("狗人咬 / 人狗咬, at 咬", "狗人咬 / 人狗咬，看“咬”"),
    }
    titles = {
        "encoder": Words(
            "Encoder: 咬 in 狗咬人 against 咬 in 人咬狗, by kind of positions",
            "编码器：“狗咬人”与“人咬狗”中的“咬”，按位置编码",
        ),
        "decoder": Words("Causal decoder without positions", "没有位置编码的因果解码器"),
    }
    charts: list[Chart] = []
    for group, title in titles.items():
        rows = [
            # A distance of 0 has no place on a logarithmic axis.
            {"block": row["block"], "kind": names[row["kind"]].of(language)}
            | {column: max(row[column], 1e-9) for column in ("distance", "low", "high")}
            for row in measurement.tables["curves"]
            if row["group"] == group
        ]
        charts.append(
            LineChart(
                title.of(language),
                rows,
                x="block",
                y="distance",
                series="kind",
                low="low",
                high="high",
                x_title=Words("after block", "第几个块之后").of(language),
                y_title=Words("distance of the two vectors ÷ length", "两个向量的距离 ÷ 长度").of(language),
                log_y=True,
                rules=[(EQUAL, Words("the same", "视为相同").of(language))],
                note=Words("Median of the seeds; band: least to greatest.", "各种子的中位数；色带为最小到最大。").of(
                    language
                ),
            )
        )
    return charts


CLAIM = Claim(
    name="order",
    group="embeddings",
    claim=Words(
        "Attention alone does not know the order of words: in 狗咬人 (dog bites man) and 人咬狗 (man bites dog), 咬 "
        "comes out with the same vector, because a weighted sum does not care about the order of its terms. So "
        "positions must be put in.",
        "单靠注意力不知道词序：“狗咬人”和“人咬狗”里，“咬”得到的向量一样，因为加权求和与各项的先后无关。"
        "所以需要位置编码。",
    ),
    prediction=Words(
        f"In an encoder without positions the two vectors differ by no more than {EQUAL:.0e} of their length, after "
        "any "
        f"number of blocks; with learned, sinusoidal or rotary positions by more than {DIFFERENT:.0e}. A causal "
        "decoder "
        "should be able to tell without positions: its mask is an order.",
        f"没有位置编码的编码器里，无论多少个块，两个向量的差不超过长度的 {EQUAL:.0e}；"
        "用可学习、正余弦或旋转位置编码时则大于 "
        f"{DIFFERENT:.0e}。因果解码器不用位置编码也应当能分辨，因为掩码本身就是一种顺序。",
    ),
    method=Words(
        "Encoders and decoders of four blocks with random initial weights, many seeds; the vectors after every block "
        "are "
        "read through taps. For the decoder also 狗人咬 and 人狗咬, whose last character sees the same characters.",
        "四个块的编码器和解码器，随机初始权重，多个种子；用 taps 读出每个块之后的向量。解码器另比较“狗人咬”与“人狗咬”，"
        "两句的末字看到的字完全相同。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "encoder_none": Words("encoder, no positions: distance of the two 咬", "编码器，无位置编码：两个“咬”的距离"),
        "encoder_learned": Words("encoder, learned positions", "编码器，可学习的位置编码"),
        "encoder_sinusoidal": Words("encoder, sinusoidal positions", "编码器，正余弦位置编码"),
        "encoder_rotary": Words("encoder, rotary positions", "编码器，旋转位置编码"),
        "decoder_middle": Words(
            "decoder without positions: 咬 in the middle, first block", "解码器，无位置编码：中间的“咬”，第一个块"
        ),
        "decoder_last_first_block": Words("the same, 咬 at the end, first block", "同上，末尾的“咬”，第一个块"),
        "decoder_last_second_block": Words("the same, 咬 at the end, second block", "同上，末尾的“咬”，第二个块"),
    },
    correction=Words(
        "This is so for an encoder. A causal decoder without positions knows the order all the same: what a token has "
        "seen depends on where it stands. The first block gives a token the bag of what stands before it; from the "
        "second "
        "block on, even tokens that have seen the same words differ, since those words had seen different things.",
        "这对编码器成立。因果解码器即使没有位置编码也知道顺序：一个 token 看见什么，取决于它站在哪里。"
        "第一个块只给出前文的“词袋”；"
        "从第二个块起，连看到相同的词的 token 也不一样了，因为那些词各自看到的前文不同。",
    ),
)
