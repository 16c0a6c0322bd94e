"""The documents are true: their Python runs, their links lead somewhere, their commands parse, both languages agree."""

from __future__ import annotations

import io
import re
import shlex
import tokenize
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ONE_LANGUAGE = {"dependencies.md"}
"""Made from the code, or for those who work on it: names and one-line remarks."""

PAGES = sorted(DOCS.glob("*.md"))
TOP = [path for path in (ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md") if path.exists()]
ENGLISH = [page for page in PAGES if not page.name.endswith(".zh.md")]
TRANSLATED = [page for page in ENGLISH if page.name not in ONE_LANGUAGE]
_FENCE = re.compile(r"^( {0,3})(`{3,})([^\n`]*)\n(.*?)^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: what it says that it is, its content, and the line of the page that it begins at."""

    language: str
    text: str
    line: int


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    text = read(page)
    return [Block(m[3].strip(), m[4], text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def prose(page: Path) -> str:
    """The page without fenced blocks; line numbers stay."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), read(page))


def plain(page: Path) -> str:
    """The prose without code spans."""
    return _CODE_SPAN.sub("", prose(page))


def headings(page: Path) -> list[tuple[int, str]]:
    return [(len(marks), title) for marks, title in _HEADING.findall(prose(page))]


def twin(page: Path) -> Path:
    return page.with_name(page.name.removesuffix(".md") + ".zh.md")


def anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def short(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_comments(language: str, text: str) -> str:
    """The code alone: comments may be in the language of the page."""
    if language == "python":
        kept = [
            (kind, content)
            for kind, content, *_ in tokenize.generate_tokens(io.StringIO(text).readline)
            if kind not in (tokenize.COMMENT, tokenize.NL)
        ]
        return repr(kept)
    if language in ("console", "bash", "sh", "toml"):
        lines = (re.sub(r"(^|\s+)#.*$", "", line).rstrip() for line in text.split("\n"))
        return "\n".join(line for line in lines if line)
    return text


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [page for page in ENGLISH if any(block.language == "python" for block in blocks(page))], ids=short
)
def test_python_in_the_documents_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINGYUE_DATA", str(tmp_path / "known"))
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            source = "\n" * block.line + block.text  # a traceback then names the line of the page
            exec(compile(source, str(page), "exec"), names)


# --- two languages ---------------------------------------------------------------------------------------------------


def test_every_page_is_there_in_both_languages():
    missing = [twin(page).name for page in TRANSLATED if not twin(page).exists()]
    alone = [page.name for page in PAGES if page.name.endswith(".zh.md") and not _english(page).exists()]
    assert not missing + alone


@pytest.mark.parametrize("page", TRANSLATED, ids=short)
def test_both_languages_have_the_same_sections(page):
    ours, theirs = headings(page), headings(twin(page))
    assert [level for level, _ in ours] == [level for level, _ in theirs], (ours, theirs)


@pytest.mark.parametrize("page", TRANSLATED, ids=short)
def test_both_languages_have_the_same_code(page):
    ours, theirs = blocks(page), blocks(twin(page))
    assert [block.language for block in ours] == [block.language for block in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        if mine.language not in ("text", ""):  # drawings and trees carry remarks
            same = without_comments(mine.language, mine.text) == without_comments(other.language, other.text)
            assert same, f"{page.name}:{mine.line} differs from {twin(page).name}:{other.line}"


@pytest.mark.parametrize("page", TRANSLATED, ids=short)
def test_both_languages_have_the_same_tables(page):
    """A row, or a name in it, that was added to one page only would be missed by every reader of the other."""
    ours, theirs = rows(page), rows(twin(page))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert names_and_cells(mine) == names_and_cells(other), f"{mine}\n{other}"


def rows(page: Path) -> list[str]:
    return [line for line in prose(page).split("\n") if line.startswith("|")]


def names_and_cells(row: str) -> tuple[list[str], int]:
    """The code spans of a table's row, and how many cells it has."""
    return sorted(span for _, span in _CODE_SPAN.findall(row)), _CODE_SPAN.sub("", row).count("|")


@pytest.mark.parametrize(
    ("page", "title", "refusals"),
    [
        ("run-folder.md", "Which settings may change", ("refused", "not taken")),
        ("run-folder.zh.md", "哪些设置可以改", ("拒绝", "不接受")),
    ],
)
def test_the_rules_of_resume_are_those_of_the_code(page, title, refusals):
    """A section of run.toml, such as `[model]`, stands for all of its settings."""
    from mingyue.config import TrainSettings
    from mingyue.training import RULES

    sections = {f"[{name}]": list(owner.model_fields) for name, owner in TrainSettings.groups().items()}
    section = prose(DOCS / page).split(f"## {title}\n")[1].split("\n## ")[0]
    told: dict[str, bool] = {}
    for line in section.split("\n"):
        cells = line.split("|")
        if len(cells) > 3 and "`" in cells[1]:
            names = [name for _, span in _CODE_SPAN.findall(cells[1]) for name in sections.get(span, [span])]
            told |= dict.fromkeys(names, not any(word in cells[2] for word in refusals))
    assert told == {name: rule.allowed for name, rule in RULES.items()}


def _english(page: Path) -> Path:
    return page.with_name(page.name.removesuffix(".zh.md") + ".md")


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=short)
def test_every_relative_link_leads_somewhere(page):
    wrong = []
    for target in _LINK.findall(plain(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(target)
        elif fragment and file.suffix == ".md" and fragment not in {anchor(title) for _, title in headings(file)}:
            wrong.append(f"{target}: no such heading")
    assert not wrong


def test_the_index_of_each_language_names_every_page_of_it():
    for name, ending in (("README.md", ".md"), ("README.zh.md", ".zh.md")):
        index = read(DOCS / name)
        wanted = [twin(page).name if ending == ".zh.md" and page in TRANSLATED else page.name for page in ENGLISH]
        assert not [page for page in wanted if page != name and f"({page})" not in index]


# --- commands --------------------------------------------------------------------------------------------------------


def commands(page: Path) -> list[tuple[int, str, bool]]:
    """(line, command, whole) of every `mingyue …`: whole in a block, maybe only its beginning in a sentence."""
    found = []
    for block in blocks(page):
        if block.language in ("console", "bash", "sh", ""):
            joined = block.text.replace("\\\n", "  ")
            for offset, line in enumerate(joined.split("\n"), start=1):
                found += [(block.line + offset, part, True) for part in _calls(line)]
    text = prose(page)
    for span in _CODE_SPAN.finditer(text):
        found += [(text.count("\n", 0, span.start()) + 1, part, False) for part in _calls(" ".join(span[2].split()))]
    return found


def _calls(line: str) -> list[str]:
    parts = (part.strip().removeprefix("$ ") for part in re.split(r" [|;] | && ", line))
    return [part for part in parts if re.match(r"mingyue( |$)", part)]


def problem(command: str, *, whole: bool) -> str | None:
    """What the real parser has against a command, without running it."""
    from cyclopts import CycloptsError, MissingArgumentError

    from mingyue.cli.app import app
    from mingyue.cli.main import _take_common

    words = shlex.split(command, comments=True)[1:]
    if not whole:
        words = [word for word in words if word not in ("…", "...")]
    if ">" in words:
        words = words[: words.index(">")]
    tokens, _, _ = _take_common(words)
    try:
        app.parse_args(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        return str(error) if whole else None
    except CycloptsError as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=short)
def test_every_command_shown_is_one_that_the_program_takes(page):
    told = [(line, command, problem(command, whole=whole)) for line, command, whole in commands(page)]
    assert not [f"{page.name}:{line}: {command}: {what}" for line, command, what in told if what]


def options() -> set[str]:
    from mingyue.cli.app import app

    known = {"--help", "--version", "--debug", "--language"}
    from mingyue.cli.inspect import VIEWS

    verbs = "train,resume,demo,generate,score,translate,evaluate,info,serve,data list,data get,doctor"
    verbs += ",claims list,claims run,claims report" + "".join(f",inspect {view}" for view in VIEWS)
    for path in verbs.split(","):
        verb = app
        for name in path.split():
            verb = verb[name]
        known |= {name for argument in verb.assemble_argument_collection() for name in argument.names}
    return known


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=short)
def test_every_view_shown_stands_before_the_model(page):
    from mingyue.cli.inspect import VIEWS

    shown = [shlex.split(command, comments=True)[1:] for _, command, _ in commands(page)]
    views = [words[1] for words in shown if words[:1] == ["inspect"] and len(words) > 1]
    assert not [view for view in views if view not in (*VIEWS, "VIEW", "--help")]


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=short)
def test_every_option_named_in_a_sentence_is_one_that_the_program_has(page):
    known = options()
    spans = (" ".join(span.split()) for _, span in _CODE_SPAN.findall(prose(page)))
    named = {word for span in spans if span.startswith("--") for word in re.findall(r"--[a-z][\w-]*", span)}
    assert not named - known


@pytest.mark.parametrize(
    ("command", "good"),
    [
        ("mingyue train poems.txt --minutes 10", True),
        ("mingyue train poems.txt --minuets 10", False),
        ("mingyue trian poems.txt", False),
        ("mingyue train poems.txt --preset gpt5", False),
        ("mingyue generate", False),
        ("mingyue train --help", True),
    ],
)
def test_the_check_of_commands_can_fail(command, good):
    assert (problem(command, whole=True) is None) is good


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=short)
def test_formulas_are_written_so_that_github_shows_them(page):
    r"""A $ needs a space before it and none after; Markdown eats \, and \{ inside; }_ may begin an emphasis."""
    wrong = []
    for number, line in enumerate(plain(page).split("\n"), start=1):
        if line.count("$") % 2:
            wrong.append(f"{number}: a $ without its pair")
        for match in re.finditer(r"(^|.)\$([^$]+)\$(.|$)", line):
            before, formula, after = match.groups()
            if before not in ("", " ", "|") or re.match(r"\w", after):
                wrong.append(f"{number}: ${formula}$ stands too close to its neighbour")
            if formula != formula.strip() or re.search(r"\\[^a-zA-Z]|\}_", formula):
                wrong.append(f"{number}: ${formula}$")
    assert not wrong
