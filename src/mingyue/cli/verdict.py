"""Result of a run, and the next command."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from mingyue.cli.invocation import INTERRUPTED, OK
from mingyue.cli.screen import say, write

if TYPE_CHECKING:
    from mingyue.api import RunResult

_SHOWN = 2
"""Number of generated texts printed at the end."""


def show_result(result: RunResult) -> int:
    """Print the result of a run; returns the exit code (130 for a run that was stopped, as after Ctrl-C)."""
    folder, outcome = shlex.quote(str(result.folder)), result.outcome
    if result.training.reason == "stopped":
        write(f"Stopped at step {result.training.step:,}, and saved. Resume with: mingyue resume {folder}\n")
        return INTERRUPTED
    for text in outcome.texts[:_SHOWN]:
        write("\nGenerated text:\n" + "".join(f"    {line}\n" for line in text.strip("\n").split("\n")))
    course = result.describe_course()
    write(f"\nVerdict: {outcome.verdict}.\n" if course is None else f"\n{course}\nVerdict: {outcome.verdict}.\n")
    write("".join(f"{sentence}\n" for sentence in outcome.sentences))
    if outcome.copying is not None:
        write("".join(f"{line}\n" for line in outcome.copying.describe()))
    if outcome.repetition is not None:
        for line in outcome.repetition.describe():
            say(line)
    use = f"Translate: mingyue translate {folder}" if result.of_pairs else f"Generate: mingyue generate {folder}"
    write(f"The model is in {result.model_folder}. {use}\n")
    return OK
