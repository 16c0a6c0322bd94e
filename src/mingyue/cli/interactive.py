"""`mingyue generate RUN --interactive`: what is typed is continued, text after text."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from mingyue import interrupts
from mingyue.cli.generate import stream_text
from mingyue.cli.screen import print_note, write
from mingyue.config import GenerateSettings
from mingyue.errors import MingyueError, SettingsError
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.api import Model

_COMMANDS = {"/temperature": "temperature", "/seed": "seed"}


def interact(model: Model, settings: GenerateSettings) -> None:
    """Read prompts and stream their continuations until the input ends. Each text takes the next seed."""
    print_note(
        tr(
            "Type the beginning of a text: the model continues it. It is no chat, and nobody "
            "answers. Ctrl-C ends the current text, Ctrl-D leaves. /temperature {temperature:g} "
            "and /seed {seed} change the settings; each text takes the next seed.",
            settings.temperature,
            settings.seed,
        )
    )
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (its import gives `input` a history)
    while (line := _typed()) is not None:
        try:
            if (changed := _changed(line, settings)) is not None:
                settings = changed
                continue
            stream_text(model, line, settings)
        except KeyboardInterrupt:
            interrupts.dealt_with()
            write("\n")
        except MingyueError as error:
            print_note(error.words)
        settings = settings.replace(seed=settings.seed + 1)


def _typed() -> str | None:
    """The next line; None at the end of the input. Ctrl-C discards what was typed."""
    while True:
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            interrupts.dealt_with()
            write("\n")
            continue
        except EOFError:
            if sys.stdout.isatty():
                write("\n")
            return None
        if not any("\ud800" <= character <= "\udfff" for character in line):
            return line
        print_note(tr("The line is not text in the encoding of the terminal: it was not continued."))


def _changed(line: str, settings: GenerateSettings) -> GenerateSettings | None:
    """The settings after a command; None for a line that is none. A command with a wrong value changes nothing."""
    name, _, value = line.strip().partition(" ")
    if name not in _COMMANDS:
        return None
    try:
        return settings.replace(**{_COMMANDS[name]: value})
    except SettingsError as error:
        print_note(error.words)
        return settings
