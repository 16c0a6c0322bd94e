"""Bring the dictionary `src/mingyue/words.zh.toml` up to date: `python docs/write_words.py`.

Its keys are every text of `tr("…")` in the source, of the help pages, and of the reference of settings. New texts are
added with an empty translation, to be filled in; texts that nothing uses any more are removed. Exits with 1 while
translations are missing. `--check` changes nothing.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console

import mingyue
from mingyue.cli import help as help_pages
from mingyue.cli.app import app
from mingyue.config.reference import reference
from mingyue.words import CHOSEN_LANGUAGE

SOURCE = Path(mingyue.__file__).parent
DICTIONARY = SOURCE / "words.zh.toml"
HELP = "help"


def texts_of_source() -> dict[str, str]:
    """Every text of `tr` with the package that uses it first. Raises `SystemExit` for one that is not written out."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "tr":
                text = node.args[0]
                if not isinstance(text, ast.Constant):
                    raise SystemExit(f"{path}:{node.lineno}: the text of tr() is not written out")
                found.setdefault(text.value, part)
    return found


def texts_of_help() -> list[str]:
    """Every text of the help pages and of the reference of settings."""
    found: dict[str, None] = {}

    class Recorder(dict[str, str]):
        def get(self, text: str, default: str | None = None) -> str | None:  # type: ignore[override]
            found.setdefault(text)
            return default

    before = help_pages.dictionary
    language = CHOSEN_LANGUAGE.set("zh")
    help_pages.dictionary = Recorder  # type: ignore[assignment]
    try:
        for command in commands():
            app.help_print(command, console=Console(file=StringIO(), width=200))
        reference("zh", help_pages.localized_help)
    finally:
        help_pages.dictionary = before
        CHOSEN_LANGUAGE.reset(language)
    return list(found)


def commands() -> Iterator[list[str]]:
    """Every command of the command line, with its sub-commands."""
    yield []
    for name in app:
        if name.startswith("-"):
            continue
        yield [name]
        yield from ([name, below] for below in app[name] if not below.startswith("-"))


def wanted() -> dict[str, list[str]]:
    """The texts that the dictionary should have, by section."""
    sections: dict[str, list[str]] = {}
    for text, part in texts_of_source().items():
        sections.setdefault(part, []).append(text)
    known = {text for texts in sections.values() for text in texts}
    sections[HELP] = [text for text in texts_of_help() if text not in known]
    return sections


def written(sections: dict[str, list[str]], known: dict[str, str]) -> str:
    """The content of the file."""
    lines = ["# The Chinese of every message, title, label and help text; see `mingyue.words`.\n"]
    for section, texts in sections.items():
        lines.append(f"\n[{section}]\n")
        lines += [f"{quoted(text)} = {quoted(known.get(text, ''))}\n" for text in texts]
    return "".join(lines)


def quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def main() -> int:
    """Write the dictionary, and report what it lacks."""
    known = {
        en: zh
        for section in tomllib.loads(DICTIONARY.read_text(encoding="utf-8")).values()
        for en, zh in section.items()
    }
    sections = wanted()
    text = written(sections, known)
    missing = [one for texts in sections.values() for one in texts if not known.get(one)]
    if "--check" not in sys.argv:
        DICTIONARY.write_text(text, encoding="utf-8", newline="\n")
    for one in missing:
        sys.stdout.write(f"no translation: {one!r}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
