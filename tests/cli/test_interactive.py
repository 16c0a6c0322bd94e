"""`generate --interactive` continues what is typed, text after text, and says what it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from mingyue.cli import interactive, main


@pytest.fixture
def typed(monkeypatch):
    """`typed(lines)`: what a person types; an exception class in place of a line is raised."""

    def install(*lines):
        waiting = iter(lines)

        def read(prompt=""):
            line = next(waiting, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", read)

    return install


def texts_of(run, text_model, typed, *lines, options=("--max-new-tokens", "6", "--temperature", "2")):
    typed(*lines)
    code, out, err = run("generate", text_model, "--interactive", *options)
    assert code == 0
    return out, err


def test_each_line_is_continued_with_the_next_seed(run, text_model, typed):
    out, err = texts_of(run, text_model, typed, "ab", "ab", "/seed 1", "ab", "/usr")
    assert "nobody answers" in err
    assert "Ctrl-D leaves" in err
    alone = [
        run("generate", text_model, "--prompt", prompt, "--seed", seed, "--max-new-tokens", "6", "--temperature", "2")
        for prompt, seed in (("ab", "1"), ("ab", "2"), ("ab", "1"), ("/usr", "2"))
    ]
    assert out == "".join(text for _, text, _ in alone)


def test_a_command_changes_the_settings_and_a_wrong_value_does_not(run, text_model, typed):
    out, err = texts_of(run, text_model, typed, "/temperature 0", "a", "/temperature x", "/temperature -1", "a")
    greedy = run("generate", text_model, "--prompt", "a", "--max-new-tokens", "6", "--temperature", "0")[1]
    assert out == greedy * 2
    assert err.count("temperature = ") == 2


def test_ctrl_c_ends_the_current_text_only(run, text_model, typed, monkeypatch):
    shown = []

    def interrupted(model, prompt, settings):
        shown.append(prompt)
        if prompt == "a":
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(interactive, "stream_text", interrupted)
    texts_of(run, text_model, typed, KeyboardInterrupt, "a", KeyboardInterrupt, "b")
    assert shown == ["a", "b"]


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal to oneself")
def test_ctrl_c_of_a_terminal_again_and_again_leaves_the_loop_running(text_model):
    """The program counts a second Ctrl-C as one to leave at once; here each ends one text."""
    endless = ["--min-new-tokens", "100000", "--max-new-tokens", "100000"]  # a text that ended would lose the next one
    command = [sys.executable, "-m", "mingyue", "generate", text_model, "--interactive", *endless]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout
        for prompt in (b"first", b"second", b"third"):
            process.stdin.write(prompt + b"\n")
            process.stdin.flush()
            seen = b""
            while prompt not in seen:
                seen += process.stdout.read1()
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("option", [("--prompt", "a"), ("--json",), ("--samples", "2"), ("--no-stream",)])
def test_what_has_no_effect_is_refused(text_model, option, capsys):
    assert main(("generate", text_model, "--interactive", *option)) == 2
    assert "--interactive" in capsys.readouterr().err
