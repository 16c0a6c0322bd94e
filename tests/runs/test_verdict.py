"""The verdict: each one follows from its own numbers."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any, cast

import pytest

from mingyue.config import TrainSettings
from mingyue.data import Baselines
from mingyue.models import resolve_config
from mingyue.runs.verdict import Outcome, judge, rates_to_try, single_spaced, with_repeats
from mingyue.scoring import copy_report
from mingyue.training import Evaluation, TrainResult

SIMPLE = Baselines(uniform=5.0, unigram=3.0, bigram=2.0, train_targets=1000, held_out_targets=100)


def verdict(
    tmp_path: Path,
    loss: float | None,
    course: list[float],
    *,
    steps: int = 1000,
    simple: Baselines = SIMPLE,
    epochs: float = 3.0,
) -> Outcome:
    metrics = tmp_path / "metrics.jsonl"
    lines: list[dict[str, Any]] = [
        {"event": "evaluate", "step": 10 * number, "tokens": 0, "seconds": 0.0, "heldout_loss": value}
        for number, value in enumerate(course, 1)
    ]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in [{"event": "train"}, *lines]), encoding="utf-8")
    evaluation = None if loss is None else Evaluation(nats=100 * loss, tokens=100, bytes_per_token=1.0)
    result = types.SimpleNamespace(evaluation=evaluation, step=steps, weights_step=steps)
    return judge(cast(TrainResult, result), metrics, simple, epochs=epochs)


def test_held_out_documents_that_are_trained_on_are_part_of_the_verdict(tmp_path: Path) -> None:
    """D15: a held-out loss on text that was trained on looked like any other."""
    outcome = verdict(tmp_path, 1.5, [3.0, 2.5, 2.0, 1.5])
    told = with_repeats(outcome, 12, 20, "documents")
    assert told.sentences[:-1] == outcome.sentences and told.verdict == outcome.verdict
    assert "12 of 20 held-out documents are trained on as well" in told.sentences[-1]
    assert with_repeats(outcome, 1, 100, "documents") == outcome == with_repeats(outcome, 0, 0, "pairs")


def test_better_than_a_bigram_model_and_falling_is_learning(tmp_path: Path) -> None:
    outcome = verdict(tmp_path, 1.5, [3.0, 2.5, 2.0, 1.5])
    assert outcome.verdict == "learning"
    assert "beats a bigram model" in outcome.sentences[0]
    assert "still falling" in outcome.sentences[1]


def test_between_unigram_and_bigram_is_learning_that_is_not_done(tmp_path: Path) -> None:
    outcome = verdict(tmp_path, 2.5, [3.0, 2.5])
    assert outcome.verdict == "learning"
    assert "not yet a bigram" in outcome.sentences[0]


def test_a_loss_that_grows_again_is_overfitting_and_says_both_numbers(tmp_path: Path) -> None:
    outcome = verdict(tmp_path, 1.5, [2.0, 1.5, 1.7])
    assert outcome.verdict == "overfitting"
    assert "best at step 20 (1.500)" in outcome.sentences[1]  # whichever step is kept
    assert "1.700" in outcome.sentences[1]


def test_a_loss_that_grows_again_is_overfitting_beside_letter_counts_too(tmp_path: Path) -> None:
    outcome = verdict(tmp_path, 3.2, [3.2, 3.5, 4.7])
    assert outcome.verdict == "overfitting"
    assert "does not beat a unigram" in outcome.sentences[0] and "Train longer" not in " ".join(outcome.sentences)


def test_the_noise_of_an_evaluation_is_not_overfitting(tmp_path: Path) -> None:
    assert verdict(tmp_path, 1.5, [2.0, 1.5, 1.51]).verdict == "learning"


@pytest.mark.parametrize(("steps", "expected"), [(1000, "diverged"), (5, "not learning")])
def test_no_better_than_a_uniform_guess_is_diverged_unless_it_hardly_began(
    tmp_path: Path, steps: int, expected: str
) -> None:
    assert verdict(tmp_path, 5.2, [5.3, 5.2], steps=steps).verdict == expected


def test_no_better_than_letter_counts_is_not_learning(tmp_path: Path) -> None:
    assert verdict(tmp_path, 3.1, [4.0, 3.1]).verdict == "not learning"


def test_without_held_out_text_nothing_is_claimed(tmp_path: Path) -> None:
    nothing = Baselines(uniform=5.0, unigram=None, bigram=None, train_targets=1000, held_out_targets=0)
    assert verdict(tmp_path, None, [], simple=nothing).verdict == "not measured"


def test_a_handful_of_held_out_tokens_tells_nothing(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("", encoding="utf-8")
    evaluation = Evaluation(nats=3.0, tokens=3, bytes_per_token=1.0)
    result = types.SimpleNamespace(evaluation=evaluation, step=10, weights_step=10)
    outcome = judge(cast(TrainResult, result), metrics, SIMPLE)
    assert outcome.verdict == "not measured"
    assert "3 tokens" in outcome.sentences[0]


def test_nothing_is_learned_by_heart_before_it_is_seen_twice(tmp_path: Path) -> None:
    outcome = verdict(tmp_path, 1.5, [2.0, 1.5, 1.7], epochs=0.5)
    assert outcome.verdict == "learning"
    assert "1.700" in outcome.sentences[1]
    assert "by heart" not in " ".join(outcome.sentences)


# --- what the training loss says --------------------------------------------------------------------------------------


def course(tmp_path: Path, loss: float | None, held_out: list[float], training: list[float], **given: Any) -> Outcome:
    """The verdict on a run with these losses at steps 10, 20, …; uniform 5, unigram 3, bigram 2."""
    events = [("train", "train_loss", training), ("evaluate", "heldout_loss", held_out)]
    lines = [
        {"event": event, "step": 10 * number, "tokens": 0, "seconds": 0.0, key: value}
        for event, key, values in events
        for number, value in enumerate(values, 1)
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    evaluation = None if loss is None else Evaluation(nats=100 * loss, tokens=100, bytes_per_token=1.0)
    result = types.SimpleNamespace(evaluation=evaluation, step=10 * len(training), weights_step=10)
    return judge(
        cast(TrainResult, result), metrics, SIMPLE, **({"epochs": 3.0, "rates": "--learning-rate 0.01"} | given)
    )


@pytest.mark.parametrize(
    ("loss", "held_out", "training"),
    [
        (4.3, [4.3, 100.0, 154.0], [4.3, 90.0, 154.0]),  # the best weights are those of the beginning
        (5.2, [5.2, 20.0, 19.5], [5.1, 20.0, 19.5]),
        (2.5, [2.5, 4.0, 4.2], [4.9, 2.4, 4.1]),  # below a uniform guess, but most of what was learned is lost
        (20.5, [600.0, 20.5], [5.6, 700.0, 42.0]),  # falling again
        (None, [], [4.3, 90.0, 154.0]),  # nothing held out
        (4.3, [4.3, 154.0], [4.3, 154.0]),
    ],
)
@pytest.mark.parametrize("epochs", [0.2, 30.0])
def test_a_training_loss_that_rises_is_divergence_with_the_rate_to_try(
    tmp_path: Path, loss: float | None, held_out: list[float], training: list[float], epochs: float
) -> None:
    outcome = course(tmp_path, loss, held_out, training, epochs=epochs)
    assert outcome.verdict == "diverged"
    said = " ".join(outcome.sentences)
    assert f"{training[-1]:.3f}" in said
    assert "--learning-rate 0.01" in said
    assert "memorise" not in said
    assert "train longer" not in said


@pytest.mark.parametrize(
    ("loss", "held_out", "training", "verdict"),
    [
        (1.5, [3.0, 2.0, 1.5], [5.0, 2.5, 1.4], "learning"),
        (1.5, [2.0, 1.5, 1.8], [5.0, 1.0, 0.4], "overfitting"),  # learned by heart: the training loss falls
        (1.5, [2.0, 1.5, 1.52], [5.0, 0.14, 0.17], "learning"),  # noise of a low loss
        (4.9, [5.0, 4.9], [5.0, 4.95, 4.9], "not learning"),  # it hardly began
        (5.4, [5.5, 5.4], [5.0, 2.0, 1.0], "overfitting"),  # what is held out is another text
    ],
)
def test_a_training_loss_that_falls_is_no_divergence(
    tmp_path: Path, loss: float, held_out: list[float], training: list[float], verdict: str
) -> None:
    assert course(tmp_path, loss, held_out, training).verdict == verdict


def test_a_spike_on_the_way_is_said(tmp_path: Path) -> None:
    outcome = course(tmp_path, 1.5, [20.0, 3.0, 1.5], [5.0, 30.0, 1.4])
    assert outcome.verdict == "learning"
    assert "rose to 30.000 at step 20" in outcome.sentences[-1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"learning_rate": 3.0, "muon_learning_rate": 3.0},
            "--learning-rate 0.012 (here 3), --muon-learning-rate 0.02",
        ),
        ({"learning_rate": 3.0, "optimiser": "adamw"}, "--learning-rate 0.003 (here 3)"),
        ({"learning_rate": 3.0}, "--learning-rate 0.012 (here 3), --muon-learning-rate 0.02 (here 0.02)"),
        ({}, "--learning-rate 0.004 (here 0.012), --muon-learning-rate 0.0067 (here 0.02)"),
        ({"learning_rate": 0.0012}, "--learning-rate 0.0004 (here 0.0012), --muon-learning-rate 0.0067"),
    ],
)
def test_the_rate_to_try_is_the_usual_one_or_a_third(given: dict[str, Any], expected: str) -> None:
    settings = TrainSettings.from_flat(sources=["a"], **given)
    config = resolve_config(settings.model, vocab_size=100, depth=2, context=16)
    assert config.d_model == 128
    assert rates_to_try(settings, config, 10).startswith(expected)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_runs_of_white_space_are_no_passages(size):
    """T32: of a table or of indented text the longest passage would be its spaces."""
    text = "one      two\n\n   three \t four   "
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert "".join(single_spaced(pieces)) == "one two\nthree four "
    generated, training = "".join(single_spaced([" " * 40 + "ab"])), single_spaced(["xa", " " * 60, "b"])
    assert len(copy_report([generated], training).longest) == 1


def with_training(tmp_path: Path, loss: float, course: list[float], last: float, epochs: float) -> Outcome:
    lines = [
        {"event": "evaluate", "step": 10 * number, "tokens": 0, "seconds": 0.0, "heldout_loss": value}
        for number, value in enumerate(course, 1)
    ]
    lines += [
        {"event": "train", "step": step, "tokens": 0, "seconds": 0.0, "train_loss": value}
        for step, value in ((1, 4.8), (100, last))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = types.SimpleNamespace(evaluation=Evaluation(100 * loss, 100, 1.0), step=1000, weights_step=1000)
    return judge(cast(TrainResult, result), tmp_path / "metrics.jsonl", SIMPLE, epochs=epochs)


@pytest.mark.parametrize(
    ("course", "last", "epochs", "advice"),
    [
        ([3.0, 2.0, 1.8, 1.5, 1.501], 1.0, 9.0, "more text, or --dropout 0.1"),
        ([3.0, 2.0, 1.8, 1.5, 1.501], 1.5, 0.5, "more time. The run ended before"),
        ([3.0, 2.0, 1.8, 1.5, 1.501], 1.5, 9.0, "a larger --depth"),
        ([3.0, 2.0, 1.8, 1.6, 1.5], 1.5, 9.0, "was still falling"),
        ([3.0, 2.0, 1.4, 1.5], 1.0, 9.0, "use more text"),
    ],
)
def test_a_model_that_could_be_better_says_what_to_try(tmp_path, course, last, epochs, advice):
    """Each case has its own advice, and only one."""
    found = with_training(tmp_path, 1.5, course, last, epochs)
    assert sum(advice in sentence for sentence in found.sentences) == 1
    assert len(found.sentences) <= 3
