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

    def run_claims(names, trial, out=None, workers=2, progress=None, threads=1):
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
    code, out, _ = run("claims", "run", "variance", "--full", "--seed", "2", "--workers", "1")
    assert code == 0
    assert "variance: supported" in out and "slope of log variance" in out and "within 0.1 of 1" in out
    assert here == [(["variance"], Trial("full", 2), None, 1)]


def test_several_have_a_line_each_and_one_that_failed_makes_the_exit_code_1(run, here):
    code, out, _ = run("claims", "run", "variance", "logs", "--language", "zh")
    assert code == 1
    assert "variance: 成立" in out and "logs: 未能检验" in out and "共检验 2 条论断" in out


@pytest.mark.parametrize(("locale", "chinese"), [("zh_CN.UTF-8", True), ("en_GB.UTF-8", False)])
def test_the_language_is_that_of_the_system_unless_given(run, here, monkeypatch, locale, chinese):
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", locale)
    for command in (("list",), ("run", "variance")):
        assert ("方差" in run("claims", *command)[1]) is chinese
        assert "方差" in run("claims", *command, "--language", "zh")[1]
        assert "方差" not in run("claims", *command, "--language", "en")[1]


def test_the_small_size_says_that_it_does_not_decide(run, here):
    out = run("claims", "run", "variance", "--small", "--language", "en")[1]
    assert "variance: supported (small, " in out and "the verdict may differ without --small" in out
    assert "不加 --small" in run("claims", "run", "variance", "--small", "--language", "zh")[1]


@pytest.mark.parametrize("option", ["--report", "--out"])
def test_a_run_that_is_stopped_says_what_is_kept_and_how_to_see_it(run, monkeypatch, tmp_path, option):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")

    def stopped(names, trial, out=None, workers=2, progress=None, threads=1):
        progress(State(2, 39, ("far",), Result("logs", "report", 0, 1.0, "", error="it broke")))
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_claims", stopped)
    folder = tmp_path / "a b"
    code, _, err = run("claims", "run", "all", option, str(folder), "--language", "en")
    assert code == 130
    text = " ".join(err.split())
    assert "Finished before the interruption: 2" in text and f"mingyue claims report '{folder}'" in text
    _, _, err = run("claims", "run", "all", "--language", "en")
    assert "Finished" not in err, "nothing is kept without a folder"


def test_groups_and_all_stand_for_their_claims(run, here):
    run("claims", "run", "scaling", "--small")
    assert here[0][:2] == (["variance", "saturation", "additive"], Trial("small", 0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "no claim is named"),
        (("run", "varianze"), "did you mean 'variance'"),
        (("run", "variance", "--full", "--small"), "--full and --small cannot be used together"),
        (("run", "variance", "--out", "a", "--report", "b"), "Leave out --out"),
        (("report", "nowhere"), "no results of claims"),
    ],
)
def test_what_cannot_be_meant_is_refused(run, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("claims", *arguments)
    assert code == 2 and words in err
