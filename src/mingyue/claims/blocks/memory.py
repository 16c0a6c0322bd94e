"""Claim: every decoder block reads one encoder output; and where the queries of cross-attention come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.training import seeds, tiny
from mingyue.claims.wording import Phrase
from mingyue.models import EncoderDecoder
from mingyue.nn import DecoderBlock, Taps
from mingyue.runtime import derive_seed

EQUAL = 1e-5
"""Largest difference that counts as rounding, relative to the largest value."""
OTHER = 0.01
"""Smallest difference of vectors that count as different."""

_CROSS = "decoder.blocks.*.cross_attention"


def _apart(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max() / y.abs().max())


def _largest(differences: Sequence[float]) -> float:
    """The largest; NaN if any is NaN."""
    return float(torch.tensor(differences, dtype=torch.float64).max())


def _heads(x_BTN: Tensor, n_heads: int) -> Tensor:
    return x_BTN.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _decoder_blocks(model: EncoderDecoder) -> list[DecoderBlock]:
    return [block for block in model.every_block() if isinstance(block, DecoderBlock)]


def _read(model: EncoderDecoder, source_BS: Tensor, ids_BT: Tensor) -> dict[str, float]:
    """Differences in one pass: of keys and values from the encoder's output, of queries from both candidates."""
    n_heads = model.config.n_heads
    projections = ("key", "value", "query")
    taps = Taps(("encoder.final", "decoder.blocks.*.middle", "decoder.blocks.*.output", "decoder.embeddings",
                 *(f"{_CROSS}.{one}" for one in projections)))  # fmt: skip
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
    return {"read": _largest(read), "query_own": _largest(same), "query_previous": min(before)}


def _generate(
    model: EncoderDecoder, source_BS: Tensor, ids_BT: Tensor
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Token after token, with the memory of the first step and with one recomputed at each; and the work of both."""
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
    found = {"memory": _largest(keys_apart), "logits": _largest(logits_apart), "work": total["again"] / total["once"]}
    return found, rows


@torch.inference_mode()
def measure(trial: Trial) -> Measurement:
    """What decoder blocks read, and the multiply-adds of generation with keys and values computed once or again."""
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
        generated, rows = _generate(model, source_BS, ids_BT)
        work = work or rows
        for name, value in {**_read(model, source_BS, ids_BT), **generated}.items():
            found.setdefault(name, []).append(value)
    numbers = {name: Number.exact(_largest(found[name])) for name in ("read", "memory", "logits", "query_own")}
    numbers["query_previous"] = Number.mean(found["query_previous"])
    numbers["work"] = Number.exact(found["work"][0], "×")
    numbers["layers"] = Number.exact(n_layers)
    sources = [
        {"from": "own", **numbers["query_own"].row("apart"), "low": 0.0},
        {"from": "previous", **numbers["query_previous"].clipped(0.0, math.inf).row("apart")},
    ]
    return Measurement(numbers, {"work": work, "queries": sources})


def judge(numbers: Numbers) -> Judgement:
    """Keys and values of the one encoder output in all blocks; a correction if queries come from the same block."""
    value = values(numbers)
    if not all(numbers[name].at_most(EQUAL) for name in ("read", "memory", "logits")):
        return Judgement.not_supported("differ")
    most = max(value["read"], value["memory"])
    how = Phrase("rounded" if most else "bitwise")
    if numbers["query_own"].at_most(EQUAL) and numbers["query_previous"].at_least(OTHER):
        return Judgement.corrected("same", "own_block", how=how, most=most)
    if numbers["query_previous"].at_most(EQUAL):
        return Judgement.supported("same", how=how, most=most)
    return Judgement.not_supported("same", "neither", how=how, most=most)


def _millions(measurement: Measurement) -> Table:
    return [{**row, "work": row["work"] / 1e6} for row in measurement.tables["work"]]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("work", rows=_millions, x="token", y="work", series="way", interval=None),
        Bars("queries", x="from", y="apart"),
    ],
    seconds=4,
)
