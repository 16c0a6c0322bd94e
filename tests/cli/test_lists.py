"""Options that take several values are repeated, and the help of every verb says so; files of prompts."""

from __future__ import annotations

import pytest

from mingyue.cli.app import app

VERBS = [name for name in app if not name.startswith("-") and name not in ("inspect", "claims", "data")]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_repeatable_option_shows_one_value_and_says_that_it_is_repeated(run, verb, monkeypatch):
    """N8: `--prompt STR...` read as if `--prompt a b` were two prompts."""
    monkeypatch.setenv("COLUMNS", "300")
    code, page, _ = run(verb, "--help")
    assert code == 0
    for line in page.splitlines():
        if line.lstrip("│ ").startswith("-"):
            assert "..." not in line.split("  ")[0], line
    found = {line.lstrip("│ ").split()[0] for line in page.splitlines() if "epeatable" in line}
    expected = {
        "generate": {"--prompt", "--prompt-file", "--prompts-file", "--stop"},
        "score": {"--text", "--file"},
        "translate": {"--text"},
    }
    assert found == expected.get(verb, found)
    if verb == "train":
        assert {"--source", "--target", "--pairs", "--valid-source", "--valid-target", "--valid-pairs"} <= found


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (("generate", "{}", "--prompt", "春", "秋"), "--prompt … --prompt 秋"),
        (("score", "{}", "--text", "a", "b c"), "--text … --text 'b c'"),
        (("generate", "{}", "--stop", "a", "b"), "--stop … --stop b"),
    ],
)
def test_a_second_value_is_answered_with_how_to_give_it(run, text_model, line, advice):
    code, _, err = run(*(part.format(text_model) for part in line))
    assert code == 2
    assert advice in err
    assert "is repeated" not in run("generate", text_model, "--seed", "1", "2")[2]


def test_repeated_options_are_all_taken(run, text_model):
    code, out, _ = run("generate", text_model, "--prompt", "a", "--prompt", "b", "--max-new-tokens", "0")
    assert (code, out) == (0, "--- 1 of 2 ---\na\n--- 2 of 2 ---\nb\n")


def test_a_file_of_prompts_has_one_on_each_line(run, text_model, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("春\r\n\r\nautumn\n".encode())
    code, out, _ = run("generate", text_model, "--prompts-file", str(path), "--max-new-tokens", "0")
    assert (code, out) == (0, "--- 1 of 3 ---\n春\n--- 2 of 3 ---\n\n--- 3 of 3 ---\nautumn\n")
    path.write_text("one\n", encoding="utf-8")
    code, out, _ = run("generate", text_model, "--prompts-file", str(path), "--prompt", "a", "--max-new-tokens", "0")
    assert out == "--- 1 of 2 ---\na\n--- 2 of 2 ---\none\n"
    code, _, err = run("generate", text_model, "--prompts-file", "-", "--prompt", "-")
    assert (code, "twice" in err) == (2, True)


def test_a_report_of_repetition_follows_the_texts(run, text_model):
    code, out, _ = run("generate", text_model, "--prompt", "a", "--max-new-tokens", "60", "--report")
    assert code == 0
    assert "distinct 4-grams" in out
    assert "Repeated within the same generated text" in out
    code, out, _ = run("generate", text_model, "--prompt", "a", "--max-new-tokens", "9", "--report", "--json")
    assert '"repetition": {"generated": {' in out.splitlines()[-1]
