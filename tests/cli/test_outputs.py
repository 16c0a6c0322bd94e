"""Names of files on the command line: what is written replaces only its own, and a name means the same everywhere."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest

from mingyue.training import RunFolder

FEW = ("--beam", "1", "--extra-tokens", "2")
TINY = ("--steps", "2", "--depth", "1", "--d-model", "16", "--context", "16", "--threads", "1")
posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")
NOT_UTF_8 = os.fsdecode(b"caf\xe9")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Each writes a file of the given name: (suffix, arguments before the name).
WRITERS = {
    "translate": ("", lambda models: ("translate", models["pairs"], *FEW, "--text", "one two", "--output")),
    "evaluate": (
        "",
        lambda models: (
            "evaluate", models["pairs"], *FEW, "--source", "in.txt", "--target", "in.txt", "--output",
        ),
    ),
    "page": (".html", lambda models: ("inspect", "trace", models["text"], "--text", "one", "--out")),
    "picture": (".svg", lambda models: ("inspect", "surprise", models["text"], "--text", "one", "--out")),
    "numbers": (".json", lambda models: ("inspect", "surprise", models["text"], "--text", "one", "--out")),
}  # fmt: skip


@pytest.fixture(params=WRITERS)
def writer(request, here, run, text_model, pair_model):
    """A verb that writes a file: `write(name)` runs it; `write.name(stem)` is a name that it accepts."""
    (here / "in.txt").write_text("one\n", encoding="utf-8")
    suffix, command = WRITERS[request.param]

    def write(name):
        return run(*command({"text": text_model, "pairs": pair_model}), str(name))

    write.name = lambda stem: f"{stem}{suffix}"
    return write


@posix
def test_a_link_is_followed_and_a_replaced_file_keeps_its_mode(here, writer):
    target, link = here / writer.name("target"), here / writer.name("link")
    target.write_text("old", encoding="utf-8")
    target.chmod(0o600)
    link.symlink_to(target.name)
    assert writer(link)[0] == 0
    assert link.is_symlink()
    assert target.read_bytes() != b"old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@posix
def test_a_link_to_a_file_that_does_not_exist_makes_it(here, writer):
    link = here / writer.name("link")
    link.symlink_to(writer.name("new"))
    assert writer(link)[0] == 0
    assert link.is_symlink() and (here / writer.name("new")).is_file()


@posix
def test_a_new_file_has_the_mode_that_the_umask_gives(here, writer):
    before = os.umask(0o027)
    try:
        assert writer(here / writer.name("new"))[0] == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((here / writer.name("new")).stat().st_mode) == 0o640


@posix
def test_a_pipe_is_written_to_and_stays_a_pipe(here, writer):
    pipe = here / writer.name("pipe")
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    code = writer(pipe)[0]
    reader.join(60)
    assert code == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert received and received[0]


def test_only_the_file_named_is_written_and_no_temporary_file_stays(here, writer):
    name = writer.name("out")
    others = [f"{name}.part", f".{name}.{os.getpid()}.tmp", f"{name}.tmp"]
    for other in others:
        (here / other).write_text("mine", encoding="utf-8")
    before = names(here)
    assert writer(here / name)[0] == 0
    assert names(here) - before == {name}
    assert {(here / other).read_text(encoding="utf-8") for other in others} == {"mine"}


@pytest.mark.parametrize("kind", ["same", "dot", "link", "hard link"])
def test_an_output_that_is_also_the_source_is_refused_under_every_name(here, run, pair_model, kind):
    source = here / "source"
    source.write_text("one\ntwo\n", encoding="utf-8")
    name = {"same": "source", "dot": "./source"}.get(kind, "other")
    if kind == "link":
        (here / name).symlink_to("source")
    elif kind == "hard link":
        os.link(source, here / name)
    code, _, err = run("translate", pair_model, *FEW, "--source", "source", "--output", name)
    assert code == 2 and "also an input" in err
    assert source.read_text(encoding="utf-8") == "one\ntwo\n"


def test_an_output_that_is_redirected_to_standard_input_is_refused(here, process, pair_model):
    source = here / "source"
    source.write_text("one\n", encoding="utf-8")
    with source.open("rb") as file:
        done = process("translate", pair_model, *FEW, "--output", "source", stdin=file, cwd=here)
    assert done.returncode == 2 and b"also an input" in done.stderr
    assert source.read_text(encoding="utf-8") == "one\n"


def test_a_source_named_like_a_temporary_file_of_the_output_is_kept(here, run, pair_model):
    (here / "out.part").write_text("one\ntwo\n", encoding="utf-8")
    assert run("translate", pair_model, *FEW, "--source", "out.part", "--output", "out")[0] == 0
    assert (here / "out.part").read_text(encoding="utf-8") == "one\ntwo\n"
    assert len((here / "out").read_text(encoding="utf-8").splitlines()) == 2


def test_the_part_kept_after_an_error_takes_the_name_of_no_other_file(here, run, pair_model):
    (here / "in").write_bytes(b"one\n" * 16 + b"\xff\n")
    (here / "out.part").write_text("mine", encoding="utf-8")
    arguments = ("translate", pair_model, *FEW, "--batch-size", "1", "--encoding", "utf-8", "--source", "in")
    code, _, err = run(*arguments, "--output", "out")
    assert code == 2
    assert (here / "out.part").read_text(encoding="utf-8") == "mine"
    assert names(here) <= {"in", "out.part", "out.part.1"} and ("out.part.1" in err or "so far" not in err)


def test_the_files_of_the_model_that_is_read_are_not_replaced(here, run, text_model):
    shutil.copytree(text_model, here / "model")
    before = (here / "model" / "config.json").read_bytes()
    code, _, err = run("inspect", "surprise", "model", "--text", "one", "--out", "model/config.json")
    assert code == 2 and "also an input" in err
    assert (here / "model" / "config.json").read_bytes() == before
    assert run("inspect", "surprise", "model", "--text", "one", "--out", "model/mine.json")[0] == 0


def test_files_of_others_in_the_folder_of_a_report_are_kept(here, run):
    (here / "site").mkdir()
    (here / "site" / "index.html").write_text("my site", encoding="utf-8")
    code, _, err = run("claims", "run", "variance", "--small", "--report", "site")
    assert code == 2 and "index.html" in err
    (here / "site" / "variance.json").write_text('{"mine": 1}', encoding="utf-8")
    code, _, err = run("claims", "run", "variance", "--small", "--out", "site")
    assert code == 2 and "variance.json" in err
    assert (here / "site" / "index.html").read_text(encoding="utf-8") == "my site"
    assert (here / "site" / "variance.json").read_text(encoding="utf-8") == '{"mine": 1}'


# --- names ------------------------------------------------------------------------------------------------------------

PATHS = {
    "train": ("{}",),
    "train --out": ("x.txt", "--out", "{}", *TINY),
    "train --config": ("--config", "{}"),
    "train --source": ("--source", "{}", "--target", "x.txt", *TINY),
    "train --pairs": ("--pairs", "{}", *TINY),
    "train --tokenizer": ("x.txt", "--tokenizer", "{}", *TINY),
    "resume": ("{}",),
    "generate": ("{}",),
    "generate --prompt-file": ("MODEL", "--prompt-file", "{}"),
    "score --file": ("MODEL", "--file", "{}"),
    "info": ("{}",),
    "translate --source": ("PAIRS", "--source", "{}"),
    "translate --output": ("PAIRS", "--text", "one", *FEW, "--output", "{}"),
    "evaluate --source": ("PAIRS", "--source", "{}", "--target", "x.txt"),
    "evaluate --pairs": ("PAIRS", "--pairs", "{}"),
    "evaluate --output": ("PAIRS", "--source", "x.txt", "--target", "x.txt", *FEW, "--output", "{}"),
    "inspect trace --file": ("MODEL", "--file", "{}"),
    "inspect trace --out": ("MODEL", "--text", "one", "--out", "{}"),
    "claims report": ("{}",),
    "claims run --out": ("variance", "--small", "--out", "{}"),
    "claims run --report": ("variance", "--small", "--report", "{}"),
    "data get --out": ("python-docs", "--out", "{}"),
    "demo --out": ("--steps", "1", "--depth", "1", "--out", "{}"),
}
"""Every argument that is a path: the verb and option, and what to type with a name in it."""


@pytest.fixture
def typed(here, run, text_model, pair_model):
    """Run a line of `PATHS` with a name in it."""
    (here / "x.txt").write_text("one two three\n" * 40, encoding="utf-8")

    def call(path, name):
        verb = [word for word in path.split() if not word.startswith("--")]
        words = [{"MODEL": text_model, "PAIRS": pair_model}.get(word, word) for word in PATHS[path]]
        return run(*verb, *(word.replace("{}", name) for word in words))

    return call


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_name_is_refused(here, typed, path):
    code, _, err = typed(path, "")
    assert code == 2
    assert "is empty" in err
    assert names(here) == {"x.txt"} or path.startswith("train")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [("x" * 5000, "too long"), ("~nobody-of-this-name/x", "there is no user nobody-of-this-name")],
    ids=["long", "user"],
)
def test_a_name_that_cannot_be_is_refused_in_few_words(here, typed, path, name, reason):
    code, _, err = typed(path, name)
    assert code == 2
    assert reason in err and len(err) < 600


@posix
def test_the_home_folder_is_meant_by_a_tilde_in_every_path(here, run, monkeypatch, text_model, pair_model):
    home = here / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    shutil.copytree(text_model, home / "model")
    shutil.copytree(pair_model, home / "pairs")
    (home / "x.txt").write_text("one two three\n" * 40, encoding="utf-8")
    for arguments in (
        ("train", "~/x.txt", "--out=~/runs/a", "--separator", "line", *TINY),
        ("train", "--config", "~/runs/a/run.toml", "--out=~/runs/b"),
        ("train", "~/x.txt", "--tokenizer", "~/runs/a/model", "--out", "~/runs/c", *TINY),
        ("resume", "~/runs/a", "--steps", "3"),
        ("info", "~/runs/a"),
        ("score", "~/model", "--file", "~/x.txt"),
        ("translate", "~/pairs", *FEW, "--source", "~/x.txt", "--output", "~/out.txt"),
        ("inspect", "trace", "~/model", "--text", "one", "--out", "~/a.json"),
        ("claims", "run", "variance", "--small", "--out", "~/claims"),
    ):
        code, _, err = run(*arguments)
        assert code == 0, (arguments, err)
    assert {"out.txt", "a.json", "claims", "runs"} <= names(home)
    assert names(here) == {"home"}


def test_a_file_whose_name_begins_with_a_tilde_is_read(here, run, text_model):
    (here / "~tilde.txt").write_text("one", encoding="utf-8")
    assert run("score", text_model, "--file", "~tilde.txt")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes are of Linux")
def test_names_that_are_not_utf_8_work_and_are_shown_escaped(here, run, text_model, pair_model):
    (here / f"{NOT_UTF_8}.txt").write_text("one two three\n" * 40, encoding="utf-8")
    shutil.copytree(text_model, here / f"{NOT_UTF_8}-model")
    shutil.copytree(pair_model, here / f"{NOT_UTF_8}-pairs")
    text, folder = f"{NOT_UTF_8}.txt", f"{NOT_UTF_8}-run"
    said = []
    for arguments in (
        ("train", text, "--separator", "line", "--out", folder, *TINY),
        ("resume", folder, "--steps", "3"),
        ("generate", folder, "--max-new-tokens", "2"),
        ("score", f"{NOT_UTF_8}-model", "--file", text, "--json"),
        ("translate", f"{NOT_UTF_8}-pairs", *FEW, "--source", text, "--output", f"{NOT_UTF_8}-out"),
        ("inspect", "trace", f"{NOT_UTF_8}-model", "--text", "one", "--out", f"{NOT_UTF_8}.html"),
    ):
        code, out, err = run(*arguments)
        assert code == 0, (arguments, err)
        said.append(out)
    assert "caf\\xe9-run/model" in said[0]
    assert "caf\\xe9.html" in said[-1]
    assert RunFolder(here / folder).read_settings().data.sources == (text,)


# --- permissions ------------------------------------------------------------------------------------------------------


def unprivileged() -> list[str]:
    """A command that runs another one without the right of root to read and write everything."""
    if os.geteuid():
        return []
    tool = shutil.which("setpriv")
    if tool is None:
        pytest.skip("run as root, without setpriv to give up its rights")
    return [tool, "--bounding-set=-dac_override,-dac_read_search"]


@posix
@pytest.mark.parametrize(
    ("closed", "mode", "arguments", "named"),
    [
        ("model/model.safetensors", 0, ("generate", "model"), "model.safetensors"),
        ("model", 0o600, ("generate", "model"), "model"),
        ("model", 0o600, ("info", "model/model"), "model/model"),
        ("x.txt", 0, ("train", "x.txt", *TINY), "x.txt"),
        ("x.txt", 0, ("score", "model", "--file", "x.txt"), "x.txt"),
        ("x.txt", 0, ("train", "--config", "x.txt"), "x.txt"),
        ("folder", 0o600, ("train", "folder/x.txt"), "folder/x.txt"),
        ("folder", 0o500, ("train", "x.txt", "--out", "folder/run", *TINY), "folder/run"),
        ("folder", 0o500, ("inspect", "trace", "model", "--text", "one", "--out", "folder/a.json"), "folder/a.json"),
        ("folder", 0o600, ("inspect", "trace", "model", "--text", "one", "--out", "folder/a.json"), "folder/a.json"),
        ("a.json", 0o400, ("inspect", "trace", "model", "--text", "one", "--out", "a.json"), "a.json"),
    ],
)
def test_permission_denied_is_said_with_the_path(here, text_model, closed, mode, arguments, named):
    shutil.copytree(text_model, here / "model")
    (here / "folder").mkdir()
    for name in ("x.txt", "folder/x.txt", "a.json"):
        (here / name).write_text("one two three\n" * 40, encoding="utf-8")
    (here / closed).chmod(mode)
    command = [*unprivileged(), sys.executable, "-m", "mingyue", *arguments]
    done = subprocess.run(command, cwd=here, capture_output=True, encoding="utf-8", timeout=60, check=False)
    (here / closed).chmod(0o700)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr and "permission denied" in done.stderr
    assert "damaged" not in done.stderr and "No such file" not in done.stderr
    assert (here / "a.json").read_text(encoding="utf-8").startswith("one")
