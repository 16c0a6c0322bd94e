"""One optimiser step: every micro-batch forward and backward, then check, clip, move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.config import TrainSettings
from mingyue.errors import TrainingError
from mingyue.models import Transformer
from mingyue.nn import Taps
from mingyue.runtime import Runtime, derive_seed
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch, end_forward, hidden_of, is_sharded
from mingyue.training.gradients import GradientSum
from mingyue.training.loss import batch_loss
from mingyue.training.optimisers import Optimisers
from mingyue.training.signals import StopRequests

if TYPE_CHECKING:
    from mingyue.training.sharding import ShardedGradients

_SMALLEST_SCALE = 2.0**-14
"""A loss scaler that has come down so far is not looking for a scale any more: the gradients are bad."""


@dataclass(frozen=True)
class StepResult:
    """What one step was like."""

    nats: float
    """−Σ log P over the step's targets, before the update."""
    tokens: int
    """Targets that counted."""
    gradient_norm: float
    """Global norm of the gradient before clipping."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / max(1, self.tokens)


class Stepper:
    """Takes steps. Dropout is a pure function of (seed, step, micro-batch); nothing else is random.

    With several ranks each is given its own micro-batches, of which the first has the number of the rank and each other
    one that is higher by the number of ranks. Tokens, losses and gradients are those of all ranks.
    """

    def __init__(
        self,
        model: Transformer,
        optimisers: Optimisers,
        runtime: Runtime,
        *,
        seed: int,
        clip: float,
        label_smoothing: float,
        chunked: bool | None = None,
        scaler: torch.amp.GradScaler | None = None,
        ranks: Ranks | None = None,
        stop: StopRequests | None = None,
    ) -> None:
        self.model = model
        self.optimisers = optimisers
        self.runtime = runtime
        self.seed = seed
        self.clip = clip
        self.label_smoothing = label_smoothing
        self.chunked = chunked
        self.scaler = scaler
        self.ranks = ranks or Ranks()
        self.stop = stop or StopRequests()
        self._gradients: GradientSum | ShardedGradients
        if is_sharded(model):
            from mingyue.training.sharding import ShardedGradients  # seconds of imports that others need not wait for

            self._gradients = ShardedGradients(model, self.ranks)
        else:
            self._gradients = GradientSum(optimisers.parameters, self.ranks)
        self._drops = model.config.dropout > 0 or model.config.attention_dropout > 0

    @classmethod
    def of(
        cls,
        model: Transformer,
        optimisers: Optimisers,
        runtime: Runtime,
        settings: TrainSettings,
        *,
        ranks: Ranks | None = None,
        stop: StopRequests | None = None,
    ) -> Stepper:
        """A stepper as the settings ask for it; with a loss scaler in fp16, whose gradients would vanish without."""
        return cls(
            model,
            optimisers,
            runtime,
            seed=settings.run.seed,
            clip=settings.optimiser.clip,
            label_smoothing=settings.optimiser.label_smoothing,
            chunked=settings.batch.chunked_loss,
            scaler=torch.amp.GradScaler(runtime.device.type) if runtime.dtype is torch.float16 else None,
            ranks=ranks,
            stop=stop,
        )

    def step(self, step: int, micro_batches: Sequence[AnyBatch], multiplier: float) -> StepResult:
        """Take step number `step` (from 0) at `multiplier` times the peak rates.

        Raises `TrainingError`, before any weight moves, when the loss or the gradient is not finite.
        """
        self.optimisers.zero_grad()
        nats, tokens = self.backward(step, micro_batches)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimisers)  # type: ignore[arg-type]  # before the norm is taken, so before clipping
        norm = self._gradients.norm(self._found())
        if self.ranks.size > 1:
            nats = self.ranks.add(nats.double())
        result = StepResult(*_together(nats, norm, tokens))
        if not self._is_sound(result):
            raise self._diagnose(step, micro_batches, result)
        if self.clip and self.clip < result.gradient_norm < math.inf:
            self._shrink(self.clip / result.gradient_norm)
        self.optimisers.set_rates(multiplier)
        if self.scaler is None:
            self.optimisers.step()
        else:
            self.scaler.step(self.optimisers)  # type: ignore[arg-type]  # leaves the weights alone if a gradient overflowed
            self.scaler.update()
        return result

    def backward(self, step: int, micro_batches: Sequence[AnyBatch]) -> tuple[Tensor, int]:
        """Add up the gradients of a step, each token weighing the same.

        Returns the summed nats of this rank's micro-batches and the tokens of all ranks.
        """
        micro_batches = self._gradients.taken_together(micro_batches)
        tokens, asked = self.ranks.tally(sum(batch.tokens for batch in micro_batches), self.stop.requested)
        if asked:
            self.stop.hear()
        sums: list[Tensor] = []
        for place, batch in enumerate(micro_batches[:-1]):
            sums.append(self._pass(step, place, batch, tokens))
        with self._gradients.last_pass():
            for batch in micro_batches[-1:]:  # a rank may have none
                sums.append(self._pass(step, len(micro_batches) - 1, batch, tokens))
        return torch.stack(sums).sum() if sums else torch.zeros((), device=self.runtime.device), tokens

    def _pass(self, step: int, place: int, batch: AnyBatch, tokens: int) -> Tensor:
        """Forward and backward of one of this rank's micro-batches; returns its nats."""
        self._seed(step, place)
        with self.runtime.autocast():
            loss = batch_loss(
                self.model,
                batch,
                device=self.runtime.device,
                label_smoothing=self.label_smoothing,
                chunked=self.chunked,
            )
        objective = loss.objective / max(1, tokens)
        (objective if self.scaler is None else self.scaler.scale(objective)).backward()
        return loss.nats

    def rehearse(self, micro_batches: Sequence[AnyBatch]) -> None:
        """Do the work of a step without the step: for measuring time. Nothing is left of it."""
        nats, _ = self.backward(0, micro_batches)
        nats.item()  # waits for the device
        self.optimisers.zero_grad()

    def _seed(self, step: int, place: int) -> None:
        if self._drops:  # by the number of the micro-batch in the whole step: the same whoever takes it
            micro = self.ranks.rank + place * self.ranks.size
            torch.manual_seed(derive_seed(self.seed, "dropout", step, 0, micro))

    def _shrink(self, factor: float) -> None:
        torch._foreach_mul_(self._gradients.held_here(self._found()), factor)

    def _found(self) -> list[Tensor]:
        return [weight.grad for weight in self.optimisers.parameters if weight.grad is not None]

    def _is_sound(self, result: StepResult) -> bool:
        if not math.isfinite(result.nats):
            return False
        if self.scaler is None:
            return math.isfinite(result.gradient_norm)
        # Under a loss scaler an overflow is how the scale is found: the scaler leaves such a step out by itself.
        return math.isfinite(result.gradient_norm) or self.scaler.get_scale() > _SMALLEST_SCALE

    def _diagnose(self, step: int, micro_batches: Sequence[AnyBatch], result: StepResult) -> TrainingError:
        """Find where the numbers went wrong: a weight, a value of the forward pass, or a gradient."""
        what = "the loss" if not math.isfinite(result.nats) else "the gradient"
        value = result.nats if what == "the loss" else result.gradient_norm
        found = (
            _first_bad_weight(self.model),
            self._first_bad_value(step, micro_batches),  # every rank looks through its own micro-batches
            _first_bad_gradient(self.model),
        )
        kinds = zip(*self.ranks.collect(found), strict=True)
        place = next(
            (place for kind in kinds for place in kind if place),
            "no single tensor is to blame: the sum of finite numbers overflowed",
        )
        return TrainingError(
            f"{what} became {value} at step {step + 1}: {place}. No weight was moved by this step.",
            advice=(
                "The last checkpoint is good. Resume it with lower rates (--learning-rate, --muon-learning-rate), "
                "a longer --warmup, a smaller --clip, or --dtype fp32."
            ),
        )

    @torch.no_grad()
    def _first_bad_value(self, step: int, micro_batches: Sequence[AnyBatch]) -> str | None:
        found: str | None = None
        for place, batch in enumerate(self._gradients.taken_together(micro_batches)):
            self._seed(step, place)
            device = self.runtime.device
            taps = Taps(record=_WATCHED)
            with self.runtime.autocast():
                taps("logits", self.model.output(hidden_of(self.model, batch, device, taps=taps)))
            for name, value in taps.values.items():  # no way out before the last: sharded ranks take part in all
                if found is None and not bool(torch.isfinite(value).all()):
                    found = f"the first value that is not finite is the output of {name}"
        end_forward(self.model)
        return found


# Everything but attention's scores and weights.
_OF_A_STACK = (
    "embeddings",
    *(f"blocks.*.attention.{name}" for name in ("query", "key", "value", "output")),
    "blocks.*.middle",
    *(f"blocks.*.cross_attention.{name}" for name in ("query", "key", "value", "output")),
    "blocks.*.crossed",
    "blocks.*.feedforward.*",
    "blocks.*.output",
    "final",
)
_WATCHED = (*(f"{stack}{name}" for stack in ("", "encoder.", "decoder.") for name in _OF_A_STACK), "logits")


def _together(nats: Tensor, norm: Tensor, tokens: int) -> tuple[float, int, float]:
    """Bring both numbers from the device in one go."""
    values = torch.stack([nats.double() if nats.device.type != "mps" else nats, norm.to(nats.dtype)]).tolist()
    return values[0], tokens, values[1]


def _first_bad_weight(model: Transformer) -> str | None:
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return f"the weight {name} is not finite"
    return None


def _first_bad_gradient(model: Transformer) -> str | None:
    # The backward pass goes from the output to the embeddings: the last bad name is where it began.
    for name, weight in reversed(list(model.named_parameters())):
        if weight.grad is not None and not bool(torch.isfinite(weight.grad).all()):
            return f"the first gradient that is not finite, coming from the output, is that of {name}"
    return None
