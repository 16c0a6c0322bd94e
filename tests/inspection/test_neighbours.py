"""Neighbours are the nearest rows of the model's own tables."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import Subject
from mingyue.inspection.neighbours import neighbours_view
from mingyue.text import train_bpe


def expected(table, letters, letter, count):
    with torch.no_grad():
        row = table[letters.encode(letter)[0]]
        cosines = torch.cosine_similarity(table, row[None], dim=1)
    cosines[letters.encode(letter)[0]] = -2
    cosines[[0, 1, 2]] = -2  # marks
    cosines[3 + 128 : 3 + 256] = -2  # bytes that are no character alone
    return cosines.topk(count)


def test_a_tied_model_has_one_table_and_its_nearest_rows_are_found(lively, letters):
    subject = lively()
    view = neighbours_view(subject, "k", top=7)
    (nearest,) = view.nearest
    best = expected(subject.module.embedding.weight, letters, "k", 7)
    assert nearest.ids_K.tolist() == best.indices.tolist()
    np.testing.assert_allclose(nearest.cosines_K, best.values.numpy(), atol=1e-6)
    assert "tied" in view.tables("en")[0].title
    assert nearest.piece == "k"


def test_untied_models_have_two_tables(lively, letters):
    subject = lively(tied_output=False)
    view = neighbours_view(subject, "k", top=3)
    tables = (subject.module.embedding.weight, subject.module.output.weight)
    for nearest, table in zip(view.nearest, tables, strict=True):
        assert nearest.ids_K.tolist() == expected(table, letters, "k", 3).indices.tolist()
    assert view.nearest[0].ids_K.tolist() != view.nearest[1].ids_K.tolist()
    assert "input" in view.tables("en")[0].title
    assert "输出表" in view.tables("zh")[1].title


def test_what_spells_nothing_is_never_a_neighbour(lively, letters):
    view = neighbours_view(lively(), "k", top=10_000)
    ids = set(view.nearest[0].ids_K.tolist())
    assert len(ids) == view.nearest[0].candidates == letters.vocab_size - 3 - 128 - 1
    assert not ids & {letters.pad_id, letters.bos_id, letters.eos_id, letters.encode("k")[0]}


def test_tokens_that_training_never_met_are_no_neighbours(lively, letters):
    """Their rows are alike, so a word that is near one of them would have nothing but them around it."""
    near = neighbours_view(lively(), "k", top=3).nearest[0].ids_K.tolist()
    view = neighbours_view(replace(lively(), unseen=tuple(near[:2])), "k", top=3)
    assert view.nearest[0].ids_K.tolist()[0] == near[2]
    assert not set(near[:2]) & set(view.nearest[0].ids_K.tolist())
    assert "do not occur in the training text" in view.tables("en")[0].note


def test_rows_beyond_the_tokenizer_are_left_out(lively, letters):
    view = neighbours_view(lively(vocab_size=letters.vocab_size + 5), "k", top=10_000)
    assert max(view.nearest[0].ids_K.tolist()) < letters.vocab_size


def test_pairs_with_two_vocabularies_are_looked_up_where_the_word_is_one_token(lively_pairs, letters):
    subject = lively_pairs(source_vocab_size=letters.vocab_size)
    assert [nearest.table.en.split()[0] for nearest in neighbours_view(subject, "k").nearest] == ["source", "one"]
    words = train_bpe(["kkkk kkkk kkkk "] * 50, vocab_size=263)
    split = Subject(subject.module, words, letters)
    assert len(words.encode("qz")) == 2
    view = neighbours_view(Subject(subject.module, letters, words), "kk")
    assert [nearest.table.en for nearest in view.nearest] == ["source table"]
    assert "not one token" in view.tables("en")[0].note
    assert len(neighbours_view(split, "q").nearest) == 2


def test_a_word_of_several_tokens_is_refused_with_its_tokens(lively):
    with pytest.raises(GenerationError, match=r"'abc' is 3 tokens of this model \(a, b, c\)") as error:
        neighbours_view(lively(), "abc")
    assert "Give one of these tokens" in str(error.value)
    with pytest.raises(GenerationError, match=r"'月' is 3 tokens of this model \(<E6>, <9C>, <88>\)") as error:
        neighbours_view(lively(), "月")
    assert "bytes of its characters" in str(error.value)


def test_a_word_that_is_one_token_behind_a_space_is_found_so(lively):
    words = train_bpe(["a king a king a queen a king "] * 50, vocab_size=270)
    assert len(words.encode(" king")) == 1 < len(words.encode("king"))
    view = neighbours_view(Subject(lively(vocab_size=words.vocab_size).module, words), "king")
    assert view.nearest[0].piece == "␣king"
    assert "space before it" in view.tables("en")[0].note


@pytest.mark.parametrize(("word", "count", "error"), [("k", 0, SettingsError), ("", 3, GenerationError)])
def test_bad_input(lively, word, count, error):
    with pytest.raises(error):
        neighbours_view(lively(), word, top=count)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_charts_and_dict(lively, language):
    view = neighbours_view(lively(tied_output=False), "k", top=4)
    charts = view.charts(language)
    assert len(charts) == 2
    assert all("k" in chart.title for chart in charts)
    found = json.loads(json.dumps(view.to_dict()))
    assert len(found["nearest"][1]["cosines_K"]) == 4
