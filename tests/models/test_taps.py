"""Looking in: every documented place is there, in its shape, and looking changes nothing."""

from __future__ import annotations

import re

import pytest
import torch

import mingyue.nn.taps
from mingyue.config import ModelSettings
from mingyue.models import build_model, resolve_config
from mingyue.nn import Taps

B, T, V, LAYERS, M = 2, 7, 11, 3, 96
PRESETS = ("modern", "speed", "gpt2", "llama")
documented_names = re.findall(
    r"^    (?!decoder\.)([a-z.i]+) {2,}(?:x_)?[A-Z]{3,4}\b", mingyue.nn.taps.__doc__, flags=re.MULTILINE
)


def preset(name: str, **changes):
    settings = ModelSettings(preset=name, d_model=M, n_heads=4, d_head=10, d_ff=50, **changes)
    config = resolve_config(settings, vocab_size=V, depth=LAYERS, context=9)
    return build_model(config, seed=1).eval()


def ids() -> torch.Tensor:
    return torch.arange(B * T).view(B, T) % V


def shapes(groups: int, n_keys: int = T) -> dict[str, tuple[int, ...]]:
    places = {"embeddings": (B, T, M), "final": (B, T, M), "logits": (B, T, V)}
    for i in range(LAYERS):
        places |= {
            f"blocks.{i}.attention.query": (B, 4, T, 10),
            f"blocks.{i}.attention.key": (B, groups, n_keys, 10),
            f"blocks.{i}.attention.value": (B, groups, n_keys, 10),
            f"blocks.{i}.attention.scores": (B, 4, T, n_keys),
            f"blocks.{i}.attention.weights": (B, 4, T, n_keys),
            f"blocks.{i}.attention.heads": (B, 4, T, 10),
            f"blocks.{i}.attention.output": (B, T, M),
            f"blocks.{i}.middle": (B, T, M),
            f"blocks.{i}.feedforward.inner": (B, T, 50),
            f"blocks.{i}.feedforward.output": (B, T, M),
            f"blocks.{i}.output": (B, T, M),
        }
    return places


@pytest.mark.parametrize("name", PRESETS)
def test_every_documented_place_exists_in_its_documented_shape(name):
    model, taps = preset(name), Taps("*")
    expected = model(ids())
    torch.testing.assert_close(model(ids(), taps=taps), expected, rtol=0, atol=1e-6)
    assert {place: tuple(value.shape) for place, value in taps.values.items()} == shapes(model.config.n_kv_heads)
    assert {re.sub(r"\.\d+\.", ".i.", place) for place in taps.values} == set(documented_names)
    torch.testing.assert_close(taps.values["logits"], expected, rtol=0, atol=1e-6)


def test_with_a_cache_keys_and_values_are_all_that_the_row_holds():
    model, taps = preset("modern"), Taps("*")
    cache = model.new_cache(B)
    model(ids()[:, :2], cache=cache.step())
    model(ids(), cache=cache.step(), taps=taps)
    assert {place: tuple(value.shape) for place, value in taps.values.items()} == shapes(4, n_keys=9)


def test_recorded_keys_do_not_change_when_the_row_gets_another_text():
    model, taps = preset("modern"), Taps("blocks.*.attention.key")
    cache = model.new_cache(B)
    model(ids(), cache=cache.step(), taps=taps)
    before = taps.values["blocks.1.attention.key"].clone()
    cache.clear(0)
    cache.clear(1)
    model(ids().flip(0), cache=cache.step())
    assert torch.equal(taps.values["blocks.1.attention.key"], before)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("blocks.*.output", LAYERS),  # not blocks.i.attention.output: a star never crosses a dot
        ("blocks.*.*.output", 2 * LAYERS),
        ("blocks.1.attention.*", 7),
        ("blocks.[02].middle", 2),
        ("logits", 1),
        ("*", 3 + 11 * LAYERS),
        ("logit", 0),
        ("blocks.7.output", 0),
        ("blocks.*", 0),
        ("", 0),
    ],
)
def test_patterns_name_places_and_an_unknown_one_records_nothing(pattern, count):
    model, taps = preset("modern"), Taps(pattern)
    logits = model(ids(), taps=taps)
    assert len(taps.values) == count
    torch.testing.assert_close(logits, model(ids()), rtol=0, atol=1e-6)


def test_several_patterns_and_no_pattern():
    model, taps = preset("gpt2"), Taps(["embeddings", "blocks.0.*"])
    model(ids(), taps=taps)
    assert set(taps.values) == {"embeddings", "blocks.0.middle", "blocks.0.output"}
    assert Taps().values == {}


def test_a_run_without_taps_calls_nothing_and_one_that_asks_for_little_stays_fused(monkeypatch):
    model = preset("modern")

    def fail(*_args, **_more):
        raise AssertionError("this run did not ask for it")

    monkeypatch.setattr("mingyue.nn.attention.explicit_attention", fail)
    model(ids(), taps=Taps(["blocks.*.attention.heads", "blocks.*.attention.query"]))
    with pytest.raises(AssertionError, match="did not ask"):
        model(ids(), taps=Taps("blocks.2.attention.scores"))
    monkeypatch.setattr(Taps, "__call__", fail)
    monkeypatch.setattr(Taps, "wants", fail)
    monkeypatch.setattr(Taps, "within", fail)
    model(ids())


@pytest.mark.parametrize("name", PRESETS)
def test_an_edit_takes_the_place_of_the_value_for_all_that_follows(name):
    model = preset(name)
    for layer in range(LAYERS):  # a head can matter only if its block writes something
        torch.nn.init.normal_(model.blocks[layer].attention.output.weight)
    taps = Taps("blocks.*.output", edits={"blocks.1.output": torch.zeros_like})
    logits = model(ids(), taps=taps)
    assert (taps.values["blocks.1.output"] == 0).all()
    assert not (taps.values["blocks.0.output"] == 0).any()
    assert not torch.allclose(logits, model(ids()))

    def without_head_2(heads: torch.Tensor) -> torch.Tensor:
        heads = heads.clone()
        heads[:, 2] = 0
        return heads

    ablated = model(ids(), taps=Taps(edits={"blocks.*.attention.heads": without_head_2}))
    silent = preset(name)
    silent.load_state_dict(model.state_dict())
    for block in silent.blocks:
        block.attention.output.weight[:, 20:30] = 0
    torch.testing.assert_close(ablated, silent(ids()), rtol=0, atol=1e-5)


def test_scores_can_be_edited_before_the_mask_and_weights_after_it():
    model = preset("modern")
    taps = Taps("blocks.0.attention.weights", edits={"blocks.0.attention.scores": torch.zeros_like})
    model(ids(), taps=taps)
    uniform = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(taps.values["blocks.0.attention.weights"][0, 0], uniform)
    taps = Taps("blocks.0.attention.heads", edits={"blocks.0.attention.weights": torch.zeros_like})
    model(ids(), taps=taps)
    assert (taps.values["blocks.0.attention.heads"] == 0).all()


def test_an_edit_that_changes_the_shape_is_refused_by_name():
    with pytest.raises(ValueError, match=r"edit of blocks.0.middle turned \(2, 7, 96\) into \(2, 7, 1\)"):
        preset("modern")(ids(), taps=Taps(edits={"blocks.0.middle": lambda x: x[..., :1]}))


def test_gradients_flow_to_a_recorded_place():
    with torch.enable_grad():
        taps = Taps(["embeddings", "blocks.0.attention.weights"])
        loss = preset("llama")(ids(), taps=taps).square().sum()
        for value in taps.values.values():
            (gradient,) = torch.autograd.grad(loss, value, retain_graph=True)
            assert gradient.isfinite().all()
            assert gradient.abs().sum() > 0
