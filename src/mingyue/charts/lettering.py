"""Fonts, and how wide text is before anything has drawn it."""

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
"""Fonts of pages and pictures: those of the system, then ones with Chinese characters."""
MONO_STACK = f"'Noto Sans Mono CJK SC', 'Sarasa Mono SC', 'DejaVu Sans Mono', Menlo, Consolas, {FONT_STACK}"

_CHINESE_FONTS = (
    "NotoSansCJK*", "NotoSansSC*", "NotoSerifCJK*", "NotoSerifSC*", "SourceHanS*", "wqy-*", "DroidSansFallback*",
    "PingFang*", "STHeiti*", "Hiragino*", "msyh*", "simsun*", "simhei*", "uming*", "ukai*", "LXGW*",
)  # fmt: skip


def width_of(text: str) -> int:
    """Columns that a text takes where a Latin letter takes one and a Chinese character two."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, columns: int) -> list[str]:
    """Lines of at most so many columns, broken at spaces or between Chinese characters."""
    lines = list[str]()
    line: str = ""
    word: str = ""
    for sign in f"{text}\n" if text else "":
        wide = width_of(sign) > 1
        if sign.isspace() or wide:
            if line and width_of(line + word) > columns:
                lines.append(line.rstrip())
                line = ""
            line, word = line + word + (" " if sign == "\n" else sign if not wide else ""), sign if wide else ""
        else:
            word += sign
    rest = (line + word).rstrip()
    return [*lines, rest] if rest else lines


def shortened(text: str, columns: int) -> str:
    """The beginning of a text in so many columns, with an ellipsis if that is not all of it."""
    if width_of(text) <= columns:
        return text
    kept = ""
    for sign in text:
        if width_of(kept + sign) > columns - 1:
            break
        kept += sign
    return kept + "…"


@functools.cache
def chinese_font() -> Path | None:
    """A font file with Chinese characters on this machine, if there is one under a usual name and place."""
    home = Path.home()
    if sys.platform == "darwin":
        places = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    elif os.name == "nt":
        places = [
            Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts",
            home / "AppData/Local/Microsoft/Windows/Fonts",
        ]
    else:
        places = [
            Path("/usr/share/fonts"),
            Path("/usr/local/share/fonts"),
            home / ".fonts",
            home / ".local/share/fonts",
        ]
    for pattern in _CHINESE_FONTS:
        for place in places:
            for found in sorted(place.rglob(pattern)) if place.is_dir() else ():
                if found.suffix.lower() in (".ttc", ".ttf", ".otf"):
                    return found
    return None


def has_chinese(text: str) -> bool:
    """Whether a text has Chinese, Japanese or Korean characters."""
    return any("\u2e80" <= sign <= "\u9fff" or "\uac00" <= sign <= "\ud7a3" or sign >= "\U00020000" for sign in text)
