"""Modules without machinery compute what the modules do, on the same weights, and leave the modules alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mingyue.config import ModelConfig
from mingyue.models import build_model
from mingyue.nn import for_inference

SIZES = {
    "vocab_size": 23,
    "context": 24,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_head": 6,
    "d_ff": 20,
}
VARIANTS = [
    {"positions": "none", "feedforward": "relu", "norm": "layer", "norm_placement": "post", "final_norm": False},
    {"positions": "learned", "feedforward": "gelu", "norm": "layer", "bias_qkv": True, "bias_feedforward": True},
    {"positions": "sinusoidal", "feedforward": "relu2", "embedding_scale": True, "tied_output": False},
    {"positions": "rotary", "feedforward": "swiglu", "qk_norm": True, "window": 4, "dropout": 0.5},
]


def model_of(variant):
    model = build_model(ModelConfig(**SIZES, **variant), seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(weight.numel()))
    return model


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["positions"])
@torch.no_grad()
def test_the_same_logits_for_every_kind_of_part_with_and_without_a_cache(variant):
    model = model_of(variant)
    lean = for_inference(model)  # of a model in training mode: dropout does not reach it
    model.eval()
    ids = torch.randint(0, 23, (2, 20), generator=torch.Generator().manual_seed(3))
    assert torch.equal(lean(ids), model(ids))
    for rows in (1, 2):  # one row of one token takes the path of a single row
        caches = [part.new_cache(rows) for part in (lean, model)]
        for t in range(20):
            found, expected = (
                part(ids[:rows, t : t + 1], cache=cache.step())
                for part, cache in zip((lean, model), caches, strict=True)
            )
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@torch.no_grad()
def test_weights_are_shared_and_the_module_keeps_its_mode():
    model = model_of(VARIANTS[1])
    lean = for_inference(model)
    ids = torch.tensor([[4, 5, 6]])
    before = lean(ids)
    model.blocks[0].attention.output.weight.mul_(2)
    assert not torch.equal(lean(ids), before)
    assert model.training
    assert torch.equal(lean(ids), model.eval()(ids))


@torch.no_grad()
def test_hooks_and_foreign_modules_stay_in_force():
    """An adapter in the place of a linear layer, and a hook on another, stay in force in inference too."""

    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x) + 1

    model = model_of(VARIANTS[1]).eval()
    ids = torch.tensor([[4, 5, 6]])
    plain = model(ids)
    model.blocks[0].attention.output = Adapter(model.blocks[0].attention.output)
    adapted = model(ids)
    seen = []
    model.blocks[1].feedforward.register_forward_hook(lambda module, given, result: seen.append(1))
    assert torch.equal(for_inference(model)(ids), adapted)
    assert not torch.equal(adapted, plain)
    assert seen == [1]


def test_what_a_module_does_not_have_its_bare_form_does_not_have():
    lean = for_inference(model_of(VARIANTS[0]))
    assert lean.config.n_layers == 2
    with pytest.raises(AttributeError, match="DecoderOnly has no attribute 'nothing'"):
        _ = lean.nothing
