"""The trace: what it says of shapes, weights, arithmetic, lines and loss is what the model has and does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mingyue
from mingyue.errors import GenerationError
from mingyue.inspection import trace
from mingyue.inspection.recording import Recorder
from mingyue.inspection.trace import trace_view
from mingyue.models import sizes
from mingyue.nn import Taps
from mingyue.scoring import score

KINDS = {
    "modern": {"qk_norm": True},
    "gpt2": {
        "positions": "learned", "norm": "layer", "feedforward": "gelu-tanh", "bias_qkv": True, "bias_output": True,
        "bias_feedforward": True, "n_kv_heads": 4,
    },
    "the paper's parts": {
        "positions": "sinusoidal", "norm": "layer", "norm_placement": "post", "final_norm": False,
        "feedforward": "relu", "embedding_scale": True, "bias_feedforward": True,
    },
    "speed": {"feedforward": "relu2", "tied_output": False, "norm": "layer"},
    "no positions, silu": {"positions": "none", "feedforward": "silu", "norm_placement": "post"},
    "windowed": {"window": 4, "positions": "rotary"},
}  # fmt: skip
every_kind = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
TEXT, SOURCE = "abcabcxyz", "lmnopq"


def text_trace(lively, changes):
    subject = lively(**changes)
    return subject, trace_view(subject, subject.read(TEXT))


def pair_trace(lively_pairs, changes):
    changes = {name: value for name, value in changes.items() if name != "window"}
    subject = lively_pairs(**changes)
    return subject, trace_view(subject, subject.read(TEXT, SOURCE))


def size_of(symbol: str, legend: dict[str, int]) -> int:
    """H+2G, (H+2G)·D, 2F …"""
    product = 1
    for factor in symbol.split("·"):
        total = 0
        for term in factor.strip("()").split("+"):
            letter = term.lstrip("0123456789")
            total += int(term[: len(term) - len(letter)] or 1) * legend[letter]
        product *= total
    return product


@every_kind
def test_symbols_are_the_real_shapes(lively, lively_pairs, changes):
    for _, view in (text_trace(lively, changes), pair_trace(lively_pairs, changes)):
        assert len({view.legend[letter] for letter in "TMHDFV"}) == 6  # so that a wrong letter shows
        for step in view.steps:
            assert tuple(size_of(symbol, view.legend) for symbol in step.symbols) == step.shape, step


@every_kind
def test_parameters_and_arithmetic_by_part_are_those_of_sizes(lively, lively_pairs, changes):
    subject, view = text_trace(lively, changes)
    found = sizes(subject.module.config)
    assert view.parameters == found.parameters == sum(weight.numel() for weight in subject.module.parameters())
    assert {part: pair[0] for part, pair in view.by_part().items() if pair[0]} == {
        part: count for part, count in found.parts().items() if count
    }
    assert view.flops == len(TEXT) * found.forward_flops(len(TEXT), dense=True)

    subject, view = pair_trace(lively_pairs, changes)
    found = sizes(subject.module.config)
    assert view.parameters == found.parameters == sum(weight.numel() for weight in subject.module.parameters())
    assert {part: pair[0] for part, pair in view.by_part().items() if pair[0]} == {
        part: count for part, count in found.parts().items() if count
    }
    n_source, n_target = len(SOURCE) + 1, len(TEXT) + 1
    assert view.flops == pytest.approx(n_target * found.forward_flops(n_source, n_target, dense=True), rel=1e-12)


def test_two_vocabularies_and_an_output_bias_are_counted(lively_pairs, letters):
    subject = lively_pairs(source_vocab_size=letters.vocab_size, output_bias=True, tied_output=True)
    view = trace_view(subject, subject.read(TEXT, SOURCE))
    assert view.parameters == sizes(subject.module.config).parameters
    assert view.by_part()["source embedding"][0] == letters.vocab_size * 16
    lookups = [step for step in view.steps if step.formula == "x = E[ids]"]
    assert [step.symbols for step in lookups] == [("B", "S", "M"), ("B", "T", "M")]


def test_in_a_window_the_products_are_those_of_the_kernel(lively):
    subject = lively(window=24, context=200)
    text = "abcdefghij" * 17
    view = trace_view(subject, subject.read(text))
    assert view.flops == pytest.approx(len(text) * sizes(subject.module.config).forward_flops(len(text), dense=True))


@every_kind
def test_the_loss_is_that_of_score(lively, changes):
    subject, view = text_trace(lively, changes)
    expected = score(subject.module, subject.tokenizer, TEXT, starts_with_bos=False).nats_per_token
    assert view.loss == pytest.approx(expected, abs=1e-5)
    assert view.steps[-1].symbols == view.steps[-1].shape == ()
    assert [step.part for step in view.steps[-4:]] == ["loss"] * 4
    assert view.steps[-2].source == "mingyue/training/loss.py"


def test_the_loss_of_a_pair_is_that_of_its_target(lively_pairs):
    subject = lively_pairs()
    reading = subject.read(TEXT, SOURCE)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(subject.logits(reading), reading.targets_T)
    assert trace_view(subject, reading).loss == pytest.approx(float(expected), abs=1e-5)


def test_the_eight_shapes_are_among_the_steps_of_every_attention(lively, lively_pairs):
    _, view = text_trace(lively, KINDS["gpt2"])
    first = [step for step in view.steps if step.module.startswith("blocks.0.") and step.flow]
    assert sorted({step.flow for step in first}) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step.flow for step in first] == sorted(step.flow for step in first)
    shapes = {step.flow: step.shape for step in first}
    b, t, h, d, m = 1, len(TEXT), 4, 6, 16
    assert shapes[1] == shapes[8] == (b, t, m)
    assert shapes[2] == (b, t, 3 * h * d)
    assert shapes[3] == (b, t, 3 * h, d)
    assert shapes[4] == shapes[5] == (b, h, t, d)
    assert shapes[6] == (b, t, h, d)
    assert shapes[7] == (b, t, h * d)
    assert [step.shape for step in first if step.flow == 5] == [(b, h, t, t)] * 5 + [(b, h, t, d)]
    moves = [step.formula.rpartition("[")[2] for step in first if step.flow in (3, 4, 6, 7)]
    assert moves == ["view]", "view]", "view]", "view]", "view]", "copy]"]
    _, pairs = pair_trace(lively_pairs, KINDS["the paper's parts"])
    crossing = {step.flow for step in pairs.steps if step.module.startswith("decoder.blocks.1.cross_attention")}
    assert crossing == {0, 4, 5, 6, 7, 8}


@every_kind
def test_files_and_lines_are_the_ones_that_do_it(lively, changes):
    _, view = text_trace(lively, changes)
    root = Path(mingyue.__file__).parents[1]
    words = {
        "[Q; K; V]": "self.qkv(",
        "q·kᵀ / √D": "math.sqrt(",
        "weights·v": "@ value_BHSD",
        "heads·Wᵀ": "self.output(joined_BTM)",
        "exp(s) / Σ exp(s)": ".softmax(",
        "[copy]": ".flatten(2)",
        "−Σ log P": "loss",
    }
    seen = set()
    for step in view.steps:
        line = (root / step.source).read_text(encoding="utf-8").splitlines()[step.line - 1]
        for start, code in words.items():
            if step.formula.startswith(start):
                seen.add(start)
                assert code in line or step.formula == "−Σ log P", (step, line)
    assert seen == set(words)


@every_kind
def test_every_tap_of_the_pass_but_the_second_name_of_a_value_is_named(lively, lively_pairs, changes):
    for subject, view in (text_trace(lively, changes), pair_trace(lively_pairs, changes)):
        taps = Taps("*")
        with torch.no_grad():
            subject.logits(subject.read(TEXT, SOURCE if subject.of_pairs else None), taps)
        named = {step.tap: step for step in view.steps if step.tap}
        second = {name for name in taps.values if name.endswith("final") and not subject.module.config.final_norm}
        assert set(named) >= set(taps.values) - second - {"embeddings"}
        for name, step in named.items():
            value = taps.values[name]
            assert step.shape == tuple(value.shape)
            finite = value[value.isfinite()].double()
            assert step.size == pytest.approx(float(finite.square().mean().sqrt()), rel=1e-4)


def test_recording_leaves_nothing_behind_and_changes_nothing(lively):
    subject = lively()
    reading = subject.read(TEXT)
    with torch.no_grad():
        before = subject.logits(reading)
        trace_view(subject, reading)
        recorder = Recorder(subject.module)
        after = subject.logits(reading)
    assert torch.equal(before, after)
    assert recorder.operations == []


def test_a_text_of_one_token_has_no_loss(lively):
    view = trace_view(lively(), lively().read("a"))
    assert view.loss is None
    assert view.steps[-1].tap == "logits"
    view.tables("en")


def test_a_text_whose_weights_would_not_fit_is_refused_with_both_numbers(lively, monkeypatch):
    monkeypatch.setattr(trace, "MOST_CELLS", 4 * 9**2 - 1)
    subject = lively()
    with pytest.raises(GenerationError, match=r"9 tokens have 324 attention weights per layer.*at most 323") as error:
        trace_view(subject, subject.read(TEXT))
    assert "at most 8 tokens" in str(error.value)
    assert trace_view(subject, subject.read(TEXT[:8])).loss is not None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tables_charts_and_dict(lively, lively_pairs, language):
    for subject, view in (text_trace(lively, {"n_layers": 4}), pair_trace(lively_pairs, {})):
        costs, lines, sums = view.tables(language)
        again = [row for row in costs.rows if "–" in row[0]]
        config = subject.module.config
        # Later blocks of each stack, and of pairs the memory that each later decoder block keeps.
        folded = config.n_encoder_layers - 1 + 2 * (config.n_layers - 1) if subject.of_pairs else config.n_layers - 1
        assert len(again) == folded
        assert costs.rows[-1][0] == str(len(view.steps))
        assert sum(int(row[5].replace(",", "") or 0) for row in costs.rows) == view.parameters
        assert sum(int(row[6].replace(",", "") or 0) for row in costs.rows) == view.flops
        assert sums.rows[-1][1:] == [f"{view.parameters:,}", f"{view.flops:,}"]
        assert all(":" in row[3] for row in lines.rows)
        assert len(view.charts(language)) == 2
        found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
        assert len(found["steps"]) == len(view.steps)


def test_a_picture_shows_the_steps_with_their_formulas(lively, tmp_path):
    """V9: an image has no tables below its charts."""
    _, view = text_trace(lively, KINDS["gpt2"])
    for language in ("en", "zh"):
        view.save(tmp_path / "trace.svg", language)
        drawn = (tmp_path / "trace.svg").read_text("utf-8")
        for step in view.steps[:20]:
            assert step.name.of(language) in drawn
        assert "q·kᵀ / √D" in drawn and "(B, H, T, T)" in drawn and f"{view.steps[1].parameters:,}" in drawn
    assert [type(chart).__name__ for chart in view.charts()] == ["BarChart", "BarChart"], "a page has the tables"
