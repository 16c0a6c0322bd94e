"""Direct logit attribution: the parts add up to the logit, and each is what that part wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mingyue.config import ModelSettings
from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import Subject, logits
from mingyue.inspection.interventions import edited_logits, switch_off
from mingyue.inspection.logits import TOLERANCE, logits_view
from mingyue.inspection.parts import PART_NAMES
from mingyue.models import resolve_config, resolve_pair_config
from mingyue.nn import Taps

KINDS = [
    {},
    {"norm": "layer"},
    {"final_norm": False},
    {
        "norm_placement": "post",
        "norm": "layer",
        "positions": "sinusoidal",
        "final_norm": False,
        "embedding_scale": True,
    },
    {"norm_placement": "post"},
    {"tied_output": False, "positions": "learned", "norm": "layer"},
    {"bias_qkv": True, "bias_output": True, "bias_feedforward": True, "feedforward": "gelu", "norm": "layer"},
    {"bias_output": True, "bias_feedforward": True, "norm_placement": "post", "norm": "layer"},
    {"qk_norm": True, "window": 3, "n_kv_heads": 1},
    {"positions": "none"},
]
OF_PAIRS = [
    {**changes, "output_bias": number % 2 == 1} for number, changes in enumerate(KINDS) if "window" not in changes
]


def adds_up(view: logits.LogitsView, subject: Subject, reading, position: int) -> None:
    with torch.no_grad():
        logits_V = subject.logits(reading)[position].double()
    expected = float(logits_V[view.token_id]) - (0.0 if view.instead_id is None else float(logits_V[view.instead_id]))
    assert abs(view.total - expected) < TOLERANCE
    assert abs(view.logit - expected) < TOLERANCE


@pytest.mark.parametrize("changes", KINDS)
def test_the_parts_add_up_to_the_logit(lively, changes):
    subject = lively(**changes)
    reading = subject.read("abcabcxyz")
    for position in (0, 4, 8):
        adds_up(logits_view(subject, reading, position=position), subject, reading, position)
        adds_up(logits_view(subject, reading, position=position, token="q", instead="a"), subject, reading, position)


@pytest.mark.parametrize("changes", OF_PAIRS)
def test_the_parts_of_a_decoder_with_cross_attention_add_up(lively_pairs, changes):
    subject = lively_pairs(**changes)
    reading = subject.read("abcabc", "xyzz")
    for position in (0, 6):
        view = logits_view(subject, reading, position=position, instead="b")
        adds_up(view, subject, reading, position)
        assert set(view.parts.heads_LH) == {"decoder", "cross"}
        assert view.parts.heads_LH["cross"].shape == (2, 4)


@pytest.mark.parametrize("preset", ["modern", "speed", "gpt2", "llama", "paper-base", "paper-big", "translate-small"])
def test_the_parts_of_every_preset_add_up(letters, lively, lively_pairs, preset):
    settings = ModelSettings(preset=preset, d_model=32, n_layers=2, n_heads=4)
    sizes = {"vocab_size": letters.vocab_size, "context": 16}
    if preset.startswith(("paper", "translate")):
        config = resolve_pair_config(settings, source_vocab_size=None, **sizes)
        subject = lively_pairs(**config.model_dump())
        reading = subject.read("hello", "world")
    else:
        config = resolve_config(settings, depth=2, **sizes)
        subject = lively(**config.model_dump())
        reading = subject.read("hello")
    adds_up(logits_view(subject, reading), subject, reading, len(reading.pieces) - 1)


@pytest.mark.parametrize(
    "changes", [{"n_layers": 1, "final_norm": False}, {"n_layers": 1, "final_norm": False, "n_kv_heads": 4}]
)
def test_a_head_is_credited_with_what_the_logit_loses_without_it(lively, changes):
    """Without a final norm the direct path of the last attention is exact when the feed-forward is silent."""
    subject = lively(**changes)
    with torch.no_grad():
        subject.module.every_block()[0].feedforward.output.weight.zero_()
    reading = subject.read("abcabc")
    view = logits_view(subject, reading)
    for head in range(4):
        without = edited_logits(subject, reading, switch_off(0, head))[-1, view.token_id]
        assert view.logit - float(without) == pytest.approx(float(view.parts.heads_LH["self"][0, head]), abs=1e-4)


def test_the_answer_of_a_known_model_is_credited_to_its_induction_head(known):
    view = logits_view(known, known.read("abcdefab"), instead="b")
    assert view.token == "c"
    heads_LH = view.parts.heads_LH["self"]
    assert divmod(int(heads_LH.argmax()), 4) == (1, 0)
    assert float(heads_LH[1, 0]) == pytest.approx(view.logit, abs=1e-3)


@pytest.mark.parametrize("position", [None, 2])
def test_by_default_the_likeliest_next_token_of_the_last_position_is_credited(lively, position):
    subject = lively(starts_with_bos=True)
    reading = subject.read("hello")
    view = logits_view(subject, reading, position=position)
    assert view.position == (5 if position is None else position)
    assert view.piece == reading.pieces[view.position]
    assert view.token_id == int(subject.logits(reading)[view.position].argmax())
    with torch.no_grad():
        probability = subject.logits(reading)[view.position].softmax(-1).max()
    assert view.probability == pytest.approx(float(probability), abs=1e-6)


def test_a_token_can_be_named_by_its_label(lively):
    subject = lively()
    reading = subject.read("ab")
    eos = subject.tokenizer.eos_id
    assert logits_view(subject, reading, token="<eos>").token_id == eos
    assert logits_view(subject, reading, token=eos, instead="a").token == "<eos>"


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"position": 5}, SettingsError, "there is no position 5: the text has 5 tokens"),
        ({"token": "ab"}, GenerationError, "'ab' is 2 tokens"),
        ({"instead": 99999}, GenerationError, "there is no token 99999"),
    ],
)
def test_what_is_not_there_is_refused(lively, given, error, says):
    subject = lively()
    with pytest.raises(error, match=says):
        logits_view(subject, subject.read("hello"), **given)


def test_a_sum_that_is_not_the_logit_is_an_error(lively, monkeypatch):
    subject = lively()
    reading = subject.read("hello")
    monkeypatch.setattr(logits, "TOLERANCE", -1.0)
    with pytest.raises(GenerationError, match="add up to"):
        logits_view(subject, reading)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_ends_at_the_logit_and_json_has_every_part(lively, language):
    subject = lively(positions="learned", n_layers=3)
    view = logits_view(subject, subject.read("hello"), instead="a")
    whole, heads = view.tables(language)
    assert len(whole.rows) == 2 + 3 * 2 + 1 + 1
    assert float(whole.rows[-1][2]) == pytest.approx(float(whole.rows[-2][2]), abs=2e-3)
    assert len(heads.rows) == 12
    assert PART_NAMES["self"].of(language) == heads.rows[0][0]
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    parts = np.sum(found["heads_LH"]["self"]) + np.sum(found["feedforward_L"])
    parts += found["token_embedding"] + found["position_vector"] + found["biases"]
    assert parts == pytest.approx(found["logit"], abs=1e-4)


def test_taps_are_only_read(lively):
    subject = lively()
    reading = subject.read("hello")
    taps = Taps("*")
    with torch.no_grad():
        before = subject.logits(reading, taps)
        logits_view(subject, reading)
        assert torch.equal(before, subject.logits(reading, Taps("*")))
