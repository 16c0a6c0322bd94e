"""The loss: negative log-likelihood in nats, summed over tokens.

It is never averaged here. A step divides the sum by the tokens of the whole step, over all its micro-batches and
ranks, so that neither the way a step is cut up nor the padding of a row changes a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.data import IGNORE, Batch
from mingyue.models import DecoderOnly
from mingyue.nn import Attend
from mingyue.runtime import Runtime

CHUNKED_VOCABULARY = 2048
"""From here on the loss is taken in pieces: below, one pass is as fast; above, the logits no longer fit the caches."""


@dataclass(frozen=True)
class Loss:
    """Two sums over the tokens of a batch: what is minimised, and the plain likelihood of it for people."""

    objective: Tensor
    """Scalar with gradient: with label smoothing, the smoothed cross-entropy in nats."""
    nats: Tensor
    """Scalar without gradient: −Σ log P(target)."""


def batch_loss(model: DecoderOnly, batch: Batch, *, device: torch.device, label_smoothing: float = 0.0) -> Loss:
    """Run `model` over a batch and sum the loss of its targets.

    With a large vocabulary the output layer and the loss are taken in pieces of rows, so that the logits of the whole
    batch never exist (the same sums; `torch.nn.functional.linear_cross_entropy`).
    """
    inputs_BT = batch.inputs_BT.to(device, non_blocking=True)
    targets_N = batch.targets_BT.to(device, non_blocking=True).reshape(-1)
    attend, positions_BT = within_documents(batch, device)
    x_NM = model.hidden(inputs_BT, attend=attend, positions_BT=positions_BT).flatten(0, 1)
    weight_VM = _output_weight(model)
    if _in_pieces(x_NM, weight_VM, label_smoothing):
        return _loss_in_pieces(x_NM, weight_VM, targets_N)
    return loss_of_logits(model.output(x_NM), targets_N, label_smoothing=label_smoothing)


def _output_weight(model: DecoderOnly) -> Tensor:
    if isinstance(model.output, nn.Linear):
        return model.output.weight
    return model.embedding.weight


def within_documents(batch: Batch, device: torch.device) -> tuple[Attend | None, Tensor | None]:
    """Attention and positions that stay within documents, where the batch says which they are: (attend, positions_BT).

    Each document then has the logits that it would have alone, for every kind of position.
    """
    if batch.documents_BT is None:
        return None, None
    documents_BT = batch.documents_BT.to(device, non_blocking=True)
    places_1T = torch.arange(documents_BT.shape[1], device=device)[None]
    begins_BT = F.pad(documents_BT.diff(dim=1) != 0, (1, 0), value=True)
    starts_BT = torch.where(begins_BT, places_1T, 0).cummax(dim=1).values
    return Attend(query_documents_BT=documents_BT), places_1T - starts_BT


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


def _in_pieces(x_NM: Tensor, weight_VM: Tensor, label_smoothing: float) -> bool:
    n_rows, width = x_NM.shape
    n_words = weight_VM.shape[0]
    return (
        n_words >= CHUNKED_VOCABULARY
        and n_words > width
        and n_rows >= width
        and not label_smoothing
        # Its gradients are made in the forward pass, before a loss scaler could lift them: not in fp16, and in
        # mixed precision the one-pass form is what autocast knows.
        and not torch.is_autocast_enabled(x_NM.device.type)
        and hasattr(nn, "LinearCrossEntropyOptions")
    )


def _loss_in_pieces(x_NM: Tensor, weight_VM: Tensor, targets_N: Tensor) -> Loss:
    nats = F.linear_cross_entropy(
        x_NM,
        weight_VM,
        targets_N,
        ignore_index=IGNORE,
        reduction="sum",
        options=nn.LinearCrossEntropyOptions(),
    )
    return Loss(nats, nats.detach())


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


def evaluate(model: DecoderOnly, batches: Iterable[Batch], runtime: Runtime, *, bytes_per_token: float) -> Evaluation:
    """Held-out loss: the model in eval mode (no dropout), no gradients; the mode it was in is restored."""
    was_training = model.training
    model.eval()
    sums: list[Tensor] = []
    tokens = 0
    try:
        with torch.inference_mode(), runtime.autocast():
            for batch in batches:
                sums.append(batch_loss(model, batch, device=runtime.device).nats)
                tokens += batch.tokens
    finally:
        model.train(was_training)
    # One wait for the device, and a sum in double: thousands of batches must not cost digits.
    nats = math.fsum(torch.stack(sums).tolist()) if sums else 0.0
    return Evaluation(nats, tokens, bytes_per_token)
