"""Marian there and EncoderDecoder here: the same logits for the same weights, both ways, and nothing guessed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mingyue.config import EncoderDecoderConfig
from mingyue.errors import InteropError
from mingyue.interop import from_hf_state, from_marian, load_hf_folder, marian_config, to_marian
from mingyue.models import EncoderDecoder, build_model

PAD, START, EOS = 0, 1, 2
V, CONTEXT = 31, 20
BODY = {
    "vocab_size": V, "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip
THEIRS = {
    "gelu": {},
    "as Helsinki's: swish, scaled embeddings": {"activation_function": "swish", "scale_embedding": True},
    "relu, odd width of the sinusoids": {
        "activation_function": "relu", "d_model": 21, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
    },
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 27},
    "two vocabularies, untied": {
        "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 27, "tie_word_embeddings": False,
    },
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", THEIRS)
OURS = {
    "vocab_size": V, "context": CONTEXT, "d_model": 24, "n_layers": 2, "n_encoder_layers": 11, "n_heads": 4,
    "n_kv_heads": 4, "d_head": 6, "d_ff": 40, "positions": "sinusoidal", "sinusoid_layout": "halves",
    "feedforward": "relu", "norm": "layer", "norm_eps": 1e-5, "norm_placement": "post", "final_norm": False,
    "bias_qkv": True, "bias_output": True, "bias_feedforward": True, "output_bias": True, "embedding_scale": True,
}  # fmt: skip
LENGTHS = [9, 1, 6]


@pytest.fixture
def translator(stirred):
    def make(**changes) -> EncoderDecoder:
        return stirred(build_model(EncoderDecoderConfig(**{**OURS, **changes}), seed=1))

    return make


def exported(model: EncoderDecoder):
    return to_marian(model.config, model.state_dict(), pad_id=PAD, start_id=START, eos_id=EOS)


def texts(n_targets: int = 27) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(source, its lengths, its attention mask, target with the padding id in front, as Marian begins)."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor(LENGTHS)
    mask = torch.arange(max(LENGTHS)) < lengths[:, None]
    source = torch.randint(3, V, (3, max(LENGTHS)), generator=generator).masked_fill(~mask, PAD)
    target = torch.randint(3, n_targets, (3, 7), generator=generator)
    target[:, 0] = PAD
    return source, lengths, mask.long(), target


def load(config, state) -> EncoderDecoder:
    model = EncoderDecoder(config)
    model.load_state_dict(state)
    return model.eval()


@pytest.fixture
def marian(stirred):
    pytest.importorskip("transformers", reason="extra `hf` is not installed: transformers is the other side")
    from transformers import MarianConfig, MarianMTModel

    def make(kind: str) -> MarianMTModel:
        special = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": EOS}
        sizes = {**BODY, **THEIRS[kind]}
        sizes.setdefault("decoder_vocab_size", V)
        model = MarianMTModel(MarianConfig(**sizes, **special))
        fixed = {name: value.clone() for name, value in model.state_dict().items() if "embed_positions" in name}
        stirred(model)
        model.load_state_dict(fixed, strict=False)  # the sinusoids are parameters there, and stay what they are
        model.final_logits_bias.copy_(torch.linspace(-1, 1, model.final_logits_bias.shape[1]))
        return model

    return make


@every_kind
def test_their_random_model_gives_the_same_logits_here(marian, kind):
    """Issue 3: equal to 1e-5 with a tiny random Marian, sources padded, targets begun with the padding id."""
    theirs = marian(kind)
    source, lengths, mask, target = texts()
    expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    assert expected.std() > 0.5
    model = load(*from_marian(theirs.config.to_dict(), theirs.state_dict()))
    found = model(source, target, source_lengths_B=lengths)
    assert (found - expected).abs().max() < 1e-5
    memory = model.project_kv(model.encode(source, source_lengths_B=lengths), source_lengths_B=lengths)
    cache = model.new_cache(3)
    steps = [model.output(model.hidden(part, memory, cache=cache.step())) for part in target.split(1, dim=1)]
    assert (torch.cat(steps, dim=1) - expected).abs().max() < 1e-5


@every_kind
def test_a_folder_as_transformers_writes_it_is_read(marian, kind, tmp_path):
    import json

    from safetensors.torch import load_file

    theirs = marian(kind)
    theirs.save_pretrained(tmp_path)
    description = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    model = load(*from_marian(description, load_file(tmp_path / "model.safetensors")))
    source, lengths, mask, target = texts()
    expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    assert (model(source, target, source_lengths_B=lengths) - expected).abs().max() < 1e-5
    with pytest.raises(InteropError, match="whose SentencePiece tokenizers are not supported") as caught:
        load_hf_folder(tmp_path)
    assert "from_marian" in caught.value.advice


@every_kind
def test_a_model_that_went_through_ours_is_theirs_again(marian, kind):
    theirs = marian(kind)
    config, state = from_marian(theirs.config.to_dict(), theirs.state_dict())
    description, tensors = to_marian(config, state, pad_id=PAD, start_id=PAD, eos_id=EOS)
    before = theirs.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors.items())
    left_out = {name for name in before if name not in tensors}
    copies = {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    assert left_out <= copies | {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    original = theirs.config.to_dict()
    again = type(theirs.config).from_dict(description).to_dict()
    for name in {*BODY, *THEIRS[kind], "scale_embedding", "pad_token_id", "eos_token_id", "decoder_start_token_id"}:
        assert again[name] == original[name], name


OUR_KINDS = {
    "paper": {},
    "silu, two vocabularies": {"feedforward": "silu", "source_vocab_size": 37, "embedding_scale": False},
    "gelu, two vocabularies, untied": {"feedforward": "gelu", "source_vocab_size": 37, "tied_output": False},
    "tanh gelu": {"feedforward": "gelu-tanh", "dropout": 0.25, "attention_dropout": 0.125},
    "squared relu": {"feedforward": "relu2"},
}


@pytest.mark.parametrize("kind", OUR_KINDS)
def test_our_random_model_gives_the_same_logits_there(translator, kind, tmp_path):
    pytest.importorskip("transformers")
    import json

    from safetensors.torch import save_file
    from transformers import MarianMTModel

    model = translator(**OUR_KINDS[kind])
    description, tensors = exported(model)
    (tmp_path / "config.json").write_text(json.dumps(description), encoding="utf-8")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs, report = MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.decoder_start_token_id == START
    source, lengths, mask, target = texts()
    target[:, 0] = START
    expected = theirs.eval()(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    assert (model(source, target, source_lengths_B=lengths) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("kind", OUR_KINDS)
def test_every_weight_goes_out_and_comes_back_bit_for_bit(translator, kind):
    model = translator(**OUR_KINDS[kind])
    description, tensors = exported(model)
    config, state = from_marian(description, tensors)
    assert config == model.config
    assert marian_config(description) == model.config
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(w.numel() for w in model.parameters())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for tensor in tensors.values():  # a copy: what is done to it is not done to the model
        assert tensor.is_contiguous()
        tensor.zero_()
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_queries_keys_and_values_are_cut_where_they_end(translator):
    model = translator()
    _, tensors = exported(model)
    block = model.decoder.blocks[1]
    for theirs, ours, first in (
        ("self_attn.q_proj", block.attention.qkv, 0),
        ("self_attn.k_proj", block.attention.qkv, 24),
        ("self_attn.v_proj", block.attention.qkv, 48),
        ("encoder_attn.q_proj", block.cross_attention.query, 0),
        ("encoder_attn.k_proj", block.cross_attention.key_value, 0),
        ("encoder_attn.v_proj", block.cross_attention.key_value, 24),
    ):
        for kind in ("weight", "bias"):
            expected = ours.get_parameter(kind)[first : first + 24]
            assert torch.equal(tensors[f"model.decoder.layers.1.{theirs}.{kind}"], expected)
    tenth = model.encoder.blocks[10].attention.qkv.weight[24:48]
    assert torch.equal(tensors["model.encoder.layers.10.self_attn.k_proj.weight"], tenth)
    assert torch.equal(tensors["final_logits_bias"], model.output.bias[None])


def test_a_missing_an_unexpected_and_a_misshapen_tensor_are_named_with_their_shapes(translator):
    description, tensors = exported(translator(n_encoder_layers=1, n_layers=1))
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        without = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(InteropError) as missing:
            from_marian(description, without)
        assert missing.value.message == f"tensor {name} {shape} is missing"
        with pytest.raises(InteropError) as misshapen:
            from_marian(description, {**tensors, name: torch.ones(7, *tensor.shape)})
        assert misshapen.value.message == f"tensor {name} is {[7, *shape]}, the config asks for {shape}"
    with pytest.raises(InteropError, match=r"tensor model.extra \[2, 3\] is not part of a marian model"):
        from_marian(description, {**tensors, "model.extra": torch.ones(2, 3)})
    model = translator()
    with pytest.raises(InteropError, match=r"tensor extra \[1\] does not belong to a model of this config"):
        to_marian(model.config, {**model.state_dict(), "extra": torch.ones(1)}, pad_id=PAD, start_id=START, eos_id=EOS)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
)
def test_a_shared_table_may_be_stored_under_all_its_names_but_not_with_two_values(translator, name):
    description, tensors = exported(translator())
    table = tensors["model.shared.weight"]
    _, state = from_marian(description, {**tensors, name: table.clone()})
    assert torch.equal(state["embedding.weight"], table)
    with pytest.raises(InteropError, match=f"tensor {name} is not the embedding table"):
        from_marian(description, {**tensors, name: table + 1})


def test_a_stored_table_of_positions_must_be_the_sinusoids(translator):
    from mingyue.nn import sinusoid_table

    description, tensors = exported(translator())
    name = "model.encoder.embed_positions.weight"
    table = sinusoid_table(CONTEXT, 24, "halves")
    from_marian(description, {**tensors, name: table.bfloat16()})
    for wrong in (sinusoid_table(CONTEXT, 24), table[:-1], torch.zeros_like(table)):
        with pytest.raises(InteropError, match=f"tensor {name} .* is not the table of sinusoids"):
            from_marian(description, {**tensors, name: wrong})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": "rotary"}, "marian cannot express positions rotary: it has sinusoidal"),
        ({"sinusoid_layout": "interleaved"}, "marian cannot express sinusoid_layout interleaved: it has halves"),
        ({"norm_placement": "pre"}, "marian cannot express norm_placement pre: it has post"),
        ({"norm_eps": 1e-6}, "marian cannot express norm_eps 1e-06: it has 1e-05"),
        ({"final_norm": True}, "marian cannot express final_norm True: it has False"),
        ({"bias_qkv": False}, "marian cannot express bias_qkv False: it has True"),
        ({"output_bias": False}, "marian cannot express output_bias False: it has True"),
        ({"n_kv_heads": 2}, "marian cannot express n_kv_heads 2: it has 4"),
        ({"d_head": 8}, "marian cannot express d_head 8: it has 6"),
        ({"qk_norm": True}, "marian cannot express qk_norm True: it has False"),
        ({"feedforward": "swiglu"}, "marian cannot express feedforward swiglu: it knows silu, relu, gelu"),
        ({"d_model": 25}, "marian cannot express d_model 25 with n_heads 4"),
        ({"tied_output": False}, "marian cannot express one vocabulary"),
    ],
)
def test_a_config_that_marian_cannot_express_names_the_setting(translator, changes, words):
    with pytest.raises(InteropError) as caught:
        exported(translator(**changes))
    assert caught.value.message.startswith(words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bart"}, "model_type is 'bart', not 'marian'"),
        ({"d_model": None}, "config.json has no d_model"),
        ({"vocab_size": None}, "config.json describes no marian model"),
        (
            {"decoder_attention_heads": 2},
            "encoder_attention_heads is 4, decoder_attention_heads 2; stacks must",
        ),
        ({"decoder_ffn_dim": 41}, "encoder_ffn_dim is 40, decoder_ffn_dim 41; stacks must have"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'; known: swish"),
        ({"normalize_before": True}, "normalize_before is True; only False is supported"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm is True; only False"),
        ({"static_position_embeddings": False}, "static_position_embeddings is False; only True"),
        ({"tie_word_embeddings": False}, "one table for all three uses is supported, or one for each side"),
    ],
)
def test_a_config_of_theirs_that_is_not_understood_names_the_key(translator, changes, words):
    description, _ = exported(translator())
    with pytest.raises(InteropError, match=words):
        marian_config({**description, **changes})


def test_the_door_of_decoder_only_families_points_to_this_one(translator):
    description, tensors = exported(translator())
    with pytest.raises(InteropError, match="model_type is 'marian': an encoder-decoder model"):
        from_hf_state(description, tensors)
