"""Claim: given its weights, attention is linear in the values; the feed-forward part is what is not linear."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.blocks.parts import Nothing, smoothed
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import fit, seeds
from mingyue.nn import EVERYONE, MultiHeadAttention, PreNormBlock, Rotation, Taps, make_feedforward
from mingyue.runtime import derive_seed

LINEAR = 1e-5
"""Largest relative difference between the output of a sum and the sum of outputs: rounding."""
AS_LINEAR = 0.05
"""Errors that differ by at most this share count as equal."""
LOWER = 0.5
"""With the feed-forward part the error is at most this share of that of the best linear fit."""

_WIDTH, _N_INPUTS = 32, 4
_ARMS = ("attention", "feedforward")


class _Stack(nn.Module):
    """Blocks of this library, without norms, on continuous inputs: [B, T, inputs] → [B, T, 1]."""

    def __init__(self, *, with_feedforward: bool, n_layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.into = nn.Linear(_N_INPUTS, _WIDTH)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                MultiHeadAttention(_WIDTH, 4, 4, _WIDTH // 4),
                nn.Identity(),
                make_feedforward("relu", _WIDTH, 4 * _WIDTH, bias=True) if with_feedforward else Nothing(),
                nn.Identity(),
            )
            for _ in range(n_layers)
        )
        self.out = nn.Linear(_WIDTH, 1)
        with torch.no_grad():
            for weight in self.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=(2 * n_layers * weight.shape[1]) ** -0.5, generator=generator)
                else:
                    weight.zero_()

    def forward(self, x_BTN: Tensor) -> Tensor:
        """[B, T, inputs] → [B, T, 1]."""
        x_BTM = self.into(x_BTN)
        for block in self.blocks:
            x_BTM = block(x_BTM, EVERYONE, Rotation())
        return self.out(x_BTM)


def _target(x: Tensor) -> Tensor:
    """The target for inputs [..., 4]: one linear term and two that are not, of variance 1 together."""
    curved = x[..., 1:2] * x[..., 2:3] + 2**0.5 * torch.cos(2 * x[..., 3:4])
    return (x[..., :1] + curved) / 3**0.5


def _inputs(count: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """(inputs at one position [count, 1, 4], their targets [count, 1, 1])."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "feedforward", step))
    x_BTN = torch.randn(count, 1, _N_INPUTS, generator=generator)
    return x_BTN, _target(x_BTN)


def _error_of_linear_fit(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Mean squared error on `test` of the least squares fit (with a constant) to `train`."""
    (x, y), (x_new, y_new) = ((F.pad(given[:, 0], (0, 1), value=1.0), target[:, 0]) for given, target in (train, test))
    return float(F.mse_loss(x_new @ torch.linalg.lstsq(x, y).solution, y_new))


@torch.no_grad()
def _superposition(seed: int, *, frozen: bool) -> float:
    """Distance of attention of a sum of two inputs from the sum of its outputs, relative to the sum.

    `frozen`: all three passes use the weights of the first; else each computes its own.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "superposition"))
    attention = MultiHeadAttention(_WIDTH, 4, 4, _WIDTH // 4).eval()
    attention.qkv.weight.normal_(std=_WIDTH**-0.5, generator=generator)
    attention.output.weight.normal_(std=_WIDTH**-0.5, generator=generator)
    first, second = (torch.randn(4, 16, _WIDTH, generator=generator) for _ in range(2))
    taps = Taps("weights")
    of_first = attention(first, EVERYONE, Rotation(), taps=taps)
    given = Taps((), {"weights": lambda _: taps.values["weights"]}) if frozen else None
    of_second, of_sum = (attention(x, EVERYONE, Rotation(), taps=given) for x in (second, first + second))
    return float((of_sum - of_first - of_second).norm() / (of_first + of_second).norm())


def measure(trial: Trial) -> Measurement:
    """Errors of the linear fit and of blocks without and with a feed-forward part; linearity of attention."""
    n_layers, steps, rows = trial.pick((1, 200, 64), (2, 600, 128), (2, 5000, 256))
    errors: dict[str, list[float]] = {arm: [] for arm in ("linear", *_ARMS)}
    ratios: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    curves: dict[str, list[list[float]]] = {arm: [] for arm in _ARMS}
    given: dict[bool, list[float]] = {True: [], False: []}
    for seed in seeds(trial, 2, 5, 5):
        test = _inputs(8192, seed, -1)
        errors["linear"].append(_error_of_linear_fit(_inputs(65536, seed, -2), test))
        for arm in _ARMS:
            generator = torch.Generator().manual_seed(derive_seed(seed, "weights"))
            model = _Stack(with_feedforward=arm == "feedforward", n_layers=n_layers, generator=generator)
            went = fit(
                model,
                lambda step: _inputs(rows, seed, step),  # noqa: B023
                lambda model, data: F.mse_loss(model(data[0]), data[1]),
                steps=steps,
                learning_rate=5e-3,
                seed=seed,
            )
            with torch.no_grad():
                errors[arm].append(float(F.mse_loss(model(test[0]), test[1])))
            ratios[arm].append(errors[arm][-1] / errors["linear"][-1])
            curves[arm].append(went.losses)
        for frozen, apart in given.items():
            apart.append(_superposition(seed, frozen=frozen))
    numbers = {f"{arm}_error": Number.mean(samples) for arm, samples in errors.items()}
    numbers |= {f"{arm}_ratio": Number.mean(samples, "×") for arm, samples in ratios.items()}
    numbers["given_weights"] = Number.exact(max(given[True]))
    numbers["own_weights"] = Number.mean(given[False])
    rows = [row for arm, runs in curves.items() for row in smoothed(runs, "error", arm=arm)]
    return Measurement(numbers, {"errors": rows})


def judge(numbers: Numbers) -> Judgement:
    """Linear with given weights; at one position as good as linear without the feed-forward part, far better with."""
    linear = numbers["given_weights"].at_most(LINEAR) and numbers["attention_ratio"].near(1, AS_LINEAR)
    return Judgement.when(linear and numbers["feedforward_ratio"].at_most(LOWER), "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("errors", x="step", y="error", series="arm", rules={"linear": "linear_error"}),
    ],
    seconds=16,
)
