"""Nearest contexts: the vectors compared are the model's own, and the nearest come first, beside a control."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mingyue.errors import SettingsError
from mingyue.inspection import capture, contexts
from mingyue.inspection.command import TrainingSample
from mingyue.inspection.contexts import contexts_view
from mingyue.words import Words

NAME = Words("the training text", "训练文本")


def inspected(subject, text: str, rows: list[str], source: str | None = None):
    """A model that reads a text, and a training text of these rows."""
    tokenizer = subject.source_tokenizer or subject.tokenizer
    end = [tokenizer.eos_id] if subject.of_pairs else []
    ids = [np.array([*tokenizer.encode(row), *end], dtype=np.int64) for row in rows]
    sample = TrainingSample(ids, 1234, NAME)
    return SimpleNamespace(
        subject=subject, reading=subject.read(text, source), training_sample=lambda tokens, seed, corpus=None: sample
    )


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


@pytest.mark.parametrize("layer", [0, 1, None])
@pytest.mark.parametrize("batch_tokens", [1, 4096])
def test_cosines_are_those_of_the_vectors_of_the_model(lively, monkeypatch, layer, batch_tokens):
    monkeypatch.setattr(contexts, "_BATCH_TOKENS", batch_tokens)
    subject = lively()
    rows = ["abcdefg", "xyz", "aabbcc", "qabc"]
    view = contexts_view(inspected(subject, "zabc", rows), layer=layer, position=2, top=100)
    tap = f"blocks.{1 if layer is None else layer}.output"
    query = capture(subject, subject.read("zabc"), tap).values[tap][2]
    expected = sorted(
        (
            cosine(query, capture(subject, subject.read(row), tap).values[tap][column])
            for row in rows
            for column in range(len(row))
        ),
        reverse=True,
    )
    assert view.n_positions == 20
    assert view.mean == pytest.approx(np.mean(expected), abs=1e-5)
    np.testing.assert_allclose(view.cosines_K, expected[: len(view.cosines_K)], atol=1e-5)


def test_the_same_context_is_nearest_and_equal_ones_are_listed_once(lively):
    subject = lively()
    view = contexts_view(inspected(subject, "abc", ["abc", "abc", "xyzw", "bbc"]), top=3)
    assert view.cosines_K[0] == pytest.approx(1.0, abs=1e-5)
    assert view.nearest[0].cells() == view.query.cells()
    assert len(set(view.nearest)) == 3
    assert view.query.cells()[contexts.BEFORE] == "c"


def test_random_pairs_are_a_control_drawn_with_the_seed(lively):
    subject = lively()
    rows = ["abcdefghijklmnopqrstuvwxyz"] * 3
    one, again, other = (contexts_view(inspected(subject, "abc", rows), seed=seed).random_P for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(one) == 39
    assert (np.abs(one) <= 1 + 1e-6).all()


def test_special_tokens_are_not_compared(lively):
    subject = lively(starts_with_bos=True)
    look = inspected(subject, "abc", ["abc"])
    rows = look.training_sample(0, 0).rows
    rows[0] = np.array([subject.tokenizer.bos_id, *rows[0], subject.tokenizer.eos_id])
    view = contexts_view(look)
    assert view.n_positions == 3
    assert view.cosines_K[0] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 4096])
def test_source_texts_are_compared_in_the_encoder_padded_or_not(lively_pairs, monkeypatch, batch_tokens):
    monkeypatch.setattr(contexts, "_BATCH_TOKENS", batch_tokens)
    subject = lively_pairs()
    view = contexts_view(inspected(subject, "q", ["xyz", "abcdefgh", "z"], "xyz"), top=50)
    assert view.position == 2, "the last before EOS"
    assert view.layer == 2
    assert view.nearest[0].cells() == view.query.cells()
    assert view.cosines_K[0] == pytest.approx(1.0, abs=1e-5)
    tap = "encoder.blocks.2.output"
    query = capture(subject, subject.read("q", "xyz"), tap).values[tap][2]
    alone = capture(subject, subject.read("q", "z"), tap).values[tap][0]
    found = dict(zip(view.nearest, view.cosines_K, strict=True))
    (padded,) = (value for one, value in found.items() if one.before == () and one.token == "z")
    assert padded == pytest.approx(cosine(query, alone), abs=1e-5)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tables_pictures_and_json(lively, language):
    subject = lively()
    view = contexts_view(inspected(subject, "abc", ["abcdefg", "hijklm"]), top=5)
    (table,) = view.tables(language)
    assert [row[0] for row in table.rows] == ["", "1", "2", "3", "4", "5"]
    assert "1,234" in table.note
    assert f"{np.median(view.random_P):.2f}" in table.note
    grid, bars = view.charts(language)
    assert len(grid.cells) == 6
    assert grid.cells[1][contexts.BEFORE].value == pytest.approx(view.cosines_K[0])
    assert len(bars.rows) == 5
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert len(found["nearest"][0]) == contexts.BEFORE + 1 + contexts.AFTER


@pytest.mark.parametrize(
    ("given", "says"), [({"layer": 2}, "there is no layer 2"), ({"position": 3}, "there is no position 3")]
)
def test_what_is_not_there_is_refused(lively, given, says):
    with pytest.raises(SettingsError, match=says):
        contexts_view(inspected(lively(), "abc", ["abc"]), **given)


def test_progress_ends_at_all_tokens(lively, monkeypatch):
    monkeypatch.setattr(contexts, "_BATCH_TOKENS", 4)
    done = []
    contexts_view(inspected(lively(), "abc", ["abcdef", "gh", "ijk"]), progress=lambda *count: done.append(count))
    assert done == [(6, 11), (11, 11)]
