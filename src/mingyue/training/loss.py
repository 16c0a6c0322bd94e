"""The loss: negative log-likelihood in nats, summed over tokens.

It is never averaged here. A step divides the sum by the tokens of the whole step, over all micro-batches and ranks, so
that neither the division into micro-batches nor padding changes a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.data import IGNORE, PairBatch
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.cross_entropy import linear_cross_entropy
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch, end_forward, hidden_of

CHUNKED_VOCABULARY = 2048
"""Vocabulary from which the loss is computed in pieces: below, one pass is as fast; above, logits do not fit caches."""


@dataclass(frozen=True)
class Loss:
    """Two sums over the tokens of a batch: the objective that is minimised, and the negative log-likelihood."""

    objective: Tensor
    """Scalar with gradient: with label smoothing, the smoothed cross-entropy in nats."""
    nats: Tensor
    """Scalar without gradient: −Σ log P(target)."""


def batch_loss(
    model: Transformer,
    batch: AnyBatch,
    *,
    device: torch.device,
    label_smoothing: float = 0.0,
    chunked: bool | None = None,
) -> Loss:
    """Run `model` on a batch and sum the loss of its targets.

    `chunked`: compute the output layer and the loss in pieces of rows, so that the logits of the whole batch never
    exist (the same sums; `linear_cross_entropy`); default: with a large vocabulary.
    """
    targets_N = batch.targets_BT.to(device, non_blocking=True).reshape(-1)
    x_NM = hidden_of(model, batch, device).flatten(0, 1)
    if isinstance(batch, PairBatch):  # padding does not need the output layer
        real = (targets_N != IGNORE).nonzero().squeeze(1)
        if len(real) < len(targets_N):
            x_NM, targets_N = x_NM.index_select(0, real), targets_N.index_select(0, real)
    weight_VM = _output_weight(model)
    if weight_VM is not None and _in_pieces(x_NM, weight_VM, chunked):
        return Loss(*linear_cross_entropy(x_NM, weight_VM, targets_N, label_smoothing=label_smoothing))
    return loss_of_logits(model.output(x_NM), targets_N, label_smoothing=label_smoothing)


def _output_weight(model: Transformer) -> Tensor | None:
    """The weight of the output layer; None if it has a bias."""
    output = model.output
    if getattr(output, "bias", None) is not None:
        return None
    return output.weight if isinstance(output, nn.Linear) else model.embedding.weight


def loss_of_logits(logits_NV: Tensor, targets_N: Tensor, *, label_smoothing: float = 0.0) -> Loss:
    """Summed loss of N predictions; targets that are `IGNORE` add nothing, to the value or to any gradient.

    Label smoothing ε (Szegedy et al. 2016; "Attention…", section 5.4): the target distribution is 1 − ε on the target
    plus ε / V on every id.
    """
    if not label_smoothing:
        nats = F.cross_entropy(logits_NV.float(), targets_N, ignore_index=IGNORE, reduction="sum")
        return Loss(nats, nats.detach())
    logs_NV = F.log_softmax(logits_NV.float(), dim=-1)
    nats = F.nll_loss(logs_NV, targets_N, ignore_index=IGNORE, reduction="sum")
    uniform = -(logs_NV.mean(dim=-1) * (targets_N != IGNORE)).sum()
    return Loss((1 - label_smoothing) * nats + label_smoothing * uniform, nats.detach())


def _in_pieces(x_NM: Tensor, weight_VM: Tensor, chunked: bool | None) -> bool:
    mixed = torch.is_autocast_enabled(x_NM.device.type)
    return in_pieces(chunked, rows=x_NM.shape[0], width=x_NM.shape[1], vocab_size=weight_VM.shape[0], mixed=mixed)


def in_pieces(chunked: bool | None, *, rows: int, width: int, vocab_size: int, mixed: bool) -> bool:
    """Whether the loss of `rows` predictions is computed in pieces: as asked, or where it is faster.

    Never in `mixed` precision: the gradients are computed in the forward pass, before a loss scaler is applied, and
    autocast supports only the one-pass form.
    """
    if mixed or chunked is False:
        return False
    return chunked is True or (vocab_size >= CHUNKED_VOCABULARY and vocab_size > width and rows >= width)


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts held-out text."""

    nats: float
    """−Σ log P over the targets."""
    tokens: int
    """Targets counted."""
    bytes_per_token: float
    """UTF-8 bytes of the held-out text per target."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte: comparable between tokenizers."""
        return self.loss / math.log(2) / self.bytes_per_token

    @property
    def perplexity(self) -> float:
        """e to the loss."""
        return math.exp(min(self.loss, 700.0))

    def numbers(self) -> dict[str, float]:
        """The fields of the log."""
        return {"heldout_loss": self.loss, "heldout_tokens": self.tokens, "bits_per_byte": self.bits_per_byte}


def evaluate(
    model: Transformer,
    batches: Iterable[AnyBatch],
    runtime: Runtime,
    *,
    bytes_per_token: float,
    ranks: Ranks | None = None,
    chunked: bool | None = None,
) -> Evaluation:
    """Held-out loss: the model in evaluation mode (no dropout), no gradients; the previous mode is restored.

    With `ranks`, `batches` are this rank's share, and the result is that of all batches, identical to one rank's.
    """
    was_training = model.training
    model.eval()
    sums: list[Tensor] = []
    tokens = 0
    try:
        with torch.inference_mode(), runtime.autocast():
            for batch in batches:
                sums.append(batch_loss(model, batch, device=runtime.device, chunked=chunked).nats)
                tokens += batch.tokens
    finally:
        model.train(was_training)
        end_forward(model)
    # One synchronisation with the device, and an exact sum in fp64: thousands of batches lose no digits, and the result
    # does not depend on the order of the batches or on which rank had which.
    found = (ranks or Ranks()).collect([tokens, *(torch.stack(sums).tolist() if sums else [])])
    nats = math.fsum(value for own in found for value in own[1:])
    return Evaluation(nats, sum(int(own[0]) for own in found), bytes_per_token)
