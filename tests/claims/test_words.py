"""What claims say is spelled as it should be: it stands in pages, figures and terminals in both languages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mingyue.claims

FILES = sorted(Path(mingyue.claims.__path__[0]).rglob("*.py"))

# Two pieces of one string on two lines of code, and the characters that meet there.
_SEAM = re.compile(r"""([^\s"])"[ ]*\n\s*f?"([^\s"])""")
_CHINESE = "\u4e00-\u9fff"
_FAULTS = {
    "two spaces": re.compile(r"\S  +\S"),
    "space before a sign": re.compile(r"[A-Za-z0-9] [,;:.!?](?=\s|$)"),
    "no space after a sign": re.compile(r"[A-Za-z]{2}[,;!?][A-Za-z]|[a-z]{2}[.:][A-Z]"),
    "words run together": re.compile(r"(?<![A-Za-z])(?!PyTorch|AdamW|MiB|NaN)[A-Za-z]*[a-z]{2}[A-Z]"),
    "half-width sign in Chinese": re.compile(rf"[{_CHINESE}][,;:.!?](?=[{_CHINESE}])"),
    "space between Chinese characters": re.compile(rf"[{_CHINESE}，。；：] +(?=[{_CHINESE}，。；：])"),
    "two signs": re.compile(r"[，。；：、]{2}|[,;:]{2}|,\."),
}


def seams_without_space(code: str) -> list[str]:
    """Where a string goes over two lines of code and an English word or sign meets the next word without a space."""
    ends, begins = re.compile(r"[\w.,;:)}!?%]", re.ASCII), re.compile(r"[\w({]", re.ASCII)
    return [one[0] for one in _SEAM.finditer(code) if ends.match(one[1]) and begins.match(one[2])]


def strings(code: str) -> list[str]:
    """Every string of a file but docstrings; 0 stands for what an f-string computes."""
    tree = ast.parse(code)
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    specs = [node.format_spec for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) and node.format_spec]
    left_out |= {id(node) for spec in specs for node in ast.walk(spec)}
    found = []
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            found.append("".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def faults(text: str) -> list[str]:
    return [f"{kind}: {text}" for kind, pattern in _FAULTS.items() if pattern.search(text)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_space_is_lost_where_a_string_goes_over_two_lines(path):
    assert seams_without_space(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_claim_says_has_no_stray_spaces_and_the_signs_of_its_language(path):
    assert [fault for text in strings(path.read_text(encoding="utf-8")) for fault in faults(text)] == []


def test_both_checks_find_what_they_are_for():
    assert seams_without_space('Words(\n    "each token"\n    f"given "\n)')
    assert seams_without_space('"it ends."\n    "Then"') and not seams_without_space('"it ends. "\n    "Then"')
    assert strings('"""Doc."""\nx = f"{a} and " "b"\n') == ["0 and b"]
    wrong = [
        "two  words",
        "a word , then",
        "one,two",
        "it ends.Then",
        "tokenGiven",
        "成立,不成立",
        "成立。 不成立",
        "成立。。",
    ]
    assert [text for text in wrong if len(faults(text)) != 1] == []
    assert faults("PyTorch's AdamW: 打 in 打篮球, 打酱油; −log P(目标), 1.5 MiB") == []
