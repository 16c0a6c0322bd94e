"""One encoder output for every decoder block: keys and values made once; and where cross-attention's queries come "
"from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mingyue.charts import BarChart, Chart, LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds, tiny
from mingyue.models import EncoderDecoder
from mingyue.nn import DecoderBlock, Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

EQUAL = 1e-5
"""Largest difference that counts as rounding, where the largest value is 1."""
OTHER = 0.01
"""From this difference on, vectors count as other vectors."""

_CROSS = "decoder.blocks.*.cross_attention"


def _apart(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max() / y.abs().max())


def _worst(differences: Sequence[float]) -> float:
    """The largest; NaN if one is."""
    return float(torch.tensor(differences, dtype=torch.float64).max())


def _heads(x_BTN: Tensor, n_heads: int) -> Tensor:
    return x_BTN.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _decoder_blocks(model: EncoderDecoder) -> list[DecoderBlock]:
    return [block for block in model.every_block() if isinstance(block, DecoderBlock)]


def _read(model: EncoderDecoder, source_BS: Tensor, ids_BT: Tensor) -> dict[str, float]:
    """From what one pass shows: do all blocks read the encoder's output, and what are their queries made of?"""
    n_heads = model.config.n_heads
    places = ("key", "value", "query")
    taps = Taps(("encoder.final", "decoder.blocks.*.middle", "decoder.blocks.*.output", "decoder.embeddings",
                 *(f"{_CROSS}.{place}" for place in places)))  # fmt: skip
    model(source_BS, ids_BT, taps=taps)
    memory_BSM, x_BTM = taps.values["encoder.final"], taps.values["decoder.embeddings"]
    read, same, before = list[float](), list[float](), list[float]()
    for layer, block in enumerate(_decoder_blocks(model)):
        here = f"decoder.blocks.{layer}"
        cross = block.cross_attention
        for name, projected in zip(("key", "value"), cross.key_value(memory_BSM).chunk(2, dim=-1), strict=True):
            read.append(_apart(taps.values[f"{here}.cross_attention.{name}"], _heads(projected, n_heads)))
        query_BHTD = taps.values[f"{here}.cross_attention.query"]
        own, previous = (
            _heads(cross.query(block.cross_attention_norm(stream_BTM)), n_heads)
            for stream_BTM in (taps.values[f"{here}.middle"], x_BTM)
        )
        same.append(_apart(own, query_BHTD))
        before.append(_apart(previous, query_BHTD))
        x_BTM = taps.values[f"{here}.output"]
    return {"read": _worst(read), "query_own": _worst(same), "query_previous": min(before)}


def _write(model: EncoderDecoder, source_BS: Tensor, ids_BT: Tensor) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Token after token, with the memory of the first step and with one made again at each; and the work of both."""
    with FlopCounterMode(display=False) as counter:
        once = model.project_kv(model.encode(source_BS))
    making = counter.get_total_flops() // 2
    held, again_held = model.new_cache(len(ids_BT)), model.new_cache(len(ids_BT))
    keys_apart, logits_apart = list[float](), list[float]()
    whole_BTV = model(source_BS, ids_BT)
    rows: list[dict[str, Any]] = [{"token": 0, "way": "once", "work": making}, {"token": 0, "way": "again", "work": 0}]
    total = {"once": making, "again": 0}
    for step in range(ids_BT.shape[1]):
        next_B1 = ids_BT[:, step : step + 1]
        with FlopCounterMode(display=False) as counter:
            logits = model.output(model.hidden(next_B1, once, cache=held.step()))
        total["once"] += counter.get_total_flops() // 2
        with FlopCounterMode(display=False) as counter:
            again = model.project_kv(model.encode(source_BS))
            logits_again = model.output(model.hidden(next_B1, again, cache=again_held.step()))
        total["again"] += counter.get_total_flops() // 2
        pairs = zip([*again.keys, *again.values], [*once.keys, *once.values], strict=True)
        keys_apart += [_apart(new, old) for new, old in pairs]
        logits_apart += [_apart(logits, logits_again), _apart(logits, whole_BTV[:, step : step + 1])]
        rows += [{"token": step + 1, "way": way, "work": work} for way, work in total.items()]
    found = {"memory": _worst(keys_apart), "logits": _worst(logits_apart), "work": total["again"] / total["once"]}
    return found, rows


@torch.inference_mode()
def _measure(trial: Trial) -> Measurement:
    d_model, n_layers, n_source, n_target = trial.pick((32, 2, 7, 5), (64, 4, 24, 24), (256, 6, 64, 64))
    found: dict[str, list[float]] = {}
    work: list[dict[str, Any]] = []
    for seed in seeds(trial, 3, 5, 5):
        model = tiny(
            50,
            context=max(n_source, n_target),
            d_model=d_model,
            n_layers=n_layers,
            seed=seed,
            architecture="encoder-decoder",
            initialisation="xavier",
        ).eval()
        generator = torch.Generator().manual_seed(derive_seed(seed, "memory"))
        source_BS, ids_BT = (torch.randint(50, (2, length), generator=generator) for length in (n_source, n_target))
        written, rows = _write(model, source_BS, ids_BT)
        work = work or rows
        for name, value in {**_read(model, source_BS, ids_BT), **written}.items():
            found.setdefault(name, []).append(value)
    numbers = {name: Number.exact(_worst(found[name])) for name in ("read", "memory", "logits", "query_own")}
    numbers["query_previous"] = Number.mean(found["query_previous"])
    numbers["work"] = Number.exact(found["work"][0], "×")
    numbers["layers"] = Number.exact(n_layers)
    sources = [
        {"from": "own", "apart": numbers["query_own"].value, "low": 0.0, "high": numbers["query_own"].value},
        {
            "from": "previous",
            "apart": numbers["query_previous"].value,
            "low": max(0.0, numbers["query_previous"].low),
            "high": numbers["query_previous"].high,
        },
    ]
    return Measurement(numbers, {"work": work, "queries": sources})


def _judge(numbers: Numbers) -> Finding:
    read, memory, logits = (numbers[name].value for name in ("read", "memory", "logits"))
    own, previous = numbers["query_own"].value, numbers["query_previous"].value
    if not all(apart <= EQUAL for apart in (read, memory, logits)):
        return Finding(
            "does not hold here",
            Words(
                f"Keys and values differ from those of the encoder's output by {read:.1e}, from those made again by "
                f"{memory:.1e}, the logits by {logits:.1e}.",
                f"K、V 与由编码器输出算得的相差 {read:.1e}，与重新计算的相差 {memory:.1e}，logits 相差 {logits:.1e}。",
            ),
        )
    keys = Words(f"to {max(read, memory):.1e}", f"相差不超过 {max(read, memory):.1e}")
    if not max(read, memory):
        keys = Words("to the last bit", "分毫不差")
    same = Words(
        f"In all {numbers['layers'].value:.0f} decoder blocks keys and values are those of the one encoder output ("
        f"{keys.en}), made once or again; making them again for each token takes {numbers['work'].value:.1f} times the "
        "arithmetic",
        f"全部 {numbers['layers'].value:.0f} 个解码器块的 K、V 都来自同一份编码器输出，重算与否都一样（{keys.zh}）；"
        f"每写一个 token 重算一遍，运算量是 {numbers['work'].value:.1f} 倍",
    )
    if own <= EQUAL and previous >= OTHER:
        return Finding(
            "holds with a correction",
            Words(
                f"{same.en}. The queries come from the masked sub-layer of the same block (off by {own:.1g}), "
                f"not from the block before (off by {previous:.0%}).",
                f"{same.zh}。Q 来自同一块的掩码子层（相差 {own:.1g}），而不是上一块的输出（相差 {previous:.0%}）。",
            ),
        )
    if previous <= EQUAL:
        return Finding("holds", Words(f"{same.en}.", f"{same.zh}。"))
    return Finding(
        "does not hold here",
        Words(
            f"{same.en}. But the queries are neither those of the same block's masked sub-layer (off by {own:.1e}) nor "
            f"those of the block before (off by {previous:.1e}).",
            f"{same.zh}。但 Q 既不来自同一块的掩码子层（相差 {own:.1e}），也不来自上一块（相差 {previous:.1e}）。",
        ),
    )


_NAMES = {
    "once": Words("keys and values made once", "K、V 只算一次"),
    "again": Words("made again for each token", "每个 token 重算"),
    "own": Words("same block, after masked attention", "同一块，掩码自注意力之后"),
    "previous": Words("output of the block before", "上一块的输出"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    work = [
        {**row, "way": _NAMES[row["way"]].of(language), "work": row["work"] / 1e6} for row in measurement.tables["work"]
    ]
    sources = [{**row, "from": _NAMES[row["from"]].of(language)} for row in measurement.tables["queries"]]
    return [
        LineChart(
            Words("Arithmetic of writing a translation", "写出译文的运算量").of(language),
            work,
            x="token",
            y="work",
            series="way",
            x_title=Words("tokens written", "已写的 token 数").of(language),
            y_title=Words("million multiply-adds, in all", "累计乘加次数（百万）").of(language),
        ),
        BarChart(
            Words("Where the queries of cross-attention come from", "交叉注意力的 Q 从哪里来").of(language),
            sources,
            x="from",
            y="apart",
            low="low",
            high="high",
            y_title=Words("difference from the real queries", "与实际 Q 的相对差").of(language),
        ),
    ]


CLAIM = Claim(
    name="memory",
    group="blocks",
    claim=Words(
        "Every decoder block reads the same encoder output: its keys and values can be computed once.",
        "每个解码器块读的都是同一份编码器输出，它的 K、V 只需计算一次。",
    ),
    prediction=Words(
        "In every decoder block keys and values are the projections of the final encoder output, and stay so while "
        f"tokens are written: all differences, those of the logits too, are at most {EQUAL:.0e}. If the queries are "
        "made from the same block's masked attention and not from the block before, the notion of a decoder block "
        "needs a correction.",
        "每个解码器块的 K、V 都是编码器最终输出的投影，写作过程中始终不变：包括 logits 在内，差异都不超过 "
        f"{EQUAL:.0e}。若 Q 由同一块的掩码自注意力得到，而不是由上一块得到，则说法需要修正。",
    ),
    method=Words(
        "A random encoder-decoder of this library. What each block reads is seen by taps and compared with "
        "projections made apart. A target is written token by token, with one memory and with a memory made again at "
        "every step; torch counts the arithmetic.",
        "用本库随机初始化的编码器-解码器：以 taps 读出每块实际用的 Q、K、V，与另行计算的投影比较；再逐个 token 写出目"
        "标，一次用同一份记忆，一次每步重算，运算量由 torch 计数。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "read": Words("keys, values from projections of the encoder output: difference", "K、V 与编码器输出投影之差"),
        "memory": Words("keys, values once and again: difference", "K、V 一次算与重算之差"),
        "logits": Words(
            "logits with keys and values made once, from those made again and of one whole pass: difference",
            "K、V 只算一次时的 logits，与重算及一次整体前向之差",
        ),
        "query_own": Words("queries from the same block's masked attention: difference", "Q 与同块掩码子层所得之差"),
        "query_previous": Words("queries from the block before: difference", "Q 与上一块输出所得之差"),
        "work": Words("arithmetic when made again for each token", "每个 token 重算时的运算量倍数"),
        "layers": Words("decoder blocks", "解码器块数"),
    },
    correction=Words(
        "The queries of cross-attention come from the masked self-attention (with Add & Norm) of the same decoder "
        "block, not directly from the block before.",
        "交叉注意力的 Q 来自同一解码器块中掩码自注意力（经 Add & Norm）的输出，而不是直接来自上一块。",
    ),
)
