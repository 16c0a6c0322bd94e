"""A mistyped command, option, choice, path or corpus is answered with the right one; the lists are complete."""

import pytest

from mingyue.cli.app import app


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (("trian", "a.txt"), "Did you mean train?"),
        (("generate", "r", "--promt", "x"), "Did you mean --prompt?"),
        (("inspect", "atention", "r"), "Did you mean attention?"),
        (("train", "a.txt", "--preset", "modren"), "Did you mean modern?"),
        (("train", "shakespere"), "There is a known corpus shakespeare."),
        (("train", "poem.txt"), "Did you mean poems.txt?"),
        (("generate", "rns/poems"), "Did you mean runs/poems?"),
        (("data", "lst"), "Did you mean list?"),
        (("claims", "run", "lokup"), "did you mean 'lookup'"),
    ],
)
def test_a_typo_gets_the_right_name(run, tmp_path, monkeypatch, line, meant):
    """N9: some typos got none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poems.txt").write_text("a poem", encoding="utf-8")
    (tmp_path / "runs" / "poems").mkdir(parents=True)
    code, _, err = run(*line)
    assert code == 2
    assert meant in err


@pytest.mark.parametrize(
    "line",
    [
        ("list",),
        ("train", "nosuch.txt"),
        ("train", "a.txt", "--preset", "x"),
        ("generate", "nothing/here"),
        ("train", "--source", "missing", "--target", "missing2"),
    ],
)
def test_what_is_like_nothing_gets_no_suggestion(run, tmp_path, monkeypatch, line):
    """N9: `train nosuch.txt` suggested english.txt, `mingyue list` claims."""
    monkeypatch.chdir(tmp_path)
    for name in ("english.txt", "nul.txt", "a.txt"):
        (tmp_path / name).write_text("a text", encoding="utf-8")
    code, _, err = run(*line)
    assert code == 2
    assert "mean" not in err
    assert "There is a known corpus" not in err


def test_the_lists_are_complete(run):
    _, _, err = run("no-such")
    shown = [name for name in app if not name.startswith("-") and app[name].show]
    assert len(shown) > 10
    assert all(f" {name}," in err or f" {name}." in err for name in shown)
