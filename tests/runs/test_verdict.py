"""The verdict: each one follows from its own numbers."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any, cast

import pytest

from mingyue.data import Baselines
from mingyue.runs.verdict import Outcome, judge, with_repeats
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
