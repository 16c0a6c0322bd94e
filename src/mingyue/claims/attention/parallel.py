"""Claim: a Transformer computes all places of a text at once, a recurrent net one after another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mingyue.charts import LineChart
from mingyue.claims.attention.figures import interval, named, worst
from mingyue.claims.attention.recurrent import parameters_of, recurrent
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.timing import alternating
from mingyue.claims.training import seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

ROUNDING = 1e-4
"""Largest difference of logits of size 1 between one pass and passes over prefixes."""
_VOCABULARY, _WIDTH, _LAYERS = 64, 64, 2
_NETS = {"transformer": Words("Transformer", "Transformer"), "tanh": Words("recurrent net (tanh)", "循环网络（tanh）")}


def measure(trial: Trial) -> Measurement:
    """Equality of one pass and prefixes; longest chains of operations; times."""
    lengths = trial.pick((8, 32), (8, 16, 32, 64, 128, 256, 512, 1024), (8, 16, 32, 64, 128, 256, 512, 1024, 2048))
    nets = _nets(_LAYERS, max(lengths), trial.seed)
    chains = [
        {"net": name, "tokens": length, "chain": _longest_chain(net(_ids(length, trial.seed))[0, -1].sum())}
        for name, net in nets.items()
        for length in lengths[: trial.pick(2, 5, 5)]
    ]
    growth = {
        name: (own[-1]["chain"] - own[0]["chain"]) / (own[-1]["tokens"] - own[0]["tokens"])
        for name in nets
        for own in [[row for row in chains if row["net"] == name]]
    }
    deeper = _longest_chain(_nets(2 * _LAYERS, 8, trial.seed)["transformer"](_ids(8, trial.seed))[0, -1].sum())
    seconds, times = dict[int, dict[str, float]](), list[dict[str, Any]]()
    for length in lengths:
        found = alternating(
            {name: partial(_train_pass, net, _ids(length, trial.seed)) for name, net in nets.items()},
            turns=trial.pick(2, 9, 25),
        )
        seconds[length] = {name: statistics.median(samples) for name, samples in found.items()}
        times += [
            interval(Number.median([1000 * second for second in samples]), net=name, tokens=length)
            for name, samples in found.items()
        ]
    faster = [length for length in lengths if seconds[length]["transformer"] < seconds[length]["tanh"]]
    passes, written = _write(nets["transformer"], trial.pick(8, 64, 256))
    numbers = {
        "prefix_error": worst(_prefix_error(seed, trial.pick(12, 48, 128)) for seed in seeds(trial, 2, 5, 10)),
        "transformer_chain_a_token": Number.exact(growth["transformer"]),
        "recurrent_chain_a_token": Number.exact(growth["tanh"]),
        "transformer_chain_a_layer": Number.exact((deeper - chains[0]["chain"]) / _LAYERS),
        "passes_a_written_token": Number.exact(passes / written),
        "transformer_faster_from": Number.exact(min(faster, default=0), "tokens"),
        "transformer_faster_to": Number.exact(max(faster, default=0), "tokens"),
        "times_faster_at_most": Number.exact(max(at["tanh"] / at["transformer"] for at in seconds.values())),
        "parameters_ratio": Number.exact(parameters_of(nets["tanh"]) / parameters_of(nets["transformer"])),
    }
    return Measurement(numbers, {"chains": chains, "times": times})


def _nets(n_layers: int, context: int, seed: int) -> dict[str, nn.Module]:
    model = tiny(_VOCABULARY, context=context, d_model=_WIDTH, n_layers=n_layers, positions="sinusoidal", seed=seed)
    return {"transformer": model, "tanh": recurrent("tanh", _VOCABULARY, _WIDTH, parameters_of(model), seed)}


def _ids(length: int, seed: int) -> Tensor:
    return torch.randint(_VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def _prefix_error(seed: int, length: int) -> float:
    """Largest difference between the logits of one pass and those of a pass over each prefix."""
    model, ids_BT = tiny(_VOCABULARY, context=length, seed=seed, initialisation="xavier"), _ids(length, seed)
    whole_TV = model(ids_BT)[0]
    return max(float((model(ids_BT[:, : end + 1])[0, -1] - whole_TV[end]).abs().max()) for end in range(length))


def _longest_chain(result: Tensor) -> int:
    """Operations that must wait for one another: the longest path through the graph of `result`'s computation."""
    longest: dict[Any, int] = {}
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        unknown = [parent for parent in before if parent not in longest]
        if unknown:
            waiting += unknown
            continue
        longest[node] = 1 + max((longest[parent] for parent in before), default=0)
        waiting.pop()
    return longest[result.grad_fn]


def _train_pass(net: nn.Module, ids_BT: Tensor) -> None:
    """Forward and backward over one text."""
    net.zero_grad(set_to_none=True)
    net(ids_BT).logsumexp(-1).mean().backward()


@torch.no_grad()
def _write(model: nn.Module, count: int) -> tuple[int, int]:
    """(passes, tokens): write greedily with a cache; no pass can begin before the token of the one before is known."""
    assert isinstance(model, DecoderOnly)
    count = min(count, model.config.context - 1)
    passes, written, cache, last_BT = 0, [0], model.new_cache(1), torch.zeros(1, 1, dtype=torch.long)
    while len(written) <= count:
        last_BT = model(last_BT, cache=cache.step())[:, -1:].argmax(-1)
        passes += 1
        written.append(int(last_BT))
    return passes, count


def judge(numbers: Numbers) -> Finding:
    """Equality, and chains that do not grow with the text. Times are told, they depend on the machine."""
    value = {name: number.value for name, number in numbers.items()}
    equal = value["prefix_error"] <= ROUNDING
    flat = value["transformer_chain_a_token"] == 0 and value["transformer_chain_a_layer"] > 0
    sequential = value["recurrent_chain_a_token"] >= 1
    right = "holds with a correction" if value["passes_a_written_token"] >= 1 else "holds"
    faster, last, times = (
        value[name] for name in ("transformer_faster_from", "transformer_faster_to", "times_faster_at_most")
    )
    when = Words("at no length", "在任何长度上都没有更快")
    if faster:
        when = Words(
            f"from {faster:.0f} to {last:.0f} tokens, up to {times:.1f}×",
            f"在 {faster:.0f} 到 {last:.0f} 个 token 时更快，最多 {times:.1f} 倍",
        )
    return Finding(
        right if equal and flat and sequential else "does not hold here",
        Words(
            f"One pass gives the predictions of all prefixes within {value['prefix_error']:.1g}. The longest chain of "
            f"operations grows by {value['transformer_chain_a_token']:g} a token and "
            f"{value['transformer_chain_a_layer']:.0f} a layer; in the recurrent net by "
            f"{value['recurrent_chain_a_token']:.1f} a token. On this machine, with one text at a time, the "
            f"Transformer trains faster {when.en}. Writing takes {value['passes_a_written_token']:g} pass a token.",
            f"一遍计算与逐个前缀计算的预测相差不超过 {value['prefix_error']:.1g}。最长的依赖链每多一个 token 增加 "
            f"{value['transformer_chain_a_token']:g}，每多一层增加 {value['transformer_chain_a_layer']:.0f}；循环网络每"
            f"个 token 增加 {value['recurrent_chain_a_token']:.1f}。在这台机器上，一次一段文字，Transformer 的训"
            f"练{when.zh}。写作仍是每个 token {value['passes_a_written_token']:g} 遍。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Chains and times against the length."""
    zh = language == "zh"
    return [
        LineChart(
            "必须依次进行的运算" if zh else "Operations that must wait for one another",
            named(measurement.tables["chains"], "net", _NETS, language),
            x="tokens",
            y="chain",
            series="net",
            x_title="token 数" if zh else "tokens",
            y_title="最长的链" if zh else "longest chain",
            log_x=True,
            log_y=True,
        ),
        LineChart(
            "一段文字的一次训练（前向与反向）" if zh else "One training pass over one text (forward and backward)",
            named(measurement.tables["times"], "net", _NETS, language),
            x="tokens",
            y="value",
            series="net",
            low="low",
            high="high",
            x_title="token 数" if zh else "tokens",
            y_title="毫秒" if zh else "milliseconds",
            log_x=True,
            log_y=True,
            note="线：中位数；带：最小到最大。" if zh else "Lines: medians; bands: least to largest.",
        ),
    ]


CLAIM = Claim(
    name="parallel",
    group="attention",
    claim=Words(
        "A recurrent net has to read one word after another; a Transformer computes the predictions at all places at "
        "the same time.",
        "循环网络只能一个词接一个词地读；Transformer 同时算出所有位置的预测。",
    ),
    prediction=Words(
        f"One pass gives the predictions of all prefixes within {ROUNDING:g}; the longest chain of dependent "
        "operations does not grow with the text and grows with layers; in a recurrent net it grows by at least 1 a "
        "token. Times are measured and told, without a prediction: they depend on the machine.",
        f"一遍计算与逐个前缀计算相差不超过 {ROUNDING:g}；最长的依赖链不随字数增长，只随层数增长；循环网络每个 token 至"
        "少增加 1。时间只测量、不预测：它取决于机器。",
    ),
    method=Words(
        f"A Transformer ({_LAYERS} layers, width {_WIDTH}) and PyTorch's tanh recurrent net with as many parameters. "
        "Chains: the longest path through the recorded graph of operations. Times: forward and backward over one "
        "text, in turns, medians. Writing: greedy, with a cache, passes counted.",
        f"一个 Transformer（{_LAYERS} 层，宽 {_WIDTH}）与参数量相同的 PyTorch tanh 循环网络。依赖链：运算图中的最长路"
        "径。时间：一段文字的前向与反向，轮流测量，取中位数。写作：贪心，带缓存，数遍数。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "prefix_error": Words("one pass against a pass for each prefix", "一遍计算与逐前缀计算的最大差"),
        "transformer_chain_a_token": Words(
            "longer chain for each token: Transformer", "每个 token 增加的链长：Transformer"
        ),
        "recurrent_chain_a_token": Words(
            "longer chain for each token: recurrent net", "每个 token 增加的链长：循环网络"
        ),
        "transformer_chain_a_layer": Words("longer chain for each layer: Transformer", "每层增加的链长：Transformer"),
        "passes_a_written_token": Words("passes for each token written", "每写一个 token 的遍数"),
        "transformer_faster_from": Words(
            "Transformer trains faster from (0 = never)", "Transformer 更快的起点（0 = 无）"
        ),
        "transformer_faster_to": Words("… up to the longest text at which it does", "……更快的最长文字"),
        "times_faster_at_most": Words("most times faster", "最多快几倍"),
        "parameters_ratio": Words("parameters, recurrent net / Transformer", "参数量之比：循环网络 / Transformer"),
    },
    correction=Words(
        "Only reading and training are parallel. Writing stays one token after another: a pass needs the token that "
        "the pass before it chose. And parallel is not always faster: on few cores and short texts the recurrent net "
        "may win.",
        "并行的只有阅读与训练。写作仍是一个接一个：每一遍都要等上一遍选出的 token。并行也不总是更快：核少、文字短时，"
        "循环网络可能更快。",
    ),
)
