"""Selection by BLEU where BLEU cannot tell steps apart, and translations that are cut: each is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mingyue.cli import main

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PAIRS = [(" ".join(WORDS[int(c)] for c in f"{n:03}"), f"{n}") for n in range(0, 1000, 3)]
TINY = (
    "--tokenizer char --d-model 32 --n-layers 1 --context 64 --batch-tokens 256 --threads 1 --bleu-lines 8 "
    "--sample-every 0"
)

FORTY = "--steps 40 --evaluate-every 8"


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Trains on numbers in words and in digits; returns (training.json, evaluations, exit code)."""
    monkeypatch.chdir(tmp_path)
    Path("s").write_text("".join(source + "\n" for source, _ in PAIRS), encoding="utf-8")
    Path("t").write_text("".join(target + "\n" for _, target in PAIRS), encoding="utf-8")

    def run(options: str) -> tuple[dict, list[dict]]:
        assert main(["train", "--source", "s", "--target", "t", *TINY.split(), "--out", "run", *options.split()]) == 0
        lines = map(json.loads, Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines())
        card = json.loads(Path("run/model/training.json").read_text(encoding="utf-8"))
        return card, [line for line in lines if line["event"] == "evaluate"]

    return run


def test_ties_of_bleu_go_to_the_lower_loss_and_it_is_said(train, capsys):
    """Targets of one word have BLEU 0 at every step: the first evaluation must not stay the best one."""
    card, evaluations = train(f"--select bleu --patience 2 {FORTY}")
    assert {line["bleu"] for line in evaluations} == {0.0}
    assert len(evaluations) == 5  # patience counts what the loss says too
    best = min(evaluations, key=lambda line: line["heldout_loss"])
    assert card["steps"] == best["step"] > 8
    assert [line["best"] for line in evaluations] == [
        line["heldout_loss"] <= min(before["heldout_loss"] for before in evaluations[: number + 1])
        for number, line in enumerate(evaluations)
    ]
    out = " ".join(capsys.readouterr().out.split())
    assert "BLEU will be 0 at every evaluation" in out
    assert "the lower held-out loss decides" in out


def test_bleu_of_exact_short_lines_is_explained(train, capsys):
    train("--steps 1")
    capsys.readouterr()
    assert main(["evaluate", "run", "--source", "s", "--target", "t", "--threads", "1"]) == 0
    assert "BLEU is 0 for any translation of these lines" in " ".join(capsys.readouterr().err.split())


def test_long_references_are_not_explained_away(train, capsys):
    train("--steps 1")
    Path("long").write_text("one two three four five\n" * len(PAIRS), encoding="utf-8")
    capsys.readouterr()
    assert main(["evaluate", "run", "--source", "s", "--target", "long", "--threads", "1"]) == 0
    assert "BLEU is 0 for any" not in " ".join(capsys.readouterr().err.split())


def test_cut_translations_are_counted_in_training(train, capsys):
    """A model of one step knows no end: BLEU counts its cut translations, and says how many there are."""
    _, evaluations = train("--steps 1 --evaluate-every 1 --learning-rate 1e-9 --muon-learning-rate 1e-9")
    assert evaluations[-1]["cut_translations"] == 8
    out = " ".join(capsys.readouterr().out.split())
    assert " 8 cut" in out
    assert "8 of the 8 translations of the last evaluation were cut" in out
    assert "--extra-tokens" in out


@pytest.mark.parametrize("extra", [3, 5])
def test_cut_translations_are_counted_in_use_with_the_option_that_lifts_it(train, capsys, extra):
    train("--steps 1 --learning-rate 1e-9 --muon-learning-rate 1e-9")
    capsys.readouterr()
    Path("two").write_text("one\ntwo three\n", encoding="utf-8")
    assert main(f"translate run --source two --threads 1 --beam 1 --extra-tokens {extra}".split()) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert f"2 translations are cut at the tokens of the line + {extra}" in err
    assert "(lines 1, 2)" in err
    assert "--extra-tokens" in err
    assert main(["translate", "run", "--source", "two", "--threads", "1", "--extra-tokens", "500"]) == 0
    assert "line 1 is cut at the context of 64 tokens" in " ".join(capsys.readouterr().err.split())
    assert main(["evaluate", "run", "--source", "two", "--target", "two", "--threads", "1", "--extra-tokens", "3"]) == 0
    assert "without an end" in " ".join(capsys.readouterr().err.split())
