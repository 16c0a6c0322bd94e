"""One forward pass over a batch. The only place in training that asks which architecture and kind of batch it has."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.data import IGNORE, Batch, PairBatch
from mingyue.models import DecoderOnly, EncoderDecoder, Transformer
from mingyue.nn import Attend, Taps

AnyBatch = Batch | PairBatch


def hidden_and_targets(
    model: Transformer, batch: AnyBatch, device: torch.device, *, taps: Taps | None = None
) -> tuple[Tensor, Tensor]:
    """(x_NM, targets_N): the input of the output layer at N positions of the batch, and their targets.

    Raises `TypeError` for pairs given to a decoder-only model, and for text given to an encoder-decoder model.
    """
    inputs_BT = batch.inputs_BT.to(device, non_blocking=True)
    targets_N = batch.targets_BT.to(device, non_blocking=True).reshape(-1)
    if isinstance(model, DecoderOnly) and isinstance(batch, Batch):
        attend, positions_BT = within_documents(batch, device)
        x_BTM = model.hidden(inputs_BT, attend=attend, positions_BT=positions_BT, taps=taps)
        return x_BTM.flatten(0, 1), targets_N
    if isinstance(model, EncoderDecoder) and isinstance(batch, PairBatch):
        source_BS = batch.source_BS.to(device, non_blocking=True)
        lengths_B = batch.source_lengths_B
        memory_BSM = model.encode(source_BS, source_lengths_B=lengths_B, taps=taps)
        x_BTM = model.hidden(inputs_BT, model.project_kv(memory_BSM, source_lengths_B=lengths_B), taps=taps)
        x_NM = x_BTM.flatten(0, 1)
        counted = (targets_N != IGNORE).nonzero().squeeze(1)  # the output layer need not compute padding
        if len(counted) < len(targets_N):
            x_NM, targets_N = x_NM.index_select(0, counted), targets_N.index_select(0, counted)
        return x_NM, targets_N
    raise TypeError(f"{type(model).__name__} does not read a {type(batch).__name__}")


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is divided over ranks by `sharding`, which takes seconds to import and is not imported here."""
    return hasattr(model, "set_requires_gradient_sync")


def end_forward(model: nn.Module) -> None:
    """After forward passes without a backward pass: free the weights that a sharded model has gathered for them."""
    if is_sharded(model):
        cast(Any, model).reshard()


def within_documents(batch: Batch, device: torch.device) -> tuple[Attend | None, Tensor | None]:
    """(attend, positions_BT) that restrict attention to documents; (None, None) for a batch without document numbers.

    Each document has the logits that it would have alone, for every kind of position.
    """
    if batch.documents_BT is None:
        return None, None
    documents_BT = batch.documents_BT.to(device, non_blocking=True)
    positions_1T = torch.arange(documents_BT.shape[1], device=device)[None]
    begins_BT = F.pad(documents_BT.diff(dim=1) != 0, (1, 0), value=True)
    starts_BT = torch.where(begins_BT, positions_1T, 0).cummax(dim=1).values
    return Attend(query_documents_BT=documents_BT), positions_1T - starts_BT
