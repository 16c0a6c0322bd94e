"""The optimisers: which of them updates which weight, by name, and one object for both.

    group        weights                                        muon              adamw     decay
    matrices     2-D weights inside the blocks                  Muon              AdamW     yes
    output       an untied output layer                         AdamW             AdamW     yes
    embeddings   token embeddings (tied or not), position table AdamW             AdamW     no
    vectors      gains and biases                               AdamW             AdamW     no

AdamW is `torch.optim.AdamW` (Loshchilov & Hutter 2019), in its fused form: one kernel for all weights of a group, on
CPUs 4 to 15 times faster than the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from mingyue.config import EncoderDecoderConfig, OptimiserSettings, PartsConfig, TrainSettings
from mingyue.errors import CheckpointError
from mingyue.models import Transformer
from mingyue.training.distributed import Ranks
from mingyue.training.forward import is_sharded
from mingyue.training.muon import Matrix, Muon
from mingyue.training.names import clean_name
from mingyue.training.schedules import paper_peak
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.training.sharded_muon import ShardedMuon

GroupName = Literal["matrices", "output", "embeddings", "vectors"]
_DECAYED: tuple[GroupName, ...] = ("matrices", "output")
_MUON, _BESIDE_MUON, _ALONE = 0.02, 0.012, 0.003  # peak rates, AdamW's at a width of 128
_FOR_PAIRS = 0.006  # beside Muon
_FUSED = ("cpu", "cuda", "mps")
_ADAMW_STATE = ("step", "exp_avg", "exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """PyTorch's, without the wrappers of two methods that import parts of torch.compile, which takes 1.3 s."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


@dataclass(frozen=True)
class Rates:
    """Peak learning rates of the two optimisers."""

    adamw: float
    muon: float


def peak_rates(settings: TrainSettings, config: PartsConfig, warmup: int) -> Rates:
    """The rates of `settings`; by default, rates for the width of the model.

    Adam's best rate falls with the root of the width (the rule of nanochat's depth dial); Muon's does not depend on it
    (Jordan et al. 2024), but very narrow models take more. With the paper's schedule Adam's peak follows from width
    and warm-up.
    """
    optimiser, pairs = settings.optimiser, isinstance(config, EncoderDecoderConfig)
    adamw = optimiser.learning_rate
    if adamw is None and settings.schedule.schedule == "paper":
        adamw = paper_peak(config.d_model, warmup)
    if adamw is None:
        beside = _FOR_PAIRS if pairs else _BESIDE_MUON
        adamw = (beside if optimiser.optimiser == "muon" else _ALONE) * (128 / config.d_model) ** 0.5
    narrow = 1.0 if pairs else max(1.0, (128 / config.d_model) ** 0.5)
    return Rates(adamw, optimiser.muon_learning_rate or _MUON * narrow)


def group_of(name: str, weight: Tensor) -> GroupName:
    """The group of a weight, by its name in `state_dict()` and its number of axes."""
    if weight.ndim < 2:
        return "vectors"
    if "blocks." in name:
        return "matrices"
    return "output" if name == "output.weight" else "embeddings"


def matrix_rows(name: str, weight: Tensor, config: PartsConfig) -> tuple[int, ...]:
    """Rows of each matrix in a weight: Q, K, V; K, V; gate and up of SwiGLU; else all rows."""
    if name.endswith("attention.qkv.weight"):
        key_rows = config.n_kv_heads * config.d_head
        return (config.n_heads * config.d_head, key_rows, key_rows)
    if name.endswith("attention.key_value.weight"):
        return (config.n_kv_heads * config.d_head,) * 2
    if name.endswith("feedforward.inner.weight") and config.feedforward == "swiglu":
        return (config.d_ff, config.d_ff)
    return (weight.shape[0],)


class Optimisers:
    """Muon and AdamW, or AdamW alone, for all weights of a model, which is on its device.

    Call `set_rates` before each `step`. With several `ranks`, gradients are sums over all of them, and the work of Muon
    is divided.
    """

    def __init__(
        self, model: Transformer, settings: OptimiserSettings, rates: Rates, *, ranks: Ranks | None = None
    ) -> None:
        groups: dict[GroupName, dict[str, nn.Parameter]] = {}
        for name, weight in model.named_parameters():
            groups.setdefault(group_of(clean_name(name), weight), {})[clean_name(name)] = weight
        self.muon: Muon | ShardedMuon | None = None
        if settings.optimiser == "muon" and "matrices" in groups:
            matrices = groups.pop("matrices").items()
            make = Muon
            if is_sharded(model):
                from mingyue.training.sharded_muon import ShardedMuon

                make = ShardedMuon
            self.muon = make(
                (Matrix(name, weight, matrix_rows(name, weight, model.config)) for name, weight in matrices),
                rate=rates.muon,
                momentum=settings.muon_momentum,
                weight_decay=settings.weight_decay,
                ranks=ranks,
            )
        self.adamw = AdamW(
            [
                {"params": list(named.values()), "weight_decay": settings.weight_decay if group in _DECAYED else 0.0}
                for group, named in groups.items()
            ],
            lr=rates.adamw,
            betas=(settings.beta1, settings.beta2),
            eps=settings.adam_eps,
            fused=next(model.parameters()).device.type in _FUSED,
        )
        self.rates = rates
        self._adamw_weights = {name: weight for named in groups.values() for name, weight in named.items()}
        self.parameters = list(model.parameters())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All weights, in the form that a loss scaler expects."""
        return [{"params": self.parameters}]

    def set_rates(self, multiplier: float) -> None:
        """Set both rates to `multiplier` times their peaks."""
        for group in self.adamw.param_groups:
            group["lr"] = self.rates.adamw * multiplier
        if self.muon is not None:
            self.muon.rate = self.rates.muon * multiplier

    def step(self) -> None:
        """Update every weight once, by its gradient."""
        self.adamw.step()
        if self.muon is not None:
            self.muon.step()

    def zero_grad(self) -> None:
        """Free the gradients."""
        for weight in self.parameters:
            weight.grad = None

    def named_state(self) -> dict[str, Tensor]:
        """The state of the optimisers as tensors by weight: `adamw.<weight>.exp_avg` and the like.

        Empty for AdamW before its first step.
        """
        state = {
            f"adamw.{name}.{key}": value
            for name, weight in self._adamw_weights.items()
            for key, value in self.adamw.state.get(weight, {}).items()
        }
        if self.muon is not None:
            state |= {f"muon.{name}": value for name, value in self.muon.named_state().items()}
        return state

    def load_named_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `named_state` returned, exactly.

        Raises `CheckpointError` that names the first tensor that is missing, unexpected, or of the wrong shape.
        """
        self.adamw.state.clear()
        begun = any(name.startswith("adamw.") for name in state)
        for name, weight in self._adamw_weights.items() if begun else ():
            values = {key: _take(state, f"adamw.{name}.{key}", weight) for key in _ADAMW_STATE}
            self.adamw.state[weight] = {key: value.clone().to(weight.device) for key, value in values.items()}
        if self.muon is not None:
            self.muon.load_named_state(
                {f"{m.name}.momentum": _take(state, f"muon.{m.name}.momentum", m.weight) for m in self.muon.matrices}
            )
        left = sorted(set(state) - set(self.named_state()))
        if left:
            raise CheckpointError(tr("the optimiser's state holds {left}, which this run has no use for", left[0]))


def _take(state: Mapping[str, Tensor], name: str, weight: Tensor) -> Tensor:
    if name not in state:
        raise CheckpointError(tr("the optimiser's state has no {name}", name))
    expected = [] if name.endswith(".step") else list(weight.shape)
    if list(state[name].shape) != expected:
        raise CheckpointError(
            tr("the optimiser's {name} is {shape}, not {expected}", name, list(state[name].shape), expected)
        )
    return state[name]
