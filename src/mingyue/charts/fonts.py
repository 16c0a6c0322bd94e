"""Fonts of pages and images, and the width of text in columns of a monospaced font."""

from __future__ import annotations

import functools
import os
import sys
import unicodedata
from pathlib import Path

FONT_STACK = (
    "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'Noto Sans', 'Noto Sans CJK SC', 'Source Han Sans SC', 'PingFang SC', "
    "'Microsoft YaHei', sans-serif"
)
"""CSS font families: those of the system, then ones with Chinese characters."""
MONO_STACK = f"'Noto Sans Mono CJK SC', 'Sarasa Mono SC', 'DejaVu Sans Mono', Menlo, Consolas, {FONT_STACK}"

_CHINESE_FONTS = (
    "NotoSansCJK*", "NotoSansSC*", "NotoSerifCJK*", "NotoSerifSC*", "SourceHanS*", "wqy-*", "DroidSansFallback*",
    "PingFang*", "STHeiti*", "Hiragino*", "msyh*", "simsun*", "simhei*", "uming*", "ukai*", "LXGW*",
)  # fmt: skip

_NO_WIDTH = ("Mn", "Me", "Cf")  # combining marks, joiners and other format characters


_CLOSING = "，。、；：！？）》」』”’"  # no line begins with one


def display_width(text: str) -> int:
    """Columns that a text takes: one for a Latin letter, two for a Chinese character, none for a combining mark."""
    return sum(
        0 if unicodedata.category(c) in _NO_WIDTH else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def drawn_width(text: str) -> int:
    """Columns that a text takes in an image, where ⏎, ␇, … and all ambiguous characters may be as wide as Chinese.

    They are in the monospaced fonts with Chinese characters; only ␣ is not.
    """
    return display_width(text) + sum(
        c != "␣" and ("\u2300" <= c <= "\u243f" or unicodedata.east_asian_width(c) == "A")
        for c in text
        if display_width(c) == 1
    )


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most `columns` columns, broken at spaces or between Chinese characters."""
    lines = list[str]()
    line: str = ""
    word: str = ""
    for character in f"{text}\n" if text else "":
        if character in _CLOSING:
            word += character
            continue
        wide = display_width(character) > 1
        if character.isspace() or wide:
            if line and display_width(line + word) > columns:
                lines.append(line.rstrip())
                line = ""
            space = "" if wide else " " if character == "\n" else character
            line, word = line + word + space, character if wide else ""
        else:
            word += character
    rest = (line + word).rstrip()
    return [*lines, rest] if rest else lines


def truncate(text: str, columns: int) -> str:
    """The text, or its beginning with an ellipsis where it is wider than `columns` columns."""
    if display_width(text) <= columns:
        return text
    kept = ""
    for character in text:
        if display_width(kept + character) > columns - 1:
            break
        kept += character
    return kept + "…"


@functools.cache
def chinese_font() -> Path | None:
    """A font file with Chinese characters, looked for by usual names in the usual folders; None if there is none."""
    home = Path.home()
    if sys.platform == "darwin":
        folders = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    elif os.name == "nt":
        folders = [
            Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts",
            home / "AppData/Local/Microsoft/Windows/Fonts",
        ]
    else:
        folders = [
            Path("/usr/share/fonts"),
            Path("/usr/local/share/fonts"),
            home / ".fonts",
            home / ".local/share/fonts",
        ]
    for pattern in _CHINESE_FONTS:
        for folder in folders:
            for path in sorted(folder.rglob(pattern)) if folder.is_dir() else ():
                if path.suffix.lower() in (".ttc", ".ttf", ".otf"):
                    return path
    return None


def has_chinese(text: str) -> bool:
    """Whether a text contains Chinese, Japanese or Korean characters."""
    return any("\u2e80" <= c <= "\u9fff" or "\uac00" <= c <= "\ud7a3" or c >= "\U00020000" for c in text)
