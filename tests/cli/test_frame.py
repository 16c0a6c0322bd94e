"""The frame of the command line: quick, helpful, and every way out has its exit code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from mingyue.errors import DataError

VERBS = ("train", "resume", "generate", "score", "info", "data", "doctor", "version")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_help_describes_every_verb_and_is_quick(process):
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = process("--help")
        times.append(time.perf_counter() - began)
    assert done.returncode == 0
    text = done.stdout.decode("utf-8")
    for verb in VERBS:
        assert re.search(rf"│ {verb} +\w", text), verb
    # 0.15 s where nothing else runs; the test machine may be busy with other tests.
    assert min(times) < 1.2


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["version"], []])
def test_help_and_version_load_nothing_heavy(arguments):
    code = (
        "import sys; from mingyue.cli import main; main(sys.argv[1:]); sys.stdout.flush();"
        "heavy = ('torch', 'numpy', 'pydantic', 'tokenizers', 'jinja2', 'mingyue.api', 'mingyue.config');"
        "sys.stderr.write(repr([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True)
    assert done.stderr.decode() == "[]"


def test_a_verb_loads_only_itself():
    code = (
        "import sys; from mingyue.cli import main; main(['train', '--help']);"
        "print([name for name in sys.modules if name.startswith('mingyue.cli.')], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    last = done.stdout.decode("utf-8").splitlines()[-1]
    assert "mingyue.cli.train" in last
    assert "mingyue.cli.generate" not in last
    assert last.endswith("False")


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["trian", "x.txt"], "train"),
        (["train", "x.txt", "--positons", "learned"], "--positions"),
        (["train", "x.txt", "--minuets", "3"], "--minutes"),
        (["train", "x.txt", "--learning-rat", "3"], "--learning-rate"),
        (["train", "x.txt", "--preset", "gtp2"], "gpt2"),
        (["resume", "x", "--step", "3"], "--steps"),
        (["generate", "x", "--temprature", "1"], "--temperature"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(run, arguments, nearest):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert f"Did you mean {nearest}?" in err or f'Did you mean "{nearest}"?' in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "x", "--depth", "0"], ["--depth 0", "greater than or equal to 1"]),
        (["train", "x", "--depth", "deep"], ["--depth", "deep"]),
        (["train", "x", "--held-out", "1.5"], ["--held-out 1.5"]),
        (["train", "x", "--minutes"], ["--minutes needs a value"]),
        (["train", "x", "--minutes", "1", "--steps", "2"], ["one budget", "minutes, steps"]),
        (["generate", "x", "--top-p", "1.5"], ["--top-p 1.5", "less than or equal to 1"]),
        (["generate", "x", "--temperature", "-1"], ["--temperature -1", "greater than or equal to 0"]),
        (["generate", "x", "--max-new-tokens", "3", "--min-new-tokens", "5"], ["min_new_tokens 5", "max_new_tokens 3"]),
        (["generate"], ["mingyue generate", "is missing"]),
        (["info", "a", "b"], ["unexpected argument 'b'"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_a_wrong_value_is_named_with_its_option(run, arguments, words):
    """S12: an impossible setting is a clear error."""
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    for word in words:
        assert word in err
    assert "Traceback" not in err


class Fails:
    """A verb's worth of api that raises."""

    def __init__(self, error):
        self.error = error

    def __call__(self, *args, **kwargs):
        raise self.error


def test_an_expected_error_is_its_message_and_advice(run, api):
    api.doctor = Fails(DataError("poems.txt: line 3, byte 7: not UTF-8", advice="Give --encoding gbk."))
    code, out, err = run("doctor")
    assert code == 2
    assert (out, err) == ("", "error: poems.txt: line 3, byte 7: not UTF-8\nGive --encoding gbk.\n")


@pytest.mark.parametrize("place", [0, 1])
def test_debug_anywhere_shows_the_traceback_and_keeps_the_exit_code(run, api, place):
    api.doctor = Fails(DataError("no text"))
    arguments = ["doctor"]
    arguments.insert(place, "--debug")
    code, _, err = run(*arguments)
    assert code == 2
    assert "Traceback" in err
    assert "DataError: no text" in err


def test_an_unforeseen_error_says_how_to_see_more(run, api):
    api.doctor = Fails(ZeroDivisionError("division by zero"))
    code, _, err = run("doctor")
    assert code == 1
    assert err.startswith("error: ZeroDivisionError: division by zero\n")
    assert "--debug" in err
    assert "Traceback" not in err


def test_text_in_an_error_is_never_taken_for_markup(run, api):
    api.doctor = Fails(DataError("[bold]x[/bold] :smile: [/oops]"))
    _, _, err = run("doctor")
    assert "[bold]x[/bold] :smile: [/oops]" in err


def test_ctrl_c_is_130(run, api):
    api.doctor = Fails(KeyboardInterrupt())
    code, _, err = run("doctor")
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "cp1252"])
def test_output_is_utf_8_and_errors_are_shown_whatever_the_encoding_of_the_platform(process, encoding):
    """D5: a file or pipe receives UTF-8, and no error ends the program because a code page lacks a character."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "COLUMNS": "120"}
    done = process("train", "--help", env=environment)
    assert done.returncode == 0, done.stderr
    assert "│ --held-out" in done.stdout.decode("utf-8")
    failed = process("train", "没有.txt", "--config", "不在.toml", env=environment)
    assert failed.returncode == 2, failed.stderr
    assert ".toml: cannot be read" in failed.stderr.decode(encoding)


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX pipe")
def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "mingyue", "train", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert errors == b""


def test_version_is_the_package_version(run):
    import mingyue

    assert run("version") == (0, f"mingyue {mingyue.__version__}\n", "")
    assert run("--version")[1].strip() == f"mingyue {mingyue.__version__}"


def test_completion_is_installed_and_knows_verbs_and_options(process, tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "PYTHONUTF8": "1"}
    script = tmp_path / "mingyue.bash"
    done = process("--install-completion", "--shell", "bash", "--output", str(script), env=environment)
    assert done.returncode == 0, done.stderr
    text = script.read_text(encoding="utf-8")
    for name in (*VERBS, "--positions", "--temperature", "rotary"):
        assert name in text, name
    assert str(script) in (tmp_path / ".bashrc").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_verb_and_an_option(process, tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    script = tmp_path / "mingyue.bash"
    assert process("--install-completion", "--shell", "bash", "--output", str(script), env=environment).returncode == 0
    for words, wanted in ((["mingyue", "tra"], "train"), (["mingyue", "train", "--posi"], "--positions")):
        asked = (
            f'. "{script}"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
            "$(complete -p mingyue | sed -E 's/.*-F ([^ ]+).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(["bash", "-c", asked], capture_output=True, check=True, encoding="utf-8")
        assert wanted in done.stdout.split(), done
