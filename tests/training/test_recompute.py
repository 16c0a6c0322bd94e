"""Activation checkpointing: less is kept, and no number changes."""

from __future__ import annotations

import pytest
import torch

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.data import PairRows, padded_batch, pair_batch
from mingyue.models import build_model, sizes
from mingyue.training import hidden_and_targets, loss_of_hidden
from mingyue.training.recompute import recompute_blocks

PARTS = {
    "vocab_size": 40, "context": 16, "d_model": 32, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "d_head": 8,
    "d_ff": 64, "dropout": 0.2, "attention_dropout": 0.1,
}  # fmt: skip


def of_text(**changes):
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 40, (16,), generator=generator).numpy() for _ in range(4)]
    return ModelConfig(**PARTS | changes), padded_batch(rows, pad_id=0, bos_id=1)


def of_pairs(**changes):
    rows = PairRows.of([[5, 6, 7, 2], [8, 9, 2], [11, 2]], [[21, 22, 2], [23, 2], [24, 25, 26, 2]])
    config = EncoderDecoderConfig(**PARTS | changes, n_encoder_layers=3)
    return config, pair_batch(rows, [0, 1, 2], pad_id=0, bos_id=1)


def step(config, batch, *, recompute):
    """(loss, gradients, bytes that autograd kept in the forward pass) of one step with dropout."""
    model = build_model(config, seed=3).train()
    if recompute:
        recompute_blocks(model)
    weights = {weight.data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(7)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of_hidden(model, *hidden_and_targets(model, batch, torch.device("cpu")))
        kept_bytes = sum(kept.values())
    loss.objective.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return loss.nats, gradients, kept_bytes, list(model.state_dict())


@pytest.mark.parametrize("kind", [of_text, of_pairs])
def test_gradients_are_the_same_bit_for_bit_dropout_included(kind):
    config, batch = kind()
    nats, gradients, kept, names = step(config, batch, recompute=False)
    again, others, less, same_names = step(config, batch, recompute=True)
    assert torch.equal(nats, again)
    assert names == same_names
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name
    assert less < kept / 2


@pytest.mark.parametrize("kind", [of_text, of_pairs])
def test_the_estimate_of_memory_knows_it(kind):
    """Inputs of all blocks and one block whole, instead of all blocks whole."""
    config, _ = kind()
    counted = sizes(config.replace(n_layers=12))
    whole, less = counted.activation_bytes(2), counted.activation_bytes(2, recompute=True)
    assert less < whole / 3
    one = sizes(config.replace(n_layers=1))
    assert one.activation_bytes(2, recompute=True) >= one.activation_bytes(2) - whole // 3


def test_writing_goes_on_as_before():
    config, _ = of_text(dropout=0.0, attention_dropout=0.0)
    model = build_model(config, seed=3).eval()
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(2))
    expected = model(ids)
    recompute_blocks(model)
    cache = model.new_cache(2)
    with torch.inference_mode():
        found = torch.cat([model(part, cache=cache.step()) for part in ids.split([4, 1, 4], dim=1)], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
