"""The lens: the last row is the model itself, and every row is what its layer says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mingyue.errors import SettingsError
from mingyue.inspection import ranking
from mingyue.inspection.lens import MOST_COLUMNS, lens_view
from mingyue.nn import Taps

KINDS = [
    {},
    {"norm_placement": "post", "final_norm": False, "norm": "layer", "positions": "sinusoidal"},
    {"norm_placement": "post"},
    {"tied_output": False, "positions": "learned"},
]


@pytest.mark.parametrize("changes", KINDS)
def test_the_last_row_is_what_the_model_says(lively, changes):
    subject = lively(**changes)
    reading = subject.read("abcabcxyz")
    view = lens_view(subject, reading, top=4)
    with torch.no_grad():
        logprobs = subject.logits(reading).log_softmax(-1)
    best = logprobs.exp().topk(4)
    np.testing.assert_allclose(view.top_probabilities_LTK[-1], best.values.numpy(), atol=1e-5)
    np.testing.assert_array_equal(view.top_ids_LTK[-1], best.indices.numpy())
    truth = logprobs[:-1].gather(1, reading.targets_T[:, None])[:, 0].numpy()
    np.testing.assert_allclose(view.truth_logprob_LT[-1, :-1], truth, atol=1e-5)
    assert (view.divergence_LT[-1] == 0).all()
    assert (view.divergence_LT[0] > 0.01).any()


@pytest.mark.parametrize("changes", KINDS)
def test_each_row_is_the_stream_of_its_layer_through_norm_and_output(lively, changes):
    subject = lively(**changes)
    reading = subject.read("hello")
    view = lens_view(subject, reading)
    assert view.places_L == ("embeddings", "blocks.0.output", "blocks.1.output")
    taps = Taps("*")
    with torch.no_grad():
        final = subject.logits(reading, taps).log_softmax(-1)
        for layer, place in enumerate(view.places_L):
            module = subject.module
            logprobs = module.output(module.final_norm(taps.values[place][0])).log_softmax(-1)
            truth = reading.targets_T.tolist()
            for t, index in enumerate(truth):
                assert view.truth_logprob_LT[layer, t] == pytest.approx(float(logprobs[t, index]), abs=1e-5)
                rank = sorted(logprobs[t].tolist(), reverse=True).index(float(logprobs[t, index])) + 1
                assert view.truth_rank_LT[layer, t] == rank
            apart = torch.nn.functional.kl_div(logprobs, final, reduction="none", log_target=True).sum(-1)
            np.testing.assert_allclose(view.divergence_LT[layer], apart.numpy(), atol=1e-4)


def test_the_last_position_of_a_text_is_a_prediction_without_truth(lively):
    view = lens_view(lively(), lively().read("abc"))
    assert view.truth_T[-1] == -1
    assert (view.truth_rank_LT[:, -1] == 0).all()
    assert np.isnan(view.truth_logprob_LT[:, -1]).all()
    assert view.truth_pieces_T == ("b", "c", "")
    grid = view.charts("en")[0]
    assert "last column is a prediction" in grid.note
    assert not any("actual" in line for line in grid.cells[0][-1].hover)
    assert any("actual: c" in line for line in grid.cells[0][1].hover)


def test_of_pairs_it_reads_the_decoder_and_knows_every_truth(lively_pairs):
    subject = lively_pairs()
    reading = subject.read("xyz", "abcdef")
    view = lens_view(subject, reading)
    assert view.places_L == ("decoder.embeddings", "decoder.blocks.0.output", "decoder.blocks.1.output")
    assert view.truth_pieces_T == ("x", "y", "z", "<eos>")
    with torch.no_grad():
        logprobs = subject.logits(reading).log_softmax(-1)
    truth = logprobs.gather(1, reading.targets_T[:, None])[:, 0].numpy()
    np.testing.assert_allclose(view.truth_logprob_LT[-1], truth, atol=1e-5)
    assert "prediction" not in view.charts("en")[0].note
    assert "prediction" not in view.tables("en")[1].note


def test_large_vocabularies_are_taken_in_pieces_with_the_same_result(lively, monkeypatch):
    subject = lively()
    reading = subject.read("abcabcxyz")
    whole = lens_view(subject, reading).to_dict()
    monkeypatch.setattr(ranking, "MOST_LOGITS", 2 * subject.module.config.vocab_size)
    pieces = lens_view(subject, reading).to_dict()
    assert pieces["top_pieces_LTK"] == whole["top_pieces_LTK"]
    np.testing.assert_allclose(pieces["divergence_LT"], whole["divergence_LT"], atol=1e-5)


def test_a_text_of_one_token_has_words_and_no_course(lively):
    view = lens_view(lively(), lively().read("a"))
    assert len(view.charts("en")) == 1
    assert view.tables("en")[0].rows[0][1] == "–"
    assert "means" not in view.tables("en")[0].note
    json.dumps(view.to_dict(), allow_nan=False)


def test_notes_of_tables_speak_of_their_own_rows_and_columns(lively):
    view = lens_view(lively(), lively().read("abc"))
    for language, last, rows in (("en", "last row is a prediction", "Rows: the"), ("zh", "最后一行是预测", "行：")):
        means, words = view.tables(language)
        assert last in words.note
        assert last not in means.note
        for note in (means.note, words.note):
            assert rows in note
            assert "last column" not in note and "最后一列" not in note
    assert "2 positions" in view.tables("en")[0].note


def test_the_table_has_the_words_that_are_asked_for_up_to_three(lively):
    subject = lively()
    reading = subject.read("abc")
    for top, shown in ((None, 1), (1, 1), (2, 2), (3, 3), (7, 3)):
        view = lens_view(subject, reading, top=top)
        table = view.tables("en")[1]
        for t, row in enumerate(table.rows):
            for layer, cell in enumerate(row[2:-1]):
                words = [f"{word} " for word in view.top_pieces_LTK[layer][t][:shown]]
                assert cell.count("%") + cell.count("e-") == shown
                assert all(word in cell for word in words)
        assert ("3 of the 7 predictions" in table.note) is (top == 7)


def test_long_texts_are_drawn_within_a_cap_that_is_said(lively):
    subject = lively(context=MOST_COLUMNS + 40)
    view = lens_view(subject, subject.read("ab" * (MOST_COLUMNS // 2 + 10)))
    grid = view.charts("en")[0]
    assert len(grid.column_labels) == MOST_COLUMNS
    assert f"last {MOST_COLUMNS} of {MOST_COLUMNS + 20}" in grid.note
    assert len(view.tables("zh")[1].rows) == 16


def test_fewer_than_one_word_is_refused_and_more_than_there_are_is_all(lively):
    subject = lively()
    with pytest.raises(SettingsError, match="at least 1"):
        lens_view(subject, subject.read("abc"), top=0)
    view = lens_view(subject, subject.read("abc"), top=100_000)
    np.testing.assert_allclose(view.top_probabilities_LTK.sum(-1), 1.0, atol=1e-4)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_charts_tables_and_dict(lively, language):
    view = lens_view(lively(), lively().read("abcd"))
    grid, rank, surprise, apart = view.charts(language)
    assert grid.cells[2][1].text == view.top_pieces_LTK[2][1][0]
    assert rank.rows[0]["rank"] == pytest.approx(view.truth_rank_LT[0, :3].mean())
    assert surprise.rows[2]["surprise"] == pytest.approx(-view.truth_logprob_LT[2, :3].mean(), abs=1e-6)
    assert apart.rows[2]["kl"] == 0
    assert len(view.tables(language)[1].rows) == 4
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert np.array(found["top_probabilities_LTK"]).shape == (3, 4, 5)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("tied", [True, False])
def test_why_low_layers_predict_what_they_do_depends_on_the_model(lively, lively_pairs, language, tied):
    """V6: with tied embeddings the token just read, else what follows it often; that was explained nowhere."""
    words = {"en": ("(tied)", "bigram"), "zh": ("绑定", "bigram")}[language]
    for view in (
        lens_view(lively(tied_output=tied), lively().read("abc")),
        lens_view(lively_pairs(tied_output=tied), lively_pairs().read("abc", "xyz")),
    ):
        for note in (view.charts(language)[0].note, view.tables(language)[0].note):
            assert [word in note for word in words] == [tied, not tied]
        assert view.to_dict()["tied"] is tied


def test_with_tied_embeddings_the_embeddings_predict_the_token_just_read(lively):
    """V6: the sentence is true of a model whose embeddings differ from each other."""
    subject = lively(positions="rotary", final_norm=True)
    with torch.no_grad():
        table = subject.module.embedding.weight
        table.copy_(torch.nn.functional.normalize(table, dim=1) * 4)
    view = lens_view(subject, subject.read("hello"))
    assert view.top_ids_LTK[0, :, 0].tolist() == subject.read("hello").ids_T.tolist()
