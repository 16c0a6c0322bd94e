"""A film shows the frames it was given, in order, and says what it left out."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
import torch

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.errors import CheckpointError, SettingsError
from mingyue.inspection import Subject
from mingyue.inspection import film as film_module
from mingyue.inspection.attention_weights import part_weights
from mingyue.inspection.film import film_view
from mingyue.inspection.frames import SIDE, read_frames, take_frame, write_frame
from mingyue.inspection.parts import attention_parts
from mingyue.inspection.taps import tap_label
from mingyue.models import build_model

SIZES = {
    "vocab_size": 29,
    "context": 128,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": 2,
    "d_head": 16,
    "d_ff": 32,
}


@pytest.fixture(scope="module")
def subject(letters):
    config = ModelConfig(**SIZES | {"vocab_size": letters.vocab_size})
    return Subject(build_model(config, seed=1).eval(), letters)


@pytest.fixture(scope="module")
def frames(subject):
    return [take_frame(subject, subject.read("moonlight"), step) for step in (0, 10, 20)]


def film_data(view, language="en"):
    block = re.search(
        r'<div class="film"><script type="application/json">(.*?)</script>', view.charts(language)[0].html()
    )
    assert block
    return json.loads(block[1])


def test_a_frame_comes_back_from_its_file_as_it_was(frames, tmp_path):
    path = write_frame(tmp_path / "watch", frames[1])
    assert path.name == "step-00000010.safetensors"
    (found,), bad = read_frames(tmp_path / "watch")
    assert not bad
    for name, value in vars(frames[1]).items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(found, name), equal_nan=True), name
        elif name != "parts":
            assert value == getattr(found, name), name
    for ours, theirs in zip(frames[1].parts, found.parts, strict=True):
        assert np.array_equal(ours.bytes_LHTS, theirs.bytes_LHTS)
        assert (ours.rows, ours.columns, ours.tokens) == (theirs.rows, theirs.columns, theirs.tokens)


def test_a_folder_that_cannot_be_written_is_said(frames, tmp_path):
    (tmp_path / "watch").write_text("a file", encoding="utf-8")
    with pytest.raises(CheckpointError, match="frame of the film"):
        write_frame(tmp_path / "watch", frames[0])


def test_maps_of_long_texts_are_blocks_whose_rows_still_sum_to_one(subject):
    reading = subject.read("abcdefghij" * 10)
    (part,) = take_frame(subject, reading, 0).parts
    assert part.bytes_LHTS.shape == (2, 2, SIDE, SIDE) and part.tokens == (100, 100)
    assert part.bytes_LHTS.sum(axis=-1) / 255 == pytest.approx(1.0, abs=SIDE * 0.5 / 255)
    whole = part_weights(subject, reading, attention_parts(subject)[0]).weights_LHTS
    assert part.bytes_LHTS[0, 0, 63, 0] / 255 == pytest.approx(whole[0, 0, 98:100, :1].sum(-1).mean(), abs=0.003)


def test_the_page_has_every_frame_in_the_order_of_steps(frames):
    data = film_data(film_view(frames[::-1], heldout_loss={8: 3.25, 20: 2.5}))
    first, second, third = (scene["label"] for scene in data["steps"])
    assert third.startswith("step 20 · held-out loss 2.500 · ")
    assert "held-out" not in first + second, "nothing was measured at these steps"
    cells = np.frombuffer(base64.b64decode(data["steps"][0]["maps"][0]["data"]), np.uint8)
    assert np.array_equal(cells, frames[0].parts[0].bytes_LHTS.ravel())
    assert data["steps"][0]["columns"] == list("moonlight")
    assert [cell[0] for cell in data["steps"][2]["words"][-1]] == [words[0] for words in frames[2].words_LTK[-1]]


def test_the_lens_of_every_layer_is_on_the_page_and_in_the_picture(frames):
    """V9: a film shows what each layer predicts at its steps, beside the token that comes next."""
    view = film_view(frames)
    data = film_data(view)
    places = [tap_label(tap, "en") for tap in frames[0].places_L]
    assert data["wordRows"] == ["actual next token", *places]
    assert [cell[:2] for cell in data["steps"][0]["words"][0]] == [[letter, None] for letter in [*"oonlight", ""]]
    film, lens, _ = view.pictures()
    rows = [f"{step} · {place}" for step in (0, 10, 20) for place in places]
    assert list(lens.row_labels) == ["actual next token", *rows]
    for frame, row in zip(frames, (3, 6, 9), strict=True):
        assert [mark.text for mark in lens.cells[row]] == [words[0] for words in frame.words_LTK[-1]]
        assert [mark.value for mark in lens.cells[row]] == frame.probabilities_LTK[-1, :, 0].tolist()
    assert set("moonlight") <= set(texts_of(film.spec())), "the maps have their tokens"


def texts_of(spec):
    return [text for layer in spec["layer"] for row in layer["data"]["values"] for text in row.get("text", ())]


def test_both_languages_say_the_same(frames):
    view = film_view(frames)
    english, chinese = film_data(view), film_data(view, "zh")
    assert english["parts"][0]["rowTitles"] == ["layer 0", "layer 1"]
    assert chinese["parts"][0]["rowTitles"] == ["第 0 层", "第 1 层"]
    assert [len(table.rows) for table in (*view.tables("en"), *view.tables("zh"))] == [3, 3]


def test_a_long_film_is_thinned_out_and_says_so(frames, monkeypatch):
    monkeypatch.setattr(film_module, "MOST_BYTES", 2 * frames[0].parts[0].bytes_LHTS.size)
    view = film_view(frames)
    assert [scene["label"].split(" · ")[0] for scene in film_data(view)["steps"]] == ["step 0", "step 20"]
    assert view.charts("en")[0].note == "2 of 3 frames."
    assert len(view.to_dict()["frames"]) == 3, "numbers for programs are whole"


def test_a_held_out_loss_stands_only_at_the_step_where_it_was_measured(frames):
    view = film_view(frames, heldout_loss={0: 3.0, 15: 2.0, 20: 1.5})
    assert [row[1] for row in view.tables()[0].rows] == ["3.000", "–", "1.500"]


def test_pictures_and_numbers_of_a_film(frames):
    view = film_view(frames, heldout_loss={0: 3.0, 10: 2.0})
    film, losses = view.charts()
    assert film.spec()["layer"][0]["mark"]["url"].startswith("data:image/png;base64,")
    assert "mean over all heads" not in str(film.spec()["title"]), "four heads have room"
    assert {row["of"] for row in losses.rows} == {"this text", "held-out text"}
    assert sum(row["of"] == "held-out text" for row in losses.rows) == 2, "one for each measurement"
    told = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert told["heldout_loss_N"] == [3.0, 2.0, None] and told["steps_N"] == [0, 10, 20]
    assert json.dumps(film.to_dict(), allow_nan=False)


def test_frames_that_do_not_belong_together_are_refused(subject, frames, letters):
    with pytest.raises(SettingsError, match="different texts"):
        film_view([frames[0], take_frame(subject, subject.read("frost"), 1)])
    config = ModelConfig(**SIZES | {"vocab_size": letters.vocab_size, "n_layers": 1})
    other = Subject(build_model(config, seed=1).eval(), letters)
    with pytest.raises(SettingsError, match="different models"):
        film_view([frames[0], take_frame(other, other.read("moonlight"), 1)])
    with pytest.raises(SettingsError, match="no frame"):
        film_view([])


def test_translations_of_different_length_make_one_film(letters):
    sizes = SIZES | {"vocab_size": letters.vocab_size, "n_encoder_layers": 2}
    torch.manual_seed(0)
    pairs = Subject(build_model(EncoderDecoderConfig(**sizes), seed=1).eval(), letters, letters)
    taken = [take_frame(pairs, pairs.read(target, "moon"), step) for step, target in enumerate(("ab", "abcdef"))]
    view = film_view(taken)
    data = film_data(view)
    assert [part["title"] for part in data["parts"]] == [
        "Encoder self-attention", "Decoder self-attention", "Cross-attention",
    ]  # fmt: skip
    assert [len(scene["maps"][2]["rows"]) for scene in data["steps"]] == [3, 7]
    assert view.charts()[0].spec()["layer"], "maps of different size are drawn alike"
    lens = view.pictures()[1]
    assert list(lens.column_labels) == list("0123456") and [mark.text for mark in lens.cells[0][3:]] == [""] * 4
    assert view.tables()[0].rows[1][-1] == "abcdef" and "greedy translation" in view.charts()[0].note
