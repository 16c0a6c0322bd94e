"""Help texts, messages and pages use the terms of the field: phrases that a reader would have to decode are banned."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "mingyue"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
ENGLISH = sorted(page for page in PAGES if not page.name.endswith(".zh.md"))
CHINESE = sorted(page for page in PAGES if page.name.endswith(".zh.md"))
CLAIMS = sorted((PACKAGE / "claims").rglob("*.toml"))
PARTS = sorted(path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
VERBS = (
    "train", "resume", "demo", "generate", "score", "translate", "evaluate", "info", "data list", "data get", "doctor",
    "claims list", "claims run", "claims report", "inspect",
)  # fmt: skip

BANNED = {
    r"spell(?:ed|ings?) (?:in|of) bytes": "byte fallback",
    r"(?:none|nothing) given = ": "default: …",
    r"as the preset has (?:it|them)\b": "default: from the preset",
    r"the best that is there\b": "default: best available",
    r"(?:as if (?:it|they)|(?:as|like|equals?|than) one that) (?:had |was |has )?never\b": "an uninterrupted run",
    r"never (?:been )?(?:stopped|killed|interrupted)\b": "uninterrupted",
    r"models? (?:of|for) (?:pairs|one text)\b": "encoder-decoder model; decoder-only model",
    r"end[- ]marks?\b": "EOS token",
    r"(?:every|each|per|last|next|words an?) place\b|one place (?:further|later)\b": "position",
    r"places (?:of|in) (?:the|a) (?:text|sequence|window|context)\b": "positions",
    r"(?:is|are|be|was|were|being) told\b|told (?:that|so|how|which|what|once)\b": "reported; is notified",
    r"remarks?\b": "note",
    r"(?:the|this) house\b|house rules?\b": "architecture; package",
    r"(?:only|every|each|another|own|empty) rooms?\b": "package",
    r"the floors?\b|floors? (?:that|below|above)\b|(?:lower|upper|higher|no) floors?\b": "layer",
    r"hangs? on (?:it|the|this|that|a|its)\b": "depends on",
    r"go(?:es|ing)? on (?:with|from|training)\b|can go on\b": "resume; continue",
    r"not foreseen\b|unforeseen\b": "unexpected error",
    r"deaths?\b|(?:process|rank|worker|something|one)(?: of \w+)? (?:dies|died)\b": "worker failure; fails",
    r"that nobody (?:sent|asked)\b": "killed (SIGKILL), probably out of memory",
    r"numbers? that (?:is|are) (?:not a|no) numbers?\b": "NaN",
    r"words? (?:of|in) (?:the|a|its) vocabular": "tokens",
    r"what (?:each|every|a) layer would say\b": "what each layer would predict",
    r"models? (?:wrote|writes?|has written)\b|written by (?:the|a) model\b": "the model generated",
    r"(?:scoring|translating|training),? (?:and|or) writing\b|writing,? (?:and|or) (?:scoring|translating)\b":
        "generation",
    r"holds here\b": "supported",
    r"(?:after|about|last|at most|of one of) so many\b": "a named number, such as N",
    r"anew\b": "again",
    r"but for rounding\b": "except for rounding",
    r"without a word\b": "without a message",
    r"do(?:es)? not know (?:one another|each other|text from pairs)\b": "independent of each other",
}  # fmt: skip
"""Regular expression, in lower case, from the start of a word → what to write instead. A space is any white space."""

BANNED_IN_CHINESE = {
    r"词元": "token",
    r"词嵌入层|嵌入向量表": "嵌入",
    r"词汇表": "词表",
    r"第零层|第一层（0）": "第 0 层",
    r"楼层|唯一会打印的房间|[一这]间房": "包；层",
    r"终止标记|结束标记|结尾标记": "EOS",
    r"(?<!并)非数(?![字据值量])|不是数的数": "NaN",
    r"[\u4e00-\u9fff][,;:?!][\u4e00-\u9fff]": "全角标点",
    r"[\u4e00-\u9fff]\([\u4e00-\u9fff]|[\u4e00-\u9fff]\)[\u4e00-\u9fff]": "全角括号",
}

_FENCE = re.compile(r"^( {0,3})(`{3,})[^\n]*\n.*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`|\]\([^)\n]*\)")
_NEXT_LITERAL = re.compile(r"[\"']\s*\n\s*f?[\"']")


def _from_word_start(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})".replace(" ", r"\s+"))


ENGLISH_PHRASES = [(_from_word_start(pattern), instead) for pattern, instead in BANNED.items()]
ANY_ENGLISH = _from_word_start("|".join(BANNED))
CHINESE_PHRASES = [(re.compile(pattern), instead) for pattern, instead in BANNED_IN_CHINESE.items()]


def hits(where: str, text: str, first_line: int, phrases: list[tuple[re.Pattern[str], str]]) -> list[str]:
    """The banned phrases of a text, each with its line and what to write instead."""
    return [
        f"{where}:{first_line + text.count(chr(10), 0, match.start())}: “{' '.join(match[0].split())}” → {instead}"
        for phrase, instead in phrases
        for match in phrase.finditer(text.lower())
    ]


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without code and the targets of links; line numbers stay."""
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))
    return _CODE.sub("``", text)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that may have a hit, with their lines. An f-string is one string."""
    source = path.read_text(encoding="utf-8")
    if not ANY_ENGLISH.search(_NEXT_LITERAL.sub("", source).lower()):
        return  # most modules have no hit: parsing them all takes a second
    inside = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(value) for value in node.values}
            values = (value.value if isinstance(value, ast.Constant) else "…" for value in node.values)
            yield node.lineno, "".join(map(str, values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


@pytest.mark.parametrize("page", ENGLISH, ids=short)
def test_english_pages_use_the_terms_of_the_field(page):
    found = hits(short(page), prose(page), 1, ENGLISH_PHRASES)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", CHINESE, ids=short)
def test_chinese_pages_use_the_terms_of_the_field(page):
    found = hits(short(page), prose(page), 1, CHINESE_PHRASES)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_strings_of_the_source_use_the_terms_of_the_field(part):
    found = [
        hit
        for path in ([part] if part.suffix == ".py" else sorted(part.rglob("*.py")))
        for line, text in strings(path)
        if " " in text
        for hit in hits(short(path), _CODE.sub("``", text), line, ENGLISH_PHRASES)
    ]
    assert not found, "\n".join(found)


def test_texts_of_claims_use_the_terms_of_the_field():
    found = []
    for path in CLAIMS:
        phrases = CHINESE_PHRASES if path.name.endswith(".zh.toml") else ENGLISH_PHRASES
        found += hits(short(path), _CODE.sub("``", path.read_text(encoding="utf-8")), 1, phrases)
    assert CLAIMS and not found, "\n".join(found)


def test_help_texts_use_the_terms_of_the_field():
    """As `--help` has them: some are put together from several strings."""
    from mingyue.cli.app import app

    found = []
    for path in VERBS:
        verb = app
        for name in path.split():
            verb = verb[name]
        texts = [verb.help or "", *(one.parameter.help or "" for one in verb.assemble_argument_collection())]
        found += hits(f"mingyue {path} --help", "\n".join(texts), 1, ENGLISH_PHRASES)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The others are told so.", True),
        ("A tool is folded.", False),
        ("The loss at each\nplace of the text", True),
        ("declared in one place", False),
        ("The text that the model wrote", True),
        ("rank 0 writes the log", False),
    ],
)
def test_the_search_for_banned_phrases_can_fail(text, found):
    assert bool(hits("text", text, 1, ENGLISH_PHRASES)) is found
    assert bool(ANY_ENGLISH.search(text.lower())) is found
