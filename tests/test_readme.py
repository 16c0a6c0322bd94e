"""The README's promises: its commands run, in both languages, and both languages show the same commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from mingyue.cli import main

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.zh.md")


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[str]:
    return [line for block in blocks(name, "console") for line in block.splitlines() if line.strip()]


def shortened(command: str) -> list[str]:
    """The arguments after `mingyue`, with a long budget replaced by a few steps of a tiny model."""
    arguments = shlex.split(command)
    assert arguments[0] == "mingyue", command
    tiny = ["--steps", "3", "--context", "32", "--batch-tokens", "64"]
    of_pairs = ["--d-model", "16", "--n-heads", "2", "--n-layers", "1", "--tokenizer-size", "300"]
    budget = {
        "train": [*tiny, *(of_pairs if "--source" in arguments else ["--depth", "1"])],
        "init": ["--steps", "3", "--batch-tokens", "64"],
        "resume": ["--steps", "5"],
    }
    if "--minutes" in arguments:
        at = arguments.index("--minutes")
        arguments[at : at + 2] = budget["init" if "--init" in arguments else arguments[1]]
    if arguments[1] == "demo":
        arguments += ["--steps", "2", "--d-model", "16", "--n-heads", "2", "--n-layers", "1"]
    return arguments[1:]


def write_pairs() -> None:
    """Small files under the names that the README gives them."""
    for name, count in {"train": 60, "val": 6, "test": 4}.items():
        for side, word in {"en": "poem", "de": "Gedicht"}.items():
            lines = "".join(f"{name} {word} {number * number}\n" for number in range(count))
            Path(f"{name}.{side}").write_text(lines, encoding="utf-8")
    Path("input.txt").write_text("train poem 7\n\ntest poem 9\n", encoding="utf-8")


@pytest.mark.parametrize("name", READMES)
def test_every_command_of_the_readme_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINGYUE_DATA", str(tmp_path / "data"))
    poems = "\n\n".join(f"床前明月光，疑是地上霜。举头望明月，低头思故乡。第{number}首" for number in range(60))
    for file in ("poems.txt", "more-poems.txt"):
        Path(file).write_text(poems, encoding="utf-8")
    write_pairs()
    found = commands(name)
    assert len(found) >= 12
    for command in found:
        code = main(shortened(command))
        shown = capsys.readouterr()
        assert code == 0, f"{command}\n{shown.out}\n{shown.err}"
    assert Path("output.txt").read_text(encoding="utf-8").count("\n") == 3
    for block in blocks(name, "python"):
        exec(compile(block, name, "exec"), {})


def test_the_request_of_the_readme_has_an_answer_of_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that the first command starts, asked what the second asks, over a real socket."""
    pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    Path("poems.txt").write_text("春风又绿江南岸，明月何时照我还。\n" * 60, encoding="utf-8")
    assert main(["train", "poems.txt", "--out", "runs/poems", "--steps", "2", "--depth", "1", "--context", "32"]) == 0
    start, request = blocks("README.md", "sh")
    where, header, body = re.fullmatch(
        r"curl http://127\.0\.0\.1:8000(\S+) -H '([^']+)' \\\n  -d '(.*)'\n", request
    ).groups()
    name, value = header.split(": ")
    command = [sys.executable, "-m", *shlex.split(start), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8") as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", next(server.stdout))[0]
            asked = urllib.request.Request(address + where, body.encode(), {name: value})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                found = json.load(answer)
        finally:
            server.terminate()
    (shown,) = blocks("README.md", "json")
    assert set(found) == set(json.loads(shown)) and set(found["choices"][0]) == set(json.loads(shown)["choices"][0])
    assert server.returncode == 0


def test_both_readmes_show_the_same_commands() -> None:
    kinds = ("console", "sh", "json", "python")
    english, chinese = ([block for kind in kinds for block in blocks(name, kind)] for name in READMES)
    assert english == chinese


@pytest.mark.parametrize("name", READMES)
def test_links_of_the_readme_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
