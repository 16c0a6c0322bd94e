"""Claim: recurrent nets forget what is far away, attention reaches it in one step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.attention.recurrent import Recurrent, forget_slowly, parameters_of, recurrent
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps

REACHES, FORGETS = 0.9, 0.5
"""Accuracy from which a net has found the key, and below which it has not; chance is 1/8."""
KEPT, VANISHED = 1e-2, 1e-4
"""Gradient at the key over the longest distance, as a share of that over the shortest: at least, and at most."""
_KEYS, _NOISE = 8, 8
_ASK = _KEYS + _NOISE
_VOCABULARY = _ASK + 1
_WIDTH = 32
_BATCH = 12
"""With 16 texts of 129 tokens one step of PyTorch's tanh RNN takes seven times as long on CPUs."""
_RECURRENT = ("tanh", "lstm", "chrono")
_NETS = (*_RECURRENT, "transformer")
_RATES = {"tanh": 3e-3, "lstm": 1e-2, "chrono": 1e-2, "transformer": 3e-3}
"""Of 1e-3, 3e-3 and 1e-2, the learning rate at which each learns the shortest distance soonest."""


def measure(trial: Trial) -> Measurement:
    """Train each net at each distance; gradient at the key before and after."""
    distances = trial.pick((4, 12), (8, 32, 128), (8, 32, 128, 256))
    steps = trial.pick(50, 450, 1500)
    runs: list[dict[str, Any]] = []
    for seed in seeds(trial, 1, 3, 5):
        for distance in distances:
            for name, net in _nets(distance, seed).items():
                runs.append({"net": name, "distance": distance, **_run(net, _RATES[name], distance, steps, seed)})

    def over(what: str, name: str, distance: int) -> list[float]:
        return [run[what] for run in runs if run["net"] == name and run["distance"] == distance]

    near, middle, far = distances[0], distances[1], distances[-1]
    numbers = {
        f"{name}distance": Number.exact(distance, "tokens")
        for name, distance in (("shortest_", near), ("middle_", middle), ("", far))
    }
    for name in _NETS:
        numbers[f"accuracy_{name}"] = Number.median(over("accuracy", name, far))
        numbers[f"accuracy_{name}_middle"] = Number.median(over("accuracy", name, middle))
        numbers[f"accuracy_{name}_shortest"] = Number.median(over("accuracy", name, near))
        shares = zip(over("before", name, far), over("before", name, near), strict=True)
        numbers[f"gradient_kept_{name}"] = Number.median([a / b for a, b in shares])
    numbers["parameters_apart"] = Number.exact(_parameters_apart(far))
    pairs = [(name, distance) for name in _NETS for distance in distances]
    tables = {
        "accuracy": [
            Number.median(over("accuracy", name, distance)).row(net=name, distance=distance) for name, distance in pairs
        ],
        "gradient": [
            Number.median(over(when, name, distance)).row(net=name, distance=distance, when=when)
            for when in ("before", "after")
            for name, distance in pairs
        ],
    }
    return Measurement(numbers, tables)


def _nets(distance: int, seed: int) -> dict[str, nn.Module]:
    """All nets, with as many parameters as the Transformer has (its positions are a formula, so of any length)."""
    model = tiny(_VOCABULARY, context=distance + 1, d_model=_WIDTH, n_layers=2, positions="rotary", seed=seed)
    size = parameters_of(model)
    tanh = recurrent("tanh", _VOCABULARY, _WIDTH, size, seed)
    lstm, chrono = (recurrent("lstm", _VOCABULARY, _WIDTH, size, seed) for _ in range(2))
    forget_slowly(lstm, None, seed)
    forget_slowly(chrono, distance, seed)
    return {"tanh": tanh, "lstm": lstm, "chrono": chrono, "transformer": model}


def _parameters_apart(distance: int) -> float:
    sizes = [parameters_of(net) for net in _nets(distance, 0).values()]
    return max(sizes) / min(sizes) - 1


def _texts(count: int, distance: int, seed: int) -> tuple[Tensor, Tensor]:
    """(ids_BT, key_B): the key at position 0, then noise, and at position `distance` the word that asks for it."""
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(_KEYS, _ASK, (count, distance + 1), generator=draw)
    ids_BT[:, 0] = torch.randint(_KEYS, (count,), generator=draw)
    ids_BT[:, -1] = _ASK
    return ids_BT, ids_BT[:, 0]


def _loss(net: nn.Module, texts: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(texts[0])[:, -1], texts[1])


def _run(net: nn.Module, rate: float, distance: int, steps: int, seed: int) -> dict[str, float]:
    """Accuracy on new texts after training, and the gradient at the key before and after it."""
    held = _texts(256, distance, 7 + seed)
    before = _gradient_at_key(net, held)
    fit(
        net,
        lambda step: _texts(_BATCH, distance, (seed + 1) * 1_000_003 + step),
        _loss,
        steps=steps,
        learning_rate=rate,
        seed=seed,
        decay=False,
        until=lambda net: accuracy(net(held[0])[:, -1], held[1]) > 0.995,
        check_every=25,
    )
    with torch.no_grad():
        right = accuracy(net(held[0])[:, -1], held[1])
    return {"accuracy": right, "before": before, "after": _gradient_at_key(net, held)}


def _gradient_at_key(net: nn.Module, texts: tuple[Tensor, Tensor]) -> float:
    """Mean ‖∂loss/∂x₀‖ over texts, x₀ being the embedding of the key, in fp64: fp32 may underflow."""
    ids_BT, key_B = texts[0][:32], texts[1][:32]
    net.double()
    if isinstance(net, DecoderOnly):
        taps = Taps(["embeddings"])
        logits_BV = net(ids_BT, taps=taps)[:, -1]
        x_BTM = taps.values["embeddings"]
    else:
        assert isinstance(net, Recurrent)
        x_BTM = net.embedding(ids_BT)
        logits_BV = net.read(x_BTM)[:, -1]
    # Summed: the gradient of each text's own loss, not of a mean.
    (grad_BTM,) = torch.autograd.grad(F.cross_entropy(logits_BV, key_B, reduction="sum"), x_BTM)
    net.float()
    return max(float(grad_BTM[:, 0].norm(dim=-1).mean()), 1e-300)


def judge(numbers: Numbers) -> Judgement:
    """The Transformer finds the key and keeps the gradient; recurrent nets that learn the shortest distance do not."""

    def learned(name: str) -> bool:
        return numbers[f"accuracy_{name}_shortest"].low >= REACHES

    def forgets(name: str) -> bool:
        return numbers[f"accuracy_{name}"].high <= FORGETS and numbers[f"gradient_kept_{name}"].high <= VANISHED

    reaches = numbers["accuracy_transformer"].low >= REACHES and numbers["gradient_kept_transformer"].low >= KEPT
    forgotten = [learned(name) and forgets(name) for name in _RECURRENT]
    if not all(map(learned, _RECURRENT)):
        return Judgement.not_supported("found", "not_learned")
    if not (reaches and any(forgotten)):
        return Judgement.not_supported("found", "near")
    return Judgement.when(True, "found", "near", correction=not all(forgotten))


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("accuracy", x="distance", series="net", log_x=True, rules={"chance": 1 / _KEYS}),
        Lines("gradient", where={"when": "before"}, x="distance", series="net", log_x=True, log_y=True),
    ],
    seconds=60,
)
