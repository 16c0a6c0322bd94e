"""The Mini-GPT as a whole: names, tied output, torch's layers beside it, dropout where the paper has it, bad input."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from mingyue.config import ModelConfig
from mingyue.models import DecoderOnly, TiedOutput
from mingyue.nn import Attend, Taps, sinusoid_table


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 23, shape, generator=torch.Generator().manual_seed(0))


BLOCK = {
    "attention.qkv": (4 * 6 + 2 * 2 * 6, 16),
    "attention.output": (16, 24),
    "feedforward.inner": (20, 16),
    "feedforward.output": (16, 20),
}


def expected_names(layers: int = 2, *, norm_bias: bool = False, biases: bool = False, qk_norm: bool = False) -> dict:
    shapes = {"embedding.weight": (23, 16), "final_norm.weight": (16,)}
    shapes |= {"final_norm.bias": (16,)} if norm_bias else {}
    for i in range(layers):
        for name, shape in BLOCK.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            if biases:
                shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
        for norm in ("attention_norm", "feedforward_norm"):
            shapes |= {f"blocks.{i}.{norm}.{part}": (16,) for part in ("weight", "bias")[: 1 + norm_bias]}
        if qk_norm:
            shapes |= {f"blocks.{i}.attention.{one}_norm.weight": (6,) for one in ("query", "key")}
    return shapes


def names_of(model: DecoderOnly) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def test_names_and_shapes_of_the_weights(lively):
    """The names that bundles, optimisers and name maps rely on. Tied: no output.weight; buffers are not stored."""
    assert names_of(lively(feedforward="relu")) == expected_names()
    assert names_of(lively(feedforward="relu", qk_norm=True)) == expected_names(qk_norm=True)
    paper = {"feedforward": "relu", "norm": "layer", "positions": "sinusoidal"}
    biases = {"bias_qkv": True, "bias_output": True, "bias_feedforward": True}
    assert names_of(lively(**paper, **biases)) == expected_names(norm_bias=True, biases=True)
    learned = {**expected_names(), "positions.table": (24, 16)}
    assert names_of(lively(feedforward="relu", positions="learned")) == learned
    assert names_of(lively(feedforward="relu", tied_output=False)) == {**expected_names(), "output.weight": (23, 16)}
    gated = names_of(lively(feedforward="swiglu"))
    assert gated["blocks.1.feedforward.inner.weight"] == (40, 16)


def test_a_tied_output_layer_is_the_embedding_table_and_has_one_name(lively):
    model = lively()
    assert isinstance(model.output, TiedOutput)
    assert not list(model.output.parameters())
    hidden = model.hidden(ids(1, 5))
    torch.testing.assert_close(model(ids(1, 5)), hidden @ model.embedding.weight.T)
    model.embedding.weight[3] = 0
    assert (model(ids(1, 5))[..., 3] == 0).all()


def test_a_copied_or_reloaded_model_is_tied_to_its_own_table(lively):
    model = lively()
    before = model(ids(1, 5))
    twin = copy.deepcopy(model)
    twin.embedding.weight.zero_()
    assert torch.equal(model(ids(1, 5)), before)
    assert (twin(ids(1, 5)) == 0).all()
    twin.load_state_dict({name: weight.clone() for name, weight in model.state_dict().items()}, assign=True)
    assert torch.equal(twin(ids(1, 5)), before)
    assert twin.double()(ids(1, 5)).dtype is torch.float64


def test_both_ends_of_a_tied_table_receive_gradient(lively):
    with torch.enable_grad():
        model = lively()
        model(torch.zeros(1, 1, dtype=torch.long))[..., 5].sum().backward()
    assert (model.embedding.weight.grad[[0, 5]] != 0).any(dim=1).all()
    assert (model.embedding.weight.grad[[1, 2]] == 0).all()


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_blocks_are_torchs_encoder_layers_with_a_causal_mask_and_the_same_weights(lively, placement, activation):
    biases = {"bias_qkv": True, "bias_output": True, "bias_feedforward": True}
    model = lively(
        feedforward=activation, norm="layer", norm_placement=placement, positions="none", n_kv_heads=4, d_head=4,
        **biases,
    )  # fmt: skip
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2))
    ours = theirs = x
    hidden = nn.Transformer.generate_square_subsequent_mask(9)
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            16, 4, 20, dropout=0.0, activation=activation, layer_norm_eps=1e-6, batch_first=True,
            norm_first=placement == "pre",
        )  # fmt: skip
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": block.attention.qkv.weight,
                "self_attn.in_proj_bias": block.attention.qkv.bias,
                **{f"self_attn.out_proj.{name}": weight for name, weight in block.attention.output.named_parameters()},
                **{f"linear1.{name}": weight for name, weight in block.feedforward.inner.named_parameters()},
                **{f"linear2.{name}": weight for name, weight in block.feedforward.output.named_parameters()},
                **{f"norm1.{name}": weight for name, weight in block.attention_norm.named_parameters()},
                **{f"norm2.{name}": weight for name, weight in block.feedforward_norm.named_parameters()},
            }
        )
        theirs = layer.train()(theirs, src_mask=hidden, is_causal=True)
        ours = block(ours, Attend(causal=True), model.positions.rotation(torch.arange(9)[None]))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_the_stream_begins_with_scaled_embeddings_and_positions_and_ends_with_the_norm(lively):
    """Section 3.4: embeddings times √d_model; then the sum with the positional encodings."""
    model, taps = lively(positions="sinusoidal", embedding_scale=True), Taps(["embeddings", "blocks.1.output", "final"])
    model.hidden(ids(1, 6), taps=taps)
    expected = model.embedding.weight[ids(1, 6)] * math.sqrt(16) + sinusoid_table(24, 16)[:6]
    torch.testing.assert_close(taps.values["embeddings"], expected)
    torch.testing.assert_close(taps.values["final"], model.final_norm(taps.values["blocks.1.output"]))
    plain, taps = lively(final_norm=False, norm_placement="post"), Taps(["blocks.1.output", "final"])
    plain.hidden(ids(1, 6), taps=taps)
    assert torch.equal(taps.values["final"], taps.values["blocks.1.output"])


def test_the_layout_of_the_sinusoids_is_the_configs(lively):
    for layout in ("interleaved", "halves"):
        model = lively(positions="sinusoidal", sinusoid_layout=layout)
        assert torch.equal(model.positions.table, sinusoid_table(24, 16, layout))


def test_without_positions_a_set_of_tokens_before_the_last_has_no_order(lively):
    model, text = lively(positions="none", n_layers=1), ids(1, 8)
    shuffled = torch.cat([text[:, :7].flip(1), text[:, 7:]], dim=1)
    torch.testing.assert_close(model(text)[0, -1], model(shuffled)[0, -1], rtol=0, atol=1e-5)
    assert not torch.allclose(lively(n_layers=1)(text)[0, -1], lively(n_layers=1)(shuffled)[0, -1], atol=1e-2)


def test_dropout_stands_on_embeddings_and_sub_layer_outputs_only_in_training(lively):
    model = lively(dropout=0.5)
    places = ["embeddings", "blocks.0.attention.output", "blocks.0.middle", "blocks.0.feedforward.output",
              "blocks.0.output"]  # fmt: skip

    def run() -> dict[str, torch.Tensor]:
        taps = Taps(places)
        model(ids(2, 20), taps=taps)
        return taps.values

    still = run()
    assert all(torch.equal(value, still[name]) for name, value in run().items())
    torch.manual_seed(0)
    values = run() if model.train() else {}
    dropped = values["embeddings"] == 0
    assert 0.4 < dropped.float().mean() < 0.6
    torch.testing.assert_close(values["embeddings"][~dropped], 2 * still["embeddings"][~dropped])
    for before, sub_layer, after in (places[:3], places[2:]):
        added = values[after] - values[before]
        kept = added.abs() > 1e-6
        assert 0.4 < kept.float().mean() < 0.6
        torch.testing.assert_close(added[kept], 2 * values[sub_layer][kept], rtol=1e-3, atol=1e-4)


def test_attention_dropout_works_in_training(lively):
    model = lively(attention_dropout=0.5)
    assert torch.equal(model(ids(1, 9)), model(ids(1, 9)))
    model.train()
    assert not torch.equal(model(ids(1, 9)), model(ids(1, 9)))


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
def test_positions_outside_the_context_are_refused_for_every_kind(lively, positions):
    model = lively(positions=positions)
    with pytest.raises(ValueError, match="25 tokens do not fit a context of 24"):
        model(ids(1, 25))
    with pytest.raises(ValueError, match="position 24 does not exist"):
        model(ids(1, 2), positions_BT=torch.tensor([[3, 24]]))
    with pytest.raises(ValueError, match="position -1 does not exist"):
        model(ids(1, 2), positions_BT=torch.tensor([[-1, 4]]))


def test_a_cache_decides_by_itself_who_attends_and_where(lively):
    model = lively()
    for more in ({"attend": Attend()}, {"positions_BT": torch.zeros(1, 2, dtype=torch.long)}):
        with pytest.raises(ValueError, match="a cache determines"):
            model(ids(1, 2), cache=model.new_cache(1).step(), **more)


def test_given_positions_are_what_counts(lively):
    for positions in ("learned", "sinusoidal", "rotary"):
        model = lively(positions=positions)
        default = model(ids(2, 5))
        for shape in (1, 2):
            torch.testing.assert_close(model(ids(2, 5), positions_BT=torch.arange(5).expand(shape, 5)), default)
        shifted = model(ids(2, 5), positions_BT=torch.arange(7, 12)[None])
        same = torch.allclose(shifted, default, atol=1e-4)
        assert same == (positions == "rotary")  # only distances count
        assert not torch.allclose(model(ids(2, 5), positions_BT=3 * torch.arange(5)[None]), default, atol=1e-2)


def test_a_sequence_of_one_token_and_a_context_of_one(lively):
    assert lively(context=1)(ids(3, 1)).shape == (3, 1, 23)


def test_two_equal_configs_build_modules_of_equal_shapes():
    config = ModelConfig(
        vocab_size=9, context=4, d_model=8, n_layers=1, n_heads=2, n_kv_heads=1, d_head=4, d_ff=12
    )  # fmt: skip
    again = ModelConfig.read(config.model_dump(mode="json"), source="a copy")
    assert names_of(DecoderOnly(config)) == names_of(DecoderOnly(again))
