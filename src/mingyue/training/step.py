"""One optimiser step: forward and backward passes of all micro-batches, a check for NaN, clipping, the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.config import TrainSettings
from mingyue.data import IGNORE, PairBatch
from mingyue.errors import DivergedError
from mingyue.models import Transformer
from mingyue.nn import Taps
from mingyue.runtime import Runtime, derive_seed
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch, end_forward, hidden_and_targets, is_sharded
from mingyue.training.gradients import GradientSum
from mingyue.training.loss import loss_of_hidden
from mingyue.training.optimisers import Optimisers
from mingyue.training.signals import StopRequests
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.training.sharding import ShardedGradients

_SMALLEST_SCALE = 2.0**-14
"""With the loss scale at or below this, an overflow is no longer part of the search for a scale: it is an error."""

_PENALTY = 20.0
"""Weight of the penalty after an unseen token. Without it, unseen ids keep some 5 % of the probability there: too
little to matter to a loss in which such tokens are rare, but far too much for the text."""


@dataclass(frozen=True)
class StepResult:
    """Loss and gradient norm of one step."""

    nats: float
    """−Σ log P over the step's targets, before the update."""
    tokens: int
    """Targets with a loss."""
    gradient_norm: float
    """Global norm of the gradient before clipping."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / max(1, self.tokens)


class Stepper:
    """Takes optimiser steps. Dropout is a pure function of (seed, step, micro-batch); nothing else is random.

    With several ranks, rank r of R computes the micro-batches r, r + R, r + 2R, …; tokens, losses and gradients are
    sums over all ranks.
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
        unseen: Sequence[int] = (),
        ranks: Ranks | None = None,
        stop: StopRequests | None = None,
    ) -> None:
        self.model = model
        self._unseen_R = torch.tensor(unseen, dtype=torch.long, device=runtime.device)
        self._is_unseen_V = torch.zeros(model.config.vocab_size, dtype=torch.bool)  # on the CPU, as batches are
        self._is_unseen_V[list(unseen)] = True
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
            from mingyue.training.sharding import ShardedGradients  # imported here: it takes seconds

            self._gradients = ShardedGradients(model, self.ranks)
        else:
            self._gradients = GradientSum(optimisers.parameters, self.ranks)
        self._has_dropout = model.config.dropout > 0 or model.config.attention_dropout > 0

    @classmethod
    def of(
        cls,
        model: Transformer,
        optimisers: Optimisers,
        runtime: Runtime,
        settings: TrainSettings,
        unseen: Sequence[int] = (),
        *,
        ranks: Ranks | None = None,
        stop: StopRequests | None = None,
    ) -> Stepper:
        """A stepper with the values of `settings`, and with a loss scaler in fp16, where small gradients underflow."""
        return cls(
            model,
            optimisers,
            runtime,
            seed=settings.run.seed,
            clip=settings.optimiser.clip,
            label_smoothing=settings.optimiser.label_smoothing,
            chunked=settings.batch.chunked_loss,
            scaler=torch.amp.GradScaler(runtime.device.type) if runtime.dtype is torch.float16 else None,
            unseen=unseen,
            ranks=ranks,
            stop=stop,
        )

    def step(self, step: int, micro_batches: Sequence[AnyBatch], multiplier: float) -> StepResult:
        """Take step number `step` (from 0) at `multiplier` times the peak rates.

        Raises `DivergedError`, before any weight is updated, when the loss or the gradient is not finite.
        """
        self.optimisers.zero_grad()
        nats, tokens = self.backward(step, micro_batches)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimisers)  # type: ignore[arg-type]  # before the norm is taken, so before clipping
        if len(self._unseen_R) and (gradient := self.model.input_table.grad) is not None:
            # Rows that start equal stay equal: one vector for all unseen tokens, since each alone is too rare.
            self._gradients.share_rows(gradient, self._unseen_R)
        norm = self._gradients.norm(self._existing_gradients())
        if self.ranks.size > 1:
            nats = self.ranks.add(nats.double())
        result = StepResult(*_to_numbers(nats, norm, tokens))
        if not self._is_sound(result):
            raise self._diagnose(step, micro_batches, result)
        if self.clip and self.clip < result.gradient_norm < math.inf:
            gradients = self._gradients.local(self._existing_gradients())
            torch._foreach_mul_(gradients, self.clip / result.gradient_norm)
        self.optimisers.set_rates(multiplier)
        if self.scaler is None:
            self.optimisers.step()
        else:
            self.scaler.step(self.optimisers)  # type: ignore[arg-type]  # leaves the weights alone if a gradient overflowed
            self.scaler.update()
        return result

    def backward(self, step: int, micro_batches: Sequence[AnyBatch]) -> tuple[Tensor, int]:
        """Accumulate the gradients of a step, every token with the same weight.

        Returns the summed nats of this rank's micro-batches and the tokens of all ranks.
        """
        micro_batches = self._gradients.equalise(micro_batches)
        tokens, stop = self.ranks.tally(sum(batch.tokens for batch in micro_batches), self.stop.requested)
        if stop:
            self.stop.request_from_other_rank()
        nats: list[Tensor] = []
        for index, batch in enumerate(micro_batches):  # a rank may have none
            if index == len(micro_batches) - 1:
                self._gradients.start_last_pass()
            self._seed(step, index)
            with self.runtime.autocast():
                x_NM, targets_N = hidden_and_targets(self.model, batch, self.runtime.device)
                loss = loss_of_hidden(
                    self.model, x_NM, targets_N, label_smoothing=self.label_smoothing, chunked=self.chunked
                )
                penalty = self._penalty_after_unseen(batch, x_NM)
            objective = loss.objective if penalty is None else loss.objective + penalty
            objective = objective / max(1, tokens)
            (objective if self.scaler is None else self.scaler.scale(objective)).backward()
            nats.append(loss.nats)
            del x_NM, loss, penalty, objective  # their graph is freed before the next forward pass
        self._gradients.finish()
        return torch.stack(nats).sum() if nats else torch.zeros((), device=self.runtime.device), tokens

    def _penalty_after_unseen(self, batch: AnyBatch, x_NM: Tensor) -> Tensor | None:
        """`_PENALTY` times −Σ log P(an id that the text uses), over the positions whose input is an unseen id.

        None if there are none. A decoder's input has none: those of pairs are in the source.
        """
        if not len(self._unseen_R) or isinstance(batch, PairBatch):
            return None
        after_unseen_BT = self._is_unseen_V[batch.inputs_BT] & (batch.targets_BT != IGNORE)
        rows = after_unseen_BT.flatten().nonzero().squeeze(1).to(x_NM.device)
        if not len(rows):
            return None
        logits_NV = self.model.output(x_NM.index_select(0, rows)).float()
        of_seen_NV = logits_NV.masked_fill(self._is_unseen_V.to(x_NM.device), -math.inf)
        return _PENALTY * (logits_NV.logsumexp(dim=-1) - of_seen_NV.logsumexp(dim=-1)).sum()

    def rehearse(self, micro_batches: Sequence[AnyBatch]) -> None:
        """Run the forward and backward passes of a step without the update, to measure their time."""
        nats, _ = self.backward(0, micro_batches)
        nats.item()  # synchronises with the device
        self.optimisers.zero_grad()

    def _seed(self, step: int, index: int) -> None:
        if self._has_dropout:  # from the number of the micro-batch in the whole step: the same on any rank
            micro = self.ranks.rank + index * self.ranks.size
            torch.manual_seed(derive_seed(self.seed, "dropout", step, 0, micro))

    def _existing_gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.optimisers.parameters if weight.grad is not None]

    def _is_sound(self, result: StepResult) -> bool:
        if not math.isfinite(result.nats):
            return False
        if self.scaler is None:
            return math.isfinite(result.gradient_norm)
        # A loss scaler finds its scale by overflows, and skips the steps that overflow.
        return math.isfinite(result.gradient_norm) or self.scaler.get_scale() > _SMALLEST_SCALE

    def _diagnose(self, step: int, micro_batches: Sequence[AnyBatch], result: StepResult) -> DivergedError:
        """The error, with the first tensor that is not finite: a weight, a value of the forward pass, or a gradient."""
        what = tr("the loss") if not math.isfinite(result.nats) else tr("the gradient")
        value = result.nats if what == "the loss" else result.gradient_norm
        found = (
            _first_bad_weight(self.model),
            self._first_bad_value(step, micro_batches),  # each rank checks its own micro-batches
            _first_bad_gradient(self.model),
        )
        kinds = zip(*self.ranks.collect(found), strict=True)
        where = next(
            (where for kind in kinds for where in kind if where),
            tr("every single tensor is finite: the sum of finite numbers overflowed"),
        )
        return DivergedError(
            tr(
                "{what} became {value} at step {step}: {where}. No weight was updated by this step.",
                what,
                value,
                step + 1,
                where,
            )
        )

    @torch.no_grad()
    def _first_bad_value(self, step: int, micro_batches: Sequence[AnyBatch]) -> str | None:
        found: str | None = None
        for index, batch in enumerate(self._gradients.equalise(micro_batches)):
            self._seed(step, index)
            taps = Taps(record=_RECORDED)
            with self.runtime.autocast():
                x_NM, _ = hidden_and_targets(self.model, batch, self.runtime.device, taps=taps)
                taps("logits", self.model.output(x_NM))
            for name, value in taps.values.items():  # no early return: the ranks of a sharded model compute together
                if found is None and not bool(torch.isfinite(value).all()):
                    found = tr("the first value that is not finite is the output of {name}", name)
        end_forward(self.model)
        return found


# Every named value but attention's scores and weights.
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
_RECORDED = (*(f"{stack}{name}" for stack in ("", "encoder.", "decoder.") for name in _OF_A_STACK), "logits")


def _to_numbers(nats: Tensor, norm: Tensor, tokens: int) -> tuple[float, int, float]:
    """(nats, tokens, norm), with one synchronisation for both tensors."""
    values = torch.stack([nats.double() if nats.device.type != "mps" else nats, norm.to(nats.dtype)]).tolist()
    return values[0], tokens, values[1]


def _first_bad_weight(model: Transformer) -> str | None:
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return tr("the weight {name} is not finite", name)
    return None


def _first_bad_gradient(model: Transformer) -> str | None:
    # The backward pass goes from the output to the embeddings: the last bad name is where it began.
    for name, weight in reversed(list(model.named_parameters())):
        if weight.grad is not None and not bool(torch.isfinite(weight.grad).all()):
            return tr("the first gradient that is not finite, coming from the output, is that of {name}", name)
    return None
