"""One forward pass over a batch, whichever architecture and kind of batch it is."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.data import Batch, PairBatch
from mingyue.models import DecoderOnly, EncoderDecoder, Transformer
from mingyue.nn import Attend, Taps

AnyBatch = Batch | PairBatch


def hidden_of(model: Transformer, batch: AnyBatch, device: torch.device, *, taps: Taps | None = None) -> Tensor:
    """x_BTM of every target: what the output layer reads.

    Raises `TypeError` for pairs given to a model of one text, and the other way round.
    """
    inputs_BT = batch.inputs_BT.to(device, non_blocking=True)
    if isinstance(model, EncoderDecoder) and isinstance(batch, PairBatch):
        source_BS = batch.source_BS.to(device, non_blocking=True)
        lengths_B = batch.source_lengths_B
        memory_BSM = model.encode(source_BS, source_lengths_B=lengths_B, taps=taps)
        return model.hidden(inputs_BT, model.project_kv(memory_BSM, source_lengths_B=lengths_B), taps=taps)
    if isinstance(model, DecoderOnly) and isinstance(batch, Batch):
        attend, positions_BT = within_documents(batch, device)
        return model.hidden(inputs_BT, attend=attend, positions_BT=positions_BT, taps=taps)
    raise TypeError(f"{type(model).__name__} does not read a {type(batch).__name__}")


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is divided over ranks, as `sharding` does it, whose import takes seconds that others save."""
    return hasattr(model, "set_requires_gradient_sync")


def end_forward(model: nn.Module) -> None:
    """After forward passes without a backward pass: a sharded model lets go of what it has gathered for them."""
    if is_sharded(model):
        cast(Any, model).reshard()


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
