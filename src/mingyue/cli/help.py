"""Pages of help in the language of the interface: what the parser says in English is looked up in the dictionary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cyclopts.help import DefaultFormatter
from rich.text import Text

from mingyue.display.wrapping import Wrapped
from mingyue.words import dictionary, interface_language, tr

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_COMMAND = re.compile(r"(Example: )?mingyue ")
"""What a paragraph of commands begins with: it is the same in every language."""
_PARTS = (
    (re.compile(r"(?P<help>.*?)[. ]*\[default: (?P<default>.*)\]\.?", re.DOTALL), tr("{help} [default: {default}]")),
    (re.compile(r"(?P<help>.*) \((?P<kind>(en|de)coder-\w+) models\)", re.DOTALL), tr("{help} ({kind} models)")),
    (re.compile(r"(?P<help>.*[.;]) (?P<kind>Text only\.|Pairs only\.)", re.DOTALL), tr("{help} {kind}")),
    (re.compile(r"(?P<help>.*[.;]) Only (?P<what>.*)\.", re.DOTALL), tr("{help} Only {what}.")),
)
"""What is put together from parts, each of which has its own translation."""
_WORDY = re.compile(r"[A-Za-z]{3,}[^=/]* ")


class HelpPage(DefaultFormatter):
    """The pages of the parser, in Chinese where that is the language of the interface."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one panel."""
        if interface_language() == "zh":
            entries = [_entry(entry) for entry in panel.entries]
            title, description = localized_help(str(panel.title)), _text(panel.description)
            panel = panel.copy(entries=entries, title=title, description=description)
        super().__call__(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ANN401
        """Print the line of usage."""
        if usage and interface_language() == "zh":
            usage = str(usage)
            console.print(Text(usage if usage.startswith("Usage:") else f"Usage: {usage}", style="bold"))
            return
        super().render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:  # noqa: ANN401
        """Print what the command does."""
        if interface_language() == "zh":
            described = _text(description)
            description = Wrapped(described) if isinstance(described, Text) else described
        super().render_description(console, options, description)


def localized_help(text: str, look_up: Callable[[str], str | None] | None = None) -> str:
    """A text of help in Chinese: each part of it as `look_up` (default: the dictionary) has it, else in English."""
    known = dictionary().get if look_up is None else look_up
    return "\n\n".join(_paragraph(part, known) for part in text.strip().split("\n\n"))


def _paragraph(text: str, look_up: Callable[[str], str | None]) -> str:
    text = text if _COMMAND.match(text) else " ".join(text.split())
    for pattern, whole in _PARTS:
        if match := pattern.fullmatch(text):
            parts = {name: _paragraph(part, look_up) for name, part in match.groupdict().items()}
            return whole.zh.format_map(parts)
    if _COMMAND.match(text):
        return text.replace(tr("Example: "), tr("Example: ").zh)
    return look_up(text) or text if _WORDY.search(text + " ") else text


def _entry(entry: HelpEntry) -> HelpEntry:
    """An entry with its text, and what the parser would add to it, in Chinese; the asterisk of a required one stays."""
    default = entry.default
    if default is not None and " " in default:
        default = localized_help(default)
    added = [tr("[choices: {choices}]", ", ".join(entry.choices)).zh] if entry.choices else []
    added += [] if default is None else [tr("[default: {default}]", default).zh]
    added += [tr("[required]").zh] if entry.required and entry.metavar is not None else []
    text = Text.assemble(_text(entry.description) or "", *((f" {one}", "cyclopts.default") for one in added))
    return entry.copy(description=Wrapped(text), default=None, choices=None, required=False)


def _text(description: Any) -> Any:  # noqa: ANN401
    """A description of the parser, whatever it is made of, as localized text."""
    inner = getattr(description, "primary_renderable", description)
    plain = inner.plain if isinstance(inner, Text) else inner if isinstance(inner, str) else None
    return description if not plain else Text(localized_help(plain))
