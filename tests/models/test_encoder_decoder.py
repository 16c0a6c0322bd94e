"""The Transformer of the paper as a whole: names, torch's own beside it, cross-attention, tying, dropout, bad input."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from mingyue.config import EncoderDecoderConfig
from mingyue.models import EncoderDecoder, TiedOutput
from mingyue.nn import Attend, Taps, sinusoid_table

V = 23
BIASES = {"bias_qkv": True, "bias_output": True, "bias_feedforward": True}
WHOLE_HEADS = {"n_kv_heads": 4, "d_head": 4}  # torch's heads divide the width and share nothing


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(seed))


def names_of(model: EncoderDecoder) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def expected_names() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (V, 16)}
    for stack, layers in (("encoder", 3), ("decoder", 2)):
        for i in range(layers):
            block = {
                "attention_norm": (16,), "attention.qkv": (8 * 6, 16), "attention.output": (16, 24),
                "feedforward_norm": (16,), "feedforward.inner": (20, 16), "feedforward.output": (16, 20),
            }  # fmt: skip
            if stack == "decoder":
                block |= {
                    "cross_attention_norm": (16,), "cross_attention.query": (24, 16),
                    "cross_attention.key_value": (2 * 2 * 6, 16), "cross_attention.output": (16, 24),
                }  # fmt: skip
            shapes |= {f"{stack}.blocks.{i}.{name}.weight": shape for name, shape in block.items()}
        shapes[f"{stack}.final_norm.weight"] = (16,)
    return shapes


def test_names_and_shapes_of_the_weights(translator):
    """The names that bundles, optimisers and name maps rely on. One table, however often it is read."""
    plain = expected_names()
    assert names_of(translator(feedforward="relu")) == plain
    own = {**plain, "source_embedding.weight": (31, 16)}
    assert names_of(translator(feedforward="relu", source_vocab_size=31)) == own
    assert names_of(translator(feedforward="relu", tied_output=False)) == {**plain, "output.weight": (V, 16)}
    assert names_of(translator(feedforward="relu", output_bias=True)) == {**plain, "output.bias": (V,)}
    tables = {f"{stack}.positions.table": (24, 16) for stack in ("encoder", "decoder")}
    assert names_of(translator(feedforward="relu", positions="learned")) == {**plain, **tables}
    head_norms = {
        f"{place}.{one}_norm.weight": (6,)
        for place in (
            *(f"encoder.blocks.{i}.attention" for i in range(3)),
            *(f"decoder.blocks.{i}.{kind}" for i in range(2) for kind in ("attention", "cross_attention")),
        )
        for one in ("query", "key")
    }
    assert names_of(translator(feedforward="relu", qk_norm=True)) == {**plain, **head_norms}


def test_two_equal_configs_build_modules_of_equal_shapes(translator):
    model = translator(source_vocab_size=9, output_bias=True)
    again = EncoderDecoderConfig.read(model.config.model_dump(mode="json"), source="a copy")
    assert again == model.config
    assert names_of(EncoderDecoder(again)) == names_of(model)


# torch's own Transformer.


def theirs_of(model: EncoderDecoder) -> nn.Transformer:
    """`torch.nn.Transformer` with the weights of `model`."""
    config = model.config
    theirs = nn.Transformer(
        config.d_model, config.n_heads, config.n_encoder_layers, config.n_layers, config.d_ff, dropout=0.0,
        activation=config.feedforward, layer_norm_eps=config.norm_eps, batch_first=True,
        norm_first=config.norm_placement == "pre",
    )  # fmt: skip
    state: dict[str, Tensor] = {}

    def take(name: str, module: nn.Module) -> None:
        state.update({f"{name}.{kind}": weight for kind, weight in module.named_parameters(recurse=False)})

    for stack, blocks in (("encoder", model.encoder.blocks), ("decoder", model.decoder.blocks)):
        for i, block in enumerate(blocks):
            layer = f"{stack}.layers.{i}"
            state[f"{layer}.self_attn.in_proj_weight"] = block.attention.qkv.weight
            state[f"{layer}.self_attn.in_proj_bias"] = block.attention.qkv.bias
            take(f"{layer}.self_attn.out_proj", block.attention.output)
            take(f"{layer}.linear1", block.feedforward.inner)
            take(f"{layer}.linear2", block.feedforward.output)
            take(f"{layer}.norm1", block.attention_norm)
            take(f"{layer}.norm2" if stack == "encoder" else f"{layer}.norm3", block.feedforward_norm)
            if stack == "decoder":
                cross = block.cross_attention
                for kind in ("weight", "bias"):
                    parts = [cross.query.get_parameter(kind), cross.key_value.get_parameter(kind)]
                    state[f"{layer}.multihead_attn.in_proj_{kind}"] = torch.cat(parts)
                take(f"{layer}.multihead_attn.out_proj", cross.output)
                take(f"{layer}.norm2", block.cross_attention_norm)
    take("encoder.norm", model.encoder.final_norm)
    take("decoder.norm", model.decoder.final_norm)
    theirs.load_state_dict(state)
    return theirs.train()  # in eval mode torch may leave for another kernel; dropout is 0


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch says which of its kernels it cannot take
@pytest.mark.parametrize("lengths", [None, [9, 4, 1]])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_it_is_torchs_transformer_with_the_same_weights(translator, placement, activation, lengths):
    """Issue 3: equal to 1e-5 with torch.nn.Transformer, pre- and post-norm, with padded sources and without."""
    model = translator(
        feedforward=activation, norm="layer", norm_placement=placement, norm_eps=1e-5, positions="none", **WHOLE_HEADS,
        **BIASES,
    )  # fmt: skip
    source, target = ids(3, 9), ids(3, 7, seed=1)
    lengths_B = None if lengths is None else torch.tensor(lengths)
    hidden_BS = None if lengths_B is None else torch.arange(9) >= lengths_B[:, None]
    expected = theirs_of(model)(
        model.embedding(source),
        model.embedding(target),
        tgt_mask=torch.ones(7, 7, dtype=torch.bool).triu(1),
        src_key_padding_mask=hidden_BS,
        memory_key_padding_mask=hidden_BS,
        tgt_is_causal=True,
    )
    memory = model.project_kv(model.encode(source, source_lengths_B=lengths_B), source_lengths_B=lengths_B)
    torch.testing.assert_close(model.hidden(target, memory), expected, rtol=0, atol=1e-5)
    logits = model(source, target, source_lengths_B=lengths_B)
    torch.testing.assert_close(logits, expected @ model.embedding.weight.T, rtol=0, atol=1e-5)
    assert logits.std() > 0.5


def test_the_encoder_is_a_stack_in_which_everyone_sees_everyone(translator):
    model = translator(positions="none")
    memory = model.encode(ids(2, 6))
    x = model.embedding(ids(2, 6))
    for block in model.encoder.blocks:
        x = block(x, Attend(), model.encoder.positions.rotation(torch.arange(6)[None]))
    torch.testing.assert_close(memory, model.encoder.final_norm(x))


def test_both_streams_begin_with_scaled_embeddings_and_positions(translator):
    """Section 3.4: both embedding layers times √d_model; section 3.5: at the bottoms of both stacks."""
    model = translator(positions="sinusoidal", embedding_scale=True)
    taps = Taps("*.embeddings")
    model(ids(1, 6), ids(1, 4, seed=1), taps=taps)
    for stack, read in (("encoder", ids(1, 6)), ("decoder", ids(1, 4, seed=1))):
        n_tokens = read.shape[1]
        expected = model.embedding.weight[read] * math.sqrt(16) + sinusoid_table(24, 16)[:n_tokens]
        torch.testing.assert_close(taps.values[f"{stack}.embeddings"], expected)


# Cross-attention.


def recorded(model: EncoderDecoder, edits=None) -> dict[str, Tensor]:
    taps = Taps("*", edits=edits)
    model(ids(2, 6), ids(2, 5, seed=1), taps=taps)
    return taps.values


def in_heads(x_BTN: Tensor, n_heads: int) -> Tensor:
    return x_BTN.unflatten(-1, (n_heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_queries_come_from_the_masked_sub_layer_of_the_same_block_keys_and_values_from_the_encoder(
    translator, placement
):
    """Issue 3: Q is what this block's masked self-attention made, not the block's input; K and V are the encoder's."""
    model = translator(norm_placement=placement)
    values = recorded(model)
    for layer, block in enumerate(model.decoder.blocks):
        cross, at = block.cross_attention, f"decoder.blocks.{layer}"
        middle = values[f"{at}.middle"]
        query = cross.query(block.cross_attention_norm(middle) if placement == "pre" else middle)
        torch.testing.assert_close(values[f"{at}.cross_attention.query"], in_heads(query, 4))
        key_value = in_heads(cross.key_value(values["encoder.final"]), 4)
        torch.testing.assert_close(values[f"{at}.cross_attention.key"], key_value[:, :2])
        torch.testing.assert_close(values[f"{at}.cross_attention.value"], key_value[:, 2:])


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name, value in before.items() if not torch.equal(after[name], value)}


def test_editing_the_middle_of_a_decoder_block_changes_its_query_and_no_key(translator):
    model = translator()
    before = recorded(model)
    after = changed(before, recorded(model, {"decoder.blocks.0.middle": lambda x: x.flip(-1)}))
    assert "decoder.blocks.0.cross_attention.query" in after
    assert not any(name.startswith(("encoder.", "decoder.blocks.0.attention.")) for name in after)
    assert not any(name.endswith(("cross_attention.key", "cross_attention.value")) for name in after)


def test_editing_what_comes_out_of_the_encoder_changes_every_key_and_value_and_not_the_first_query(translator):
    model = translator()
    before = recorded(model)
    after = changed(before, recorded(model, {"encoder.final": lambda x: x.flip(-1)}))
    for layer in range(2):
        assert {f"decoder.blocks.{layer}.cross_attention.{one}" for one in ("key", "value", "heads")} <= after
    assert "decoder.blocks.0.cross_attention.query" not in after
    assert "decoder.blocks.1.cross_attention.query" in after


def test_what_is_inside_the_encoder_reaches_the_decoder_only_by_its_output(translator):
    model = translator()
    kept = recorded(model)["encoder.final"]
    edits = {"encoder.blocks.1.output": torch.zeros_like, "encoder.final": lambda _: kept}
    before, after = recorded(model), recorded(model, edits)
    assert not any(name.startswith("decoder.") or name == "logits" for name in changed(before, after))


def test_cross_attention_knows_no_distance_between_the_two_texts(translator):
    """Rotation turns self-attention alone: a target moved along its positions asks the source the same questions."""
    model = translator(positions="rotary", qk_norm=True)
    memory = model.project_kv(model.encode(ids(1, 6)))
    target = ids(1, 4, seed=1)
    moved = model.hidden(target, memory, positions_BT=torch.arange(9, 13)[None])
    torch.testing.assert_close(moved, model.hidden(target, memory), rtol=0, atol=1e-5)


# Tables.


def test_three_way_tying_is_one_table_that_learns_at_all_three_places(translator):
    """Section 3.4: the two embedding layers and the pre-softmax transformation share one matrix."""
    with torch.enable_grad():
        model = translator()
        assert isinstance(model.output, TiedOutput)
        model(torch.tensor([[3, 3]]), torch.tensor([[4, 4]]))[..., 5].sum().backward()
    table = model.embedding.weight.grad
    assert (table[[3, 4, 5]].abs().sum(dim=1) > 0).all()
    others = [row for row in range(V) if row not in (3, 4, 5)]
    assert (table[others] == 0).all()
    twin = copy.deepcopy(model)
    twin.embedding.weight.zero_()
    assert (twin(ids(1, 3), ids(1, 3)) == 0).all()
    assert not (model(ids(1, 3), ids(1, 3)) == 0).any()


def test_a_source_vocabulary_of_its_own_has_a_table_of_its_own(translator):
    with torch.enable_grad():
        model = translator(source_vocab_size=40)
        model(torch.tensor([[39, 7]]), torch.tensor([[4, 4]]))[..., 5].sum().backward()
    assert (model.source_embedding.weight.grad.abs().sum(dim=1) > 0).nonzero().flatten().tolist() == [7, 39]
    assert (model.embedding.weight.grad.abs().sum(dim=1) > 0).nonzero().flatten().tolist() == [4, 5]
    assert model(torch.tensor([[39]]), ids(1, 2)).shape == (1, 2, V)


@pytest.mark.parametrize("tied", [True, False])
def test_an_output_bias_is_added_to_the_logits(translator, tied):
    model = translator(output_bias=True, tied_output=tied)
    with_bias = model(ids(1, 3), ids(1, 3))
    bias = model.output.bias.clone()
    assert bias.abs().min() > 0
    model.output.bias.zero_()
    torch.testing.assert_close(with_bias, model(ids(1, 3), ids(1, 3)) + bias)
    assert translator(tied_output=tied).output.bias is None


# Training.


def test_dropout_stands_on_both_embeddings_and_on_every_sub_layer_only_in_training(translator):
    """Section 5.4, at all five places: sub-layers of both stacks, and the sums of embeddings and positions."""
    model = translator(dropout=0.5, positions="sinusoidal")
    still, again = recorded(model), recorded(model)
    assert not changed(still, again)
    torch.manual_seed(0)
    values = recorded(model) if model.train() else {}
    for stack in ("encoder", "decoder"):
        dropped = values[f"{stack}.embeddings"] == 0
        assert 0.3 < dropped.float().mean() < 0.7
        torch.testing.assert_close(values[f"{stack}.embeddings"][~dropped], 2 * still[f"{stack}.embeddings"][~dropped])
        block = f"{stack}.blocks.0"
        stations = ["attention.output", "middle", "feedforward.output", "output"]
        if stack == "decoder":
            stations[2:2] = ["cross_attention.output", "crossed"]
        before = values[f"{stack}.embeddings"]
        for sub_layer, after in zip(stations[0::2], stations[1::2], strict=True):
            added = values[f"{block}.{after}"] - before
            kept = added.abs() > 1e-6
            assert 0.3 < kept.float().mean() < 0.7
            torch.testing.assert_close(added[kept], 2 * values[f"{block}.{sub_layer}"][kept], rtol=1e-3, atol=1e-4)
            before = values[f"{block}.{after}"]


@pytest.mark.parametrize("place", ["encoder", "decoder"])
def test_attention_dropout_works_in_training_in_both_stacks(translator, place):
    model = translator(attention_dropout=0.5)

    def heads() -> Tensor:
        name = "encoder.blocks.0.attention.heads" if place == "encoder" else "decoder.blocks.0.cross_attention.heads"
        taps = Taps(name)
        memory = model.project_kv(torch.linspace(-1, 1, 96).view(1, 6, 16))
        model.encode(ids(1, 6), taps=taps)
        model.hidden(ids(1, 6), memory, taps=taps)
        return taps.values[name]

    assert torch.equal(heads(), heads())
    model.train()
    assert not torch.equal(heads(), heads())


# Bad input.

KINDS = ("none", "learned", "sinusoidal", "rotary")


@pytest.mark.parametrize("positions", KINDS)
def test_texts_longer_than_the_context_and_positions_outside_it_are_refused_for_every_kind(translator, positions):
    model = translator(positions=positions)
    with pytest.raises(ValueError, match="25 source tokens do not fit a context of 24"):
        model(ids(1, 25), ids(1, 2))
    with pytest.raises(ValueError, match="25 tokens do not fit a context of 24"):
        model(ids(1, 2), ids(1, 25))
    memory = model.project_kv(model.encode(ids(1, 24)))
    with pytest.raises(ValueError, match="position 24 does not exist"):
        model.hidden(ids(1, 2), memory, positions_BT=torch.tensor([[3, 24]]))
    with pytest.raises(ValueError, match="position -1 does not exist"):
        model.hidden(ids(1, 2), memory, positions_BT=torch.tensor([[-1, 4]]))
    cache = model.new_cache(1, capacity=3)
    with pytest.raises(ValueError, match="row 0 holds 0 tokens; 4 more exceed the cache's capacity of 3"):
        model.hidden(ids(1, 4), memory, cache=cache.step())
    with pytest.raises(ValueError, match="a cache determines"):
        model.hidden(ids(1, 2), memory, cache=cache.step(), positions_BT=torch.tensor([[0, 1]]))


def test_a_source_row_without_a_token_is_refused(translator):
    model, lengths = translator(), torch.tensor([3, 0])
    for read in (model.encode, lambda source, **more: model(source, ids(2, 2), **more)):
        with pytest.raises(ValueError, match="a source row has no token: even an empty text has its EOS token"):
            read(ids(2, 3), source_lengths_B=lengths)
    with pytest.raises(ValueError, match="a source row has no token"):
        model.project_kv(torch.zeros(2, 3, 16), source_lengths_B=lengths)


def test_one_token_each_and_a_context_of_one(translator):
    assert translator(context=1)(ids(3, 1), ids(3, 1)).shape == (3, 1, V)
