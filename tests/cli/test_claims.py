"""`mingyue claims`: what it prints, what it refuses, and its exit code."""

from __future__ import annotations

import json

import pytest

from mingyue.claims import run as running
from mingyue.claims.claim import Trial
from mingyue.claims.result import Result
from mingyue.claims.run import State, run_claim


@pytest.fixture
def here(monkeypatch):
    """`variance` is tested in this process, the others fail. Returns what was asked for."""
    asked = []

    def run_claims(names, trial, out=None, workers=2, progress=None):
        asked.append((list(names), trial, out, workers))
        results = []
        for name in names:
            broken = Result(name, trial.size, trial.seed, 0.1, "", error="it broke")
            results.append(run_claim(name, Trial("small", trial.seed)) if name == "variance" else broken)
            progress(State(len(results), len(names), (), results[-1]))
        return results

    monkeypatch.setattr(running, "run_claims", run_claims)
    return asked


def test_list_names_the_claims_by_group_in_both_languages(run):
    code, out, _ = run("claims", "list")
    assert code == 0
    assert out.index("variance") < out.index("saturation") < out.index("chain-rule")
    code, out, _ = run("claims", "list", "--json", "--language", "zh")
    told = {one["name"]: one for one in json.loads(out)}
    assert told["variance"]["group"] == "scaling" and "方差" in told["variance"]["claim"]


def test_one_claim_is_told_whole(run, here):
    code, out, _ = run("claims", "run", "variance", "--full", "--seed", "4", "--workers", "1")
    assert code == 0
    assert "variance: holds" in out and "slope of log variance" in out and "within 0.1 of 1" in out
    assert here == [(["variance"], Trial("full", 4), None, 1)]


def test_several_have_a_line_each_and_one_that_failed_makes_the_exit_code_1(run, here):
    code, out, _ = run("claims", "run", "variance", "logs", "--language", "zh")
    assert code == 1
    assert "variance: 成立" in out and "logs: 未能检验" in out and "共检验 2 条论断" in out


def test_groups_and_all_stand_for_their_claims(run, here):
    run("claims", "run", "scaling", "--small")
    assert here[0][:2] == (["variance", "saturation", "additive"], Trial("small", 0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "no claim is named"),
        (("run", "varianze"), "did you mean 'variance'"),
        (("run", "variance", "--full", "--small"), "two sizes"),
        (("run", "variance", "--out", "a", "--report", "b"), "leave --out out"),
        (("report", "nowhere"), "no results of claims"),
    ],
)
def test_what_cannot_be_meant_is_refused(run, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("claims", *arguments)
    assert code == 2 and words in err
