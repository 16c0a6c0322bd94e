"""Standard streams that are closed, full or narrow, and values that look like options: one line, and an exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mingyue.cli.screen import show, table

posix = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
MINGYUE = f'"{sys.executable}" -m mingyue'


def shell(line, **options):
    """Run a line of shell in which `mingyue` is this program; returns (exit code, stdout, stderr)."""
    line = line.replace("mingyue", MINGYUE)
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False, **options)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def one_error(err: str) -> bool:
    return err.startswith("error: ") and "Traceback" not in err and "Unexpected" not in err and err.count("error:") == 1


@posix
@pytest.mark.parametrize(
    "verb", ["generate MODEL --max-new-tokens 2", "info MODEL", "info MODEL --json", "train --help"]
)
@pytest.mark.parametrize(
    ("stream", "reason"), [(">&-", "closed"), pytest.param(">/dev/full", "the disk is full", marks=full)]
)
def test_a_result_that_cannot_be_written_is_an_error(text_model, verb, stream, reason):
    code, _, err = shell(f"mingyue {verb} {stream}".replace("MODEL", text_model))
    assert code == 2
    assert one_error(err) and "standard output" in err and reason in err


@posix
def test_input_that_is_closed_is_an_error(text_model, pair_model):
    for verb in (f"translate {pair_model}", f"score {text_model} --text -", "train - --steps 1 --out /nowhere/x"):
        code, _, err = shell(f"mingyue {verb} <&-")
        assert code == 2, err
        assert one_error(err)


@posix
def test_errors_that_nobody_can_read_change_no_exit_code(text_model):
    assert "vocab_size" in shell(f"mingyue info {text_model} 2>&-")[1]
    assert shell("mingyue info nosuch 2>&-")[0] == 2


@posix
@full
def test_a_run_goes_on_when_its_progress_cannot_be_written(tmp_path):
    (tmp_path / "a.txt").write_text("one two three\n" * 40, encoding="utf-8")
    options = "--steps 2 --depth 1 --d-model 16 --context 16 --threads 1"
    for number, stream in enumerate((">&-", ">/dev/full")):
        code, _, err = shell(f"mingyue train a.txt --out r{number} {options} {stream}", cwd=tmp_path)
        assert code == 2 and one_error(err) and "standard output cannot be written" in err
        assert (tmp_path / f"r{number}" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("columns", [0, 1, 2, 7, 19, 10**6])
def test_help_ends_at_every_width(process, columns):
    done = process("train", "--help", env={**os.environ, "COLUMNS": str(columns)})
    assert done.returncode == 0
    assert "--steps" in done.stdout.decode("utf-8")
    assert len(done.stdout) < 10**6


@pytest.mark.parametrize("columns", [0, 1, 5])
def test_a_table_in_a_terminal_without_columns_is_printed(monkeypatch, columns):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = table("token", "-log P", "P", right=("P",))
    rows.add_row("word", "1.0000", "36.79%")
    show(rows)
    assert "token" in screen.getvalue()


@posix
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "gbk", "latin-1:strict"])
def test_text_goes_to_files_and_pipes_as_utf_8(text_model, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    code, out, _ = shell(f"mingyue generate {text_model} --prompt 床é😀 --max-new-tokens 0", env=environment)
    assert (code, out) == (0, "床é😀\n")


@pytest.mark.parametrize("text", ["- the river", "--- a", "-–", "-- the mill", "—", "-\n-"])
def test_a_value_that_begins_with_a_dash_is_taken(run, text_model, text):
    code, out, err = run("generate", text_model, "--prompt", text, "--max-new-tokens", "0")
    assert (code, out, err) == (0, f"{text}\n", "")
    assert run("score", text_model, "--text", text)[0] == 0
    assert run("generate", text_model, "--prompt", "a", "--stop", text, "--max-new-tokens", "0")[0] == 0


@pytest.mark.parametrize("value", ["-river", "--river", "--json"])
def test_a_value_that_looks_like_an_option_is_refused_with_the_way_to_write_it(run, text_model, value):
    code, _, err = run("generate", text_model, "--prompt", value)
    assert code == 2 and "--prompt needs a value" in err and "--prompt='-…'" in err
    code, out, _ = run("generate", text_model, f"--prompt={value}", "--max-new-tokens", "0")
    assert (code, out) == (0, f"{value}\n")


def test_a_negative_number_is_still_a_number(run):
    code, _, err = run("generate", "x", "--temperature", "-1")
    assert code == 2 and "--temperature -1" in err


# --- characters that a terminal obeys ---------------------------------------------------------------------------------

OBEYED = ("\x1b[31m", "\x07", "\x9b", "\u202e", "\x0c")


def test_errors_notes_and_tables_hold_no_character_that_a_terminal_obeys(run, text_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for hostile in OBEYED:
        code, out, err = run("info", f"no{hostile}such")
        assert code == 2 and hostile not in err
        code, out, err = run("generate", text_model, "--prompt", "a", "--colour", hostile)
        assert code == 2 and hostile not in err
        name = f"a{hostile}.svg"
        _, out, err = run("inspect", "surprise", text_model, "--text", f"a{hostile}b", "--out", name)
        assert hostile not in out.replace(name, "") and hostile not in err
    rows = table("token")
    rows.add_row("".join(OBEYED))
    show(rows)


def test_cells_of_a_table_are_shown_with_symbols(capsys):
    rows = table("token")
    rows.add_row("".join(OBEYED))
    show(rows)
    assert not set(OBEYED[0][0] + "\x07\x9b\u202e\x0c") & set(capsys.readouterr().out)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses are of Linux")
@pytest.mark.parametrize("kibibytes", [300_000, 8_000_000])
def test_a_limit_of_memory_is_said_in_one_line(text_model, tmp_path, kibibytes):
    pytest.importorskip("vl_convert")
    picture = tmp_path / "a.svg"
    verb = f"mingyue inspect surprise {text_model} --text one --out {picture}"
    code, _, err = shell(f"ulimit -v {kibibytes}; {verb}")
    assert code == 2
    assert one_error(err) and ("memory" in err or "address space" in err)
    assert not picture.exists()
