"""Every picture of README and docs is drawn by docs/draw_figures.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mingyue.claims.claim import Trial
from mingyue.claims.registry import find
from mingyue.claims.run import run_claim

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("draw_figures", DOCS / "draw_figures.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_pictures_that_are_shown_are_those_that_are_drawn_and_those_that_are_there(script):
    """V9: a picture that nobody can draw again is of an older look sooner or later."""
    there = {path.name for path in (DOCS / "figures").iterdir()}
    assert script.pictures_shown() == script.all_pictures() == there


def test_every_figure_that_is_chosen_exists(script):
    for name, chosen in script.FIGURES.items():
        assert max(chosen) < len(find(name).figures), name


def test_claims_are_drawn_and_what_is_not_is_listed(script, tmp_path, capsys):
    pytest.importorskip("vl_convert")
    run_claim("mask", Trial("small")).save(tmp_path / "mask.json")
    script.main(["--claims", str(tmp_path), "--out", str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"mask.en.svg", "mask.zh.svg"}
    told = capsys.readouterr().out
    assert "drawn: mask.zh.svg" in told and "not drawn, since its data are not there: tying.en.svg" in told
