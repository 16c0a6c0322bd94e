"""Watching a text while a model is trained changes nothing, and leaves a frame for each checkpoint."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mingyue
from mingyue.api.film import film_of
from mingyue.errors import SettingsError
from mingyue.inspection.frames import read_frames, take_frame, write_frame
from mingyue.inspection.lens import lens_view
from mingyue.inspection.subject import Subject
from mingyue.training import Observer

TEXT = "".join(f"床前明月光，疑是地上霜。举头望明月，低头思故乡。{number}\n" for number in range(60))
TINY = {
    "depth": 1, "n_layers": 2, "context": 32, "batch_tokens": 128, "d_model": 32, "threads": 1, "evaluate_every": 4,
    "checkpoint_every": 4, "sample_every": 0, "steps": 12, "dropout": 0.1,
}  # fmt: skip
WATCHED = "床前明月光"


class Listener(Observer):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "poems.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def watched(text_file) -> Path:
    return mingyue.train(sources=[str(text_file)], out=str(text_file.parent / "seen"), watch=WATCHED, **TINY).folder


def weights_of(folder):
    return load_file(folder / "checkpoints" / "step-00000012" / "model.safetensors")


def test_watching_changes_no_weight_in_any_bit(text_file, watched):
    other = mingyue.train(sources=[str(text_file)], out=str(text_file.parent / "unseen"), **TINY).folder
    ours, theirs = weights_of(watched), weights_of(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)
    assert not (other / "watch").exists()


def test_there_is_a_frame_of_the_start_and_of_each_checkpoint(watched):
    frames, bad = read_frames(watched / "watch")
    assert [frame.step for frame in frames] == [0, 4, 8, 12] and not bad
    assert {frame.text for frame in frames} == {WATCHED}
    assert len({path.name for path in (watched / "checkpoints").iterdir()}) <= 3, "frames outlive checkpoints"


def test_a_frame_shows_the_model_of_that_step(watched):
    model = mingyue.load(watched, step=12)
    subject = Subject(model.module, model.tokenizer, starts_with_bos=model.starts_with_bos)
    reading = subject.read(WATCHED)
    frame = read_frames(watched / "watch")[0][-1]
    lens = lens_view(subject, reading, top=3)
    assert np.array_equal(frame.ids_LTK, lens.top_ids_LTK)
    assert frame.probabilities_LTK == pytest.approx(lens.top_probabilities_LTK, abs=1e-6)
    assert frame.words_LTK == lens.top_pieces_LTK
    weights = mingyue.inspect(model, WATCHED).attention().weights_LHTS
    (part,) = frame.parts
    assert np.abs(part.bytes_LHTS / 255 - weights).max() <= 0.5 / 255 + 1e-6
    assert frame.loss == pytest.approx(-float(np.nanmean(lens.truth_logprob_LT[-1])), abs=1e-6)


def test_a_resumed_run_removes_the_frames_of_steps_it_takes_again(text_file, tmp_path):
    given = TINY | {"steps": 8}
    folder = mingyue.train(sources=[str(text_file)], out=str(tmp_path / "run"), watch=WATCHED, **given).folder
    last = read_frames(folder / "watch")[0][-1]
    write_frame(folder / "watch", type(last)(**{**vars(last), "step": 10}))  # of a run that was killed later on
    mingyue.resume(folder, steps=12, checkpoint_every=100, evaluate_every=100)
    assert [frame.step for frame in read_frames(folder / "watch")[0]] == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("text", "said"), [("明" * 40, "40 tokens .*context of this model holds 32"), ("", None)], ids=["long", "none"]
)
def test_a_text_that_cannot_be_watched_is_refused_before_anything_is_trained(text_file, tmp_path, text, said):
    out = tmp_path / "run"
    if said is None:
        folder = mingyue.train(sources=[str(text_file)], out=str(out), watch=text, **TINY | {"steps": 1}).folder
        assert not (folder / "watch").exists()
        return
    with pytest.raises(SettingsError, match=f"watch: .*{said}"):
        mingyue.train(sources=[str(text_file)], out=str(out), watch=text, **TINY)
    assert not out.exists(), "the same command, corrected, must not find a run in its way"


def test_what_goes_wrong_while_watching_is_told_and_training_goes_on(text_file, tmp_path, monkeypatch):
    from mingyue.errors import GenerationError
    from mingyue.runs import watching

    def fails(*_):
        raise GenerationError("no picture today")

    monkeypatch.setattr(watching, "take_frame", fails)
    listener = Listener()
    out = str(tmp_path / "run")
    result = mingyue.train(sources=[str(text_file)], out=out, watch=WATCHED, observer=listener, **TINY)
    assert result.training.step == 12
    assert sum("no picture today" in note for note in listener.notes) == 1


def test_a_run_on_pairs_watches_its_own_translation(tmp_path):
    draw = random.Random(1)
    lines = ["".join(draw.choices("abcdef", k=draw.randint(1, 9))) for _ in range(200)]
    for name, content in (("a", lines), ("b", [line[::-1] for line in lines])):
        (tmp_path / name).write_text("".join(line + "\n" for line in content), encoding="utf-8")
    folder = mingyue.train(
        source=str(tmp_path / "a"), target=str(tmp_path / "b"), out=str(tmp_path / "run"), watch="abcd", steps=4,
        d_model=32, n_layers=1, n_heads=2, d_ff=64, context=32, batch_tokens=256, tokenizer="char", threads=1,
        bleu_lines=0, sample_every=0, evaluate_every=4,
    ).folder  # fmt: skip
    frames, _ = read_frames(folder / "watch")
    assert [frame.step for frame in frames] == [0, 4]
    for frame in frames:
        assert frame.source == "abcd" and len(frame.pieces_T) <= 32
        shapes = {part.part: (len(part.rows), len(part.columns)) for part in frame.parts}
        target, source = len(frame.pieces_T), 5
        assert shapes == {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
        assert all(part.bytes_LHTS.shape[2:] == (len(part.rows), len(part.columns)) for part in frame.parts)


def test_a_damaged_frame_is_named_and_left_out(watched, tmp_path):
    folder = tmp_path / "watch"
    folder.mkdir()
    for path in (watched / "watch").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "step-00000004.safetensors").write_bytes(b"no frame")
    frames, bad = read_frames(folder)
    assert [frame.step for frame in frames] == [0, 8, 12] and bad == ["step-00000004.safetensors"]


# --- the film of a run -----------------------------------------------------------------------------------------------


def test_the_film_of_a_run_has_its_frames_and_losses(watched):
    view = mingyue.inspect(watched).film()
    assert view.steps_N == (0, 4, 8, 12) and view.frames[0].text == WATCHED
    assert not np.isfinite(view.heldout_loss_N[0]) and np.isfinite(view.heldout_loss_N[1:]).all()


def test_another_text_is_read_at_the_checkpoints_that_are_kept(watched):
    view = mingyue.inspect(watched, "举头望").film()
    kept = sorted(int(path.name.removeprefix("step-")) for path in (watched / "checkpoints").glob("step-*"))
    assert list(view.steps_N) == kept and view.frames[0].text == "举头望"


def test_a_run_that_was_not_watched_says_how_to_have_a_film(text_file, tmp_path):
    folder = mingyue.train(sources=[str(text_file)], out=str(tmp_path / "run"), **TINY | {"steps": 2}).folder
    with pytest.raises(SettingsError, match="without --watch"):
        film_of(folder)
    assert film_of(folder, "床前").steps_N
    with pytest.raises(SettingsError, match="no checkpoints and no frames"):
        film_of(folder / "model", "床前")
    with pytest.raises(SettingsError, match="folder of the run"):
        mingyue.inspect(mingyue.load(folder), "床前").film()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_divided_over_processes_is_watched_too(text_file, tmp_path):
    """Its weights come home for each frame; they are those of the checkpoint of that step."""
    out = tmp_path / "run"
    given = TINY | {"steps": 4, "watch": WATCHED, "nproc": 2, "parallel": "sharded", "out": str(out)}
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "mingyue", "train", str(text_file), *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=500)
    assert done.returncode == 0, done.stderr + done.stdout
    frames, bad = read_frames(out / "watch")
    assert [frame.step for frame in frames] == [0, 4] and not bad
    again = film_of(out, WATCHED, threads=1).frames[-1]
    model = mingyue.load(out, step=4)
    fresh = take_frame(Subject(model.module, model.tokenizer), model_reading(model), 4)
    assert again.probabilities_LTK == pytest.approx(fresh.probabilities_LTK, abs=1e-5)


def model_reading(model):
    return Subject(model.module, model.tokenizer, starts_with_bos=model.starts_with_bos).read(WATCHED)
