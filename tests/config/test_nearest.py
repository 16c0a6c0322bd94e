"""A suggestion is a name that differs by slips of the keyboard; what is only unlike the rest gets none."""

import pytest

from mingyue.config import nearest, nearest_path
from mingyue.config.nearest import _distance

VERBS = ["train", "resume", "demo", "generate", "score", "translate", "evaluate", "inspect", "info", "claims", "data"]
OPTIONS = ["--prompt", "--prompt-file", "--prompts-file", "--top-p", "--top-k", "--seed", "--learning-rate"]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("trian", VERBS, "train"),
        ("atention", ["attention", "lens", "trace"], "attention"),
        ("modren", ["modern", "speed", "gpt2"], "modern"),
        ("--promt", OPTIONS, "--prompt"),
        ("--learning-rat", OPTIONS, "--learning-rate"),
        ("--learn", OPTIONS, "--learning-rate"),  # only begun
        ("python-doc", ["python-docs", "tang", "shakespeare"], "python-docs"),
        ("poem.txt", ["poems.txt", "prose.txt"], "poems.txt"),
        ("Poems.TXT", ["poems.txt"], "poems.txt"),
        ("minuets", ["minutes", "steps"], "minutes"),
        ("list", VERBS, None),
        ("nosuch.txt", ["english.txt", "nul.txt", "poems.txt"], None),
        ("a.txt", ["b.txt"], None),
        ("missing", ["mill.txt", "tang", "multi30k"], None),
        ("--prom", ["--prompt", "--prompt-file"], "--prompt"),
        ("en", ["fr", "de"], None),
        ("", VERBS, None),
        ("train", [], None),
    ],
)
def test_only_what_is_near_is_suggested(name, known, expected):
    assert nearest(name, known) == expected


@pytest.mark.parametrize(
    ("one", "two", "slips"),
    [("", "", 0), ("ab", "ba", 1), ("abc", "", 3), ("kitten", "sitting", 3), ("ca", "abc", 3), ("train", "trian", 1)],
)
def test_slips_by_hand(one, two, slips):
    assert _distance(one, two) == _distance(two, one) == slips


def test_a_path_is_mended_where_it_goes_wrong(tmp_path):
    (tmp_path / "corpus" / "english").mkdir(parents=True)
    (tmp_path / "corpus" / "english" / "poems.txt").touch()
    right = tmp_path / "corpus" / "english" / "poems.txt"
    for wrong in ("corpus/english/poem.txt", "corpus/englsih/poems.txt", "corpsu/english/poems.txt"):
        assert nearest_path(tmp_path / wrong) == right
    for wrong in ("corpus/english/nothing.txt", "corpus/englsih/prose.txt", "elsewhere/poems.txt"):
        assert nearest_path(tmp_path / wrong) is None
    assert nearest_path(right) is None
