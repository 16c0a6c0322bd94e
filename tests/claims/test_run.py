"""Claims are tested one by one in processes of their own, and what goes wrong with one stops no other."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mingyue.claims import run as running
from mingyue.claims.claim import Finding, Measurement, Number, Trial
from mingyue.claims.registry import GROUPS, NAMES, find, group_of, written
from mingyue.claims.result import Result
from mingyue.claims.run import describe_machine, run_claim, run_claims
from mingyue.claims.summary import command_of, counts, machine_of, number_text
from mingyue.errors import DataError, SettingsError
from mingyue.words import Words


def result(name="variance", verdict="supported", **changes):
    finding = Finding(verdict, Words("because", "因为"))
    measurement = Measurement(
        {"slope": Number(1.0, 0.5, math.inf), "none": Number.exact(math.nan)},
        {"rows": [{"x": 1, "y": 2.5, "z": math.inf, "name": "甲"}]},
    )
    return Result(name, "report", 7, 1.5, "a machine", measurement, finding, **changes)


def test_every_name_belongs_to_one_group():
    assert len(NAMES) == len(set(NAMES)) == 39
    assert [name for name in NAMES if name not in GROUPS[group_of(name)]] == []


def test_every_claim_is_written():
    assert written() == list(NAMES)


@pytest.mark.parametrize("page", ["claims.md", "claims.zh.md"])
def test_the_page_about_claims_lists_them_all_in_order(page):
    lines = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8").splitlines()
    told = [line.split("`")[1] for line in lines if line.startswith("| `") and "`" in line]
    assert [name for name in told if "." not in name and name not in ("figures", "results")] == list(NAMES)


@pytest.mark.parametrize("name", written())
def test_a_claim_is_where_its_name_says_and_speaks_both_languages(name):
    claim = find(name)
    assert (claim.name, claim.group) == (name, group_of(name))
    said = [claim.claim, claim.prediction, claim.method, *claim.labels.values()]
    for words in [*said, *([claim.correction] if claim.correction else [])]:
        assert words.en.strip() and words.zh.strip()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(SettingsError, match="did you mean 'variance'"):
        find("varianz")


def test_a_result_survives_the_disk_with_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / "variance.json"
    result().save(path)
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    back = Result.load(path)
    assert back.finding == result().finding
    assert back.measurement.numbers["slope"] == Number(1.0, 0.5, math.inf)
    assert math.isnan(back.measurement.numbers["none"].value)
    assert back.measurement.tables["rows"] == [{"x": 1, "y": 2.5, "z": None, "name": "甲"}]
    assert (back.seed, back.size, back.failed) == (7, "report", False)


@pytest.mark.parametrize(
    "damage", [{"format": 2}, {"verdict": "certainly"}, {"size": "huge"}, {"numbers": {"a": 1}}, {"claim": None}]
)
def test_what_is_not_a_result_is_refused(tmp_path, damage):
    path = tmp_path / "variance.json"
    value = result().to_dict() | damage
    if damage == {"claim": None}:
        del value["claim"]
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(DataError):
        Result.load(path)


@pytest.mark.parametrize(
    ("earlier", "verdict"),
    [
        ("holds", "supported"),
        ("holds with a correction", "supported with a correction"),
        ("does not hold here", "not supported"),
    ],
)
def test_results_saved_with_earlier_names_of_verdicts_still_load(tmp_path, earlier, verdict):
    path = tmp_path / "variance.json"
    path.write_text(json.dumps(result().to_dict() | {"verdict": earlier}), encoding="utf-8")
    assert Result.load(path).finding.verdict == verdict


def test_claims_that_take_longest_are_started_first(monkeypatch):
    started = []

    def run(self, names, count, progress):
        started.extend(names)
        return {name: result(name) for name in names}

    monkeypatch.setattr(running._Pool, "run", run)
    found = run_claims(["variance", "additive", "orthogonal-heads"], Trial("small"), workers=1)
    assert started == ["additive", "orthogonal-heads", "variance"]
    assert [one.name for one in found] == ["variance", "additive", "orthogonal-heads"]


def test_an_error_in_a_claim_is_its_result(monkeypatch):
    def fails(trial):
        raise ZeroDivisionError("no seeds")

    claim = find("variance")
    monkeypatch.setattr(running, "find", lambda name: replace(claim, measure=fails))
    found = run_claim("variance", Trial("small"))
    assert found.failed and found.measurement is None
    assert "ZeroDivisionError: no seeds (test_run.py" in found.error


def test_claims_run_in_other_processes_and_a_failure_stops_no_other(tmp_path, monkeypatch):
    real = running.group_of
    monkeypatch.setattr(running, "group_of", lambda name: "scaling" if name == "nonsense" else real(name))
    Result("nonsense", "small", 3, 1.0, "a machine", error="left by an earlier run").save(tmp_path / "nonsense.json")
    states = []
    found = run_claims(["nonsense", "variance"], Trial("small", 3), tmp_path, workers=1, progress=states.append)
    assert [one.name for one in found] == ["nonsense", "variance"]
    assert "no claim 'nonsense'" in found[0].error
    assert found[1].finding is not None and (found[1].size, found[1].seed) == ("small", 3)
    assert Result.load(tmp_path / "variance.json").finding == found[1].finding
    assert [state.finished.name for state in states if state.finished] == ["nonsense", "variance"]
    assert states[0].running == ("nonsense",) and states[-1].done == states[-1].total == 2
    here = run_claim("variance", Trial("small", 3))
    assert here.measurement.numbers == found[1].measurement.numbers


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_process_that_dies_is_told_of_and_another_takes_its_place():
    killed = []

    def kill_the_first(state):
        if state.running and not killed:
            for child in psutil.Process().children():
                if "spawn_main" in " ".join(child.cmdline()):
                    killed.append(child.pid)
                    os.kill(child.pid, signal.SIGKILL)

    found = run_claims(["logs", "variance"], Trial("small"), workers=1, progress=kill_the_first)
    assert "ended with code -9" in found[0].error
    assert found[1].finding is not None
    assert not [child for child in psutil.Process().children() if child.pid in killed]


def test_no_workers_are_refused():
    with pytest.raises(SettingsError, match="workers = 0"):
        run_claims(["variance"], Trial("small"), workers=0)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number.exact(1234.0, "steps"), "1,234 steps"),
        (Number(0.5, 0.25, 0.75), "0.5 [0.25, 0.75]"),
        (Number(1.0, 1.0 - 2e-7, 1.0 + 3e-7), "1 ± 3e-07"),
        (Number.exact(3.2e-8), "3.2e-08"),
        (Number.exact(123.456), "123"),
        (Number.exact(math.inf), "inf"),
        (Number(2.0, 1.0, 4.0, "nats"), "2 [1, 4] nats"),
    ],
)
def test_numbers_are_told_with_their_interval(number, text):
    assert number_text(number) == text


def test_units_and_the_machine_are_said_in_the_language_of_the_reader():
    """Tables in Chinese had `1,234 steps` and `one thread a claim`."""
    units = {"nats": "nat", "steps": "步", "tokens": "个 token", "bytes": "字节", "×": "×", "": ""}
    for unit, chinese in units.items():
        assert number_text(Number.exact(2.0, unit), "zh") == f"2 {chinese}".rstrip()
        assert number_text(Number.exact(2.0, unit), "en") == f"2 {unit}".rstrip()
    for threads, said in ((1, "每条论断 1 个线程；Python"), (2, "每条论断 2 个线程；Python")):
        machine = describe_machine("2.0", threads)
        words = machine_of(replace(result(), machine=machine))
        assert words.en == machine and said in words.zh and "cores" not in words.zh
    assert machine_of(replace(result(), machine="a machine")).zh == "a machine"


def test_a_unit_has_one_name_in_chinese():
    """V5: nat and nats stood side by side."""
    texts = Path(running.__file__).parent.rglob("*.zh.toml")
    assert [path.name for path in texts if re.search(r"\bnats\b(?! =)", path.read_text(encoding="utf-8"))] == []


def test_every_unit_of_a_claim_has_its_chinese():
    """In every call such as `Number.exact(steps, "steps")`."""
    made = {"exact", "mean", "share", "median", "largest"}
    calls = [
        node
        for path in Path(running.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in made
    ]
    last = [call.args[-1].value for call in calls if call.args and isinstance(call.args[-1], ast.Constant)]
    units = {value for value in last if isinstance(value, str) and value.isascii() and value not in ("MiB", "d_model")}
    assert {"nats", "steps", "tokens"} <= units
    assert {unit for unit in units if number_text(Number.exact(2.0, unit), "zh").endswith(f" {unit}")} == set()


def test_counts_are_honest():
    results = [result(), result(verdict="not supported"), Result("logs", "full", 0, 1.0, "", error="broke")]
    assert counts(results).en == (
        "3 claims tested. supported: 1, supported with a correction: 0, not supported: 1, could not be tested: 1."
    )
    assert "不成立 1 条" in counts(results).zh
    assert command_of(results[2]) == "mingyue claims run logs --full --seed 0"


@pytest.mark.parametrize(
    "change",
    [{"claim": 5}, {"claim": "mask"}, {"seed": "1"}, {"seconds": None}, {"machine": []}, {"error": 5}, {"size": []},
     {"numbers": []}, {"numbers": {"a": 5}}, {"tables": "x"}, {"verdict": []}, {"verdict": "supported", "reason": 5}],
    ids=str,
)  # fmt: skip
def test_a_saved_result_with_other_types_is_an_error_of_the_file(tmp_path, change):
    path = tmp_path / "variance.json"
    sound = {"format": 1, "claim": "variance", "size": "small", "seed": 0, "seconds": 1.0, "machine": "m", "error": "e",
             "numbers": {}, "tables": {}}  # fmt: skip
    path.write_text(json.dumps({**sound, **change}), encoding="utf-8")
    with pytest.raises(DataError, match=r"variance\.json"):
        Result.load(path)
    path.write_text("[" * 100_000 + "]" * 100_000, encoding="utf-8")
    with pytest.raises(DataError, match=r"variance\.json"):
        Result.load(path)
