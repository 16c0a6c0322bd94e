"""What `doctor` finds: each warning appears when, and only when, there is something to do."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from mingyue import diagnostics
from mingyue.diagnostics import Finding, diagnose


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The speed probe is measured in one test only."""
    monkeypatch.setattr(diagnostics, "_matrix_speed", lambda threads: 5e10 * threads)


@pytest.fixture
def fit(monkeypatch):
    """A machine with nothing to complain about."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8e9, total=16e9))
    monkeypatch.setattr(diagnostics.shutil, "disk_usage", lambda place: SimpleNamespace(free=50e9))
    monkeypatch.setattr(diagnostics, "_load", lambda: 0.0)
    monkeypatch.setattr(diagnostics, "available_cores", lambda: 2)
    monkeypatch.setattr(diagnostics, "_container_cores", lambda: None)
    monkeypatch.setattr(diagnostics.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="UTF-8"))


def value(report, topic: str) -> str:
    return next(finding.value for finding in report.findings if finding.topic == topic)


def test_a_fit_machine_has_no_warnings(fit, tmp_path):
    report = diagnose(tmp_path, data_folder=tmp_path / "not" / "made" / "yet")
    assert report.warnings == []
    assert value(report, "memory") == "8.0 of 16.0 GB free"
    assert value(report, "matrix product, fp32") == "50 GFLOP/s with --threads 1, measured now"
    assert value(report, "torch") == torch.__version__


LITTLE_MEMORY = SimpleNamespace(available=1e9, total=2e9)
LITTLE_DISK = SimpleNamespace(free=5e8)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda patch: patch.setattr(psutil, "virtual_memory", lambda: LITTLE_MEMORY), "1.0 GB of memory"),
        (lambda patch: patch.setattr(diagnostics.shutil, "disk_usage", lambda place: LITTLE_DISK), "0.5 GB are free"),
        (lambda patch: patch.setattr(diagnostics, "_load", lambda: 99.0), "Other programs"),
        (lambda patch: patch.setattr(diagnostics, "_container_cores", lambda: 0.5), "--threads 1"),
        (
            lambda patch: patch.setattr(diagnostics, "_matrix_speed", lambda threads: 5e10 / threads),
            "not faster than one",
        ),
        (lambda patch: patch.setattr(sys, "stdout", SimpleNamespace(encoding="gbk")), "PYTHONUTF8"),
        (lambda patch: patch.setattr(diagnostics.os, "access", lambda place, mode: False), "not writable"),
    ],
)
def test_each_trouble_is_one_warning_that_says_what_to_do(fit, monkeypatch, tmp_path, change, word):
    change(monkeypatch)
    warnings = diagnose(tmp_path).warnings
    assert len(warnings) == 1
    assert word in warnings[0]


def test_a_missing_extra_names_what_installs_it(fit, monkeypatch, tmp_path):
    monkeypatch.setitem(diagnostics.EXTRAS, "track", ("a_package_that_nobody_has",))
    assert "pip install 'mingyue[track]'" in value(diagnose(tmp_path), "extra: track")


def test_the_extras_are_those_of_the_project_file():
    import tomllib
    from pathlib import Path

    import mingyue

    project = Path(mingyue.__file__).parents[2] / "pyproject.toml"
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    imported_as = {"vl_convert_python": "vl_convert", "pillow": "PIL"}
    for extra, modules in diagnostics.EXTRAS.items():
        packages = {re.split(r"[<>=!~\[; ]", line)[0].replace("-", "_").lower() for line in declared[extra]}
        assert {imported_as.get(package, package) for package in packages} == set(modules), extra
    assert set(declared) - {"dev"} == set(diagnostics.EXTRAS)


def test_the_report_is_plain_values(fit, tmp_path):
    report = diagnose(tmp_path)
    assert json.loads(json.dumps(report.to_dict()))["findings"][0]["topic"] == "mingyue"
    assert Finding("a", "b").warning is None


def test_the_speed_probe_leaves_the_threads_as_they_were(monkeypatch):
    monkeypatch.undo()
    before = torch.get_num_threads()
    assert diagnostics._matrix_speed(1) > 1e8
    assert torch.get_num_threads() == before


def test_limits_of_a_container_are_read(monkeypatch, tmp_path):
    for content, cores in (("150000 100000", 1.5), ("max 100000", None), ("", None)):
        path = tmp_path / "cpu.max"
        path.write_text(content, encoding="ascii")
        monkeypatch.setattr(diagnostics, "Path", lambda name, path=path: path)
        assert diagnostics._container_cores() == cores
