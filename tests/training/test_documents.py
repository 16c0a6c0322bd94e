"""Attention limited to documents: a document packed behind others is as if it stood alone."""

from __future__ import annotations

import pytest
import torch

from mingyue.config import ModelSettings
from mingyue.data import Batch
from mingyue.models import build_model, resolve_config
from mingyue.training.forward import within_documents

CPU = torch.device("cpu")


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("window", [None, 3])
def test_a_packed_document_has_the_logits_it_has_alone(positions: str, window: int | None) -> None:
    settings = ModelSettings.model_validate({"d_model": 32, "n_heads": 2, "positions": positions, "window": window})
    model = build_model(resolve_config(settings, vocab_size=20, depth=2, context=16), seed=1).eval()
    lengths = (5, 1, 4, 6)
    documents_BT = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    ids_BT = torch.randint(0, 20, (1, 16), generator=torch.Generator().manual_seed(3))
    batch = Batch(ids_BT, ids_BT, documents_BT, 16)
    attend, positions_BT = within_documents(batch, CPU)
    with torch.no_grad():
        packed = model(ids_BT, attend=attend, positions_BT=positions_BT)[0].split(lengths)
        for logits, ids in zip(packed, ids_BT[0].split(lengths), strict=True):
            torch.testing.assert_close(logits, model(ids[None])[0], atol=1e-5, rtol=0)


def test_positions_begin_again_at_each_document_of_each_row() -> None:
    documents_BT = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 2, 2, 3]])
    _, positions_BT = within_documents(Batch(documents_BT, documents_BT, documents_BT, 10), CPU)
    assert positions_BT is not None
    assert positions_BT.tolist() == [[0, 1, 0, 1, 2], [0, 0, 0, 1, 0]]


def test_without_documents_nothing_is_limited() -> None:
    ids_BT = torch.zeros(1, 4, dtype=torch.long)
    assert within_documents(Batch(ids_BT, ids_BT, None, 4), CPU) == (None, None)
