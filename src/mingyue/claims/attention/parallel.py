"""Claim: a Transformer computes all positions of a text at once, a recurrent net one after another."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mingyue.claims.attention.recurrent import parameters_of, recurrent
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.timing import alternating, times_as_long
from mingyue.claims.training import seeds, tiny
from mingyue.models import DecoderOnly

ROUNDING = 1e-4
"""Largest difference of logits of size 1 between one pass and passes over prefixes."""
_VOCABULARY, _WIDTH, _LAYERS = 64, 64, 2
_NETS = ("transformer", "tanh")


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
    speed_up, times = dict[int, Number](), list[dict[str, Any]]()
    for length in lengths:
        found = alternating(
            {name: partial(_train_pass, net, _ids(length, trial.seed)) for name, net in nets.items()},
            turns=trial.pick(2, 9, 25),
        )
        speed_up[length] = times_as_long(found["tanh"], found["transformer"])
        times += [
            Number.median([1000 * second for second in samples]).row(net=name, tokens=length)
            for name, samples in found.items()
        ]
    faster = [length for length in lengths if speed_up[length].low > 1]  # in three of four turns
    passes, generated = _generate(nets["transformer"], trial.pick(8, 64, 256))
    numbers = {
        "prefix_error": Number.largest(_prefix_error(seed, trial.pick(12, 48, 128)) for seed in seeds(trial, 2, 5, 10)),
        "transformer_chain_a_token": Number.exact(growth["transformer"]),
        "recurrent_chain_a_token": Number.exact(growth["tanh"]),
        "transformer_chain_a_layer": Number.exact((deeper - chains[0]["chain"]) / _LAYERS),
        "passes_a_written_token": Number.exact(passes / generated),
        "transformer_faster_from": Number.exact(min(faster, default=0), "tokens"),
        "transformer_faster_to": Number.exact(max(faster, default=0), "tokens"),
        "times_faster_at_most": max(speed_up.values(), key=lambda number: number.value),
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
    """The number of operations that must run one after another: the longest path through the graph of `result`."""
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
def _generate(model: nn.Module, count: int) -> tuple[int, int]:
    """(passes, tokens) of greedy generation with a cache: no pass can begin before the previous token is known."""
    assert isinstance(model, DecoderOnly)
    count = min(count, model.config.context - 1)
    passes, tokens, cache, last_BT = 0, [0], model.new_cache(1), torch.zeros(1, 1, dtype=torch.long)
    while len(tokens) <= count:
        last_BT = model(last_BT, cache=cache.step())[:, -1:].argmax(-1)
        passes += 1
        tokens.append(int(last_BT))
    return passes, count


def judge(numbers: Numbers) -> Judgement:
    """Equality, and chains that do not grow with the text. Times are reported only: they depend on the machine."""
    value = values(numbers)
    equal = numbers["prefix_error"].at_most(ROUNDING)
    flat = value["transformer_chain_a_token"] == 0 and value["transformer_chain_a_layer"] > 0
    sequential = value["recurrent_chain_a_token"] >= 1
    speed = "faster" if value["transformer_faster_from"] else "never_faster"
    correction = value["passes_a_written_token"] >= 1
    return Judgement.when(equal and flat and sequential, "chains", speed, "generation", correction=correction)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("chains", x="tokens", y="chain", series="net", interval=None, log_x=True, log_y=True),
        Lines("times", x="tokens", series="net", order=_NETS, log_x=True, log_y=True),
    ],
    seconds=5,
)
