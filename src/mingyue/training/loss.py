"""The loss: negative log-likelihood in nats, summed over tokens.

It is never averaged here. A step divides the sum by the tokens of the whole step, over all micro-batches and ranks, so
that neither the division of a step into micro-batches nor padding changes a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.data import IGNORE
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.cross_entropy import linear_cross_entropy
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch, end_forward, hidden_and_targets

CHUNKED_VOCABULARY = 2048
"""From this size on the loss is computed in chunks. Below, one pass is as fast; above, the logits exceed the caches."""


@dataclass(frozen=True)
class Loss:
    """Two sums over the tokens of a batch: the objective, and the negative log-likelihood to report."""

    objective: Tensor
    """Scalar with gradient, in nats: the cross-entropy, with label smoothing if set."""
    nats: Tensor
    """Scalar without gradient: −Σ log P(target)."""


def loss_of_hidden(
    model: Transformer,
    x_NM: Tensor,
    targets_N: Tensor,
    *,
    label_smoothing: float = 0.0,
    chunked: bool | None = None,
) -> Loss:
    """Apply the output layer of `model` to x_NM (`hidden_and_targets`) and sum the loss of the targets.

    `chunked`: output layer and loss are computed for chunks of the rows, so that the logits of the whole batch never
    exist (the same sums; `linear_cross_entropy`). None: with a large vocabulary.
    """
    weight_VM = _output_weight(model)
    (rows, width), mixed = x_NM.shape, torch.is_autocast_enabled(x_NM.device.type)
    if weight_VM is not None and is_chunked(
        chunked, rows=rows, width=width, vocab_size=weight_VM.shape[0], mixed=mixed
    ):
        return Loss(*linear_cross_entropy(x_NM, weight_VM, targets_N, label_smoothing=label_smoothing))
    return loss_of_logits(model.output(x_NM), targets_N, label_smoothing=label_smoothing)


def _output_weight(model: Transformer) -> Tensor | None:
    """The matrix of the output layer; None if it has a bias too."""
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


def is_chunked(chunked: bool | None, *, rows: int, width: int, vocab_size: int, mixed: bool) -> bool:
    """Whether the loss of `rows` predictions is computed in chunks: as set, or (None) where it pays.

    Never in `mixed` precision: the chunked loss computes its gradients in the forward pass, before a loss scaler could
    scale them, and autocast does not know it.
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
    """UTF-8 bytes of the held-out text for each of its targets."""

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
        """The values that the log records, by key."""
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
    """Held-out loss of `model` in eval mode (no dropout), without gradients; its mode is restored afterwards.

    With `ranks`, `batches` are this rank's share, and the result is that of all ranks, equal to the result of one rank
    with all batches.
    """
    was_training = model.training
    model.eval()
    sums: list[Tensor] = []
    tokens = 0
    try:
        with torch.inference_mode(), runtime.autocast():
            for batch in batches:
                loss = loss_of_hidden(model, *hidden_and_targets(model, batch, runtime.device), chunked=chunked)
                sums.append(loss.nats)
                tokens += batch.tokens
    finally:
        model.train(was_training)
        end_forward(model)
    # One synchronisation with the device. `fsum` is exact: the sum does not depend on the order of the batches, nor on
    # which rank had which.
    found = (ranks or Ranks()).collect([tokens, *(torch.stack(sums).tolist() if sums else [])])
    nats = math.fsum(value for own in found for value in own[1:])
    return Evaluation(nats, sum(int(own[0]) for own in found), bytes_per_token)
