"""Result of a run, and the next command."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from mingyue.cli.invocation import INTERRUPTED, OK
from mingyue.cli.screen import say, write
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.api import RunResult

_SHOWN = 2
"""Number of generated texts printed at the end."""


def show_result(result: RunResult) -> int:
    """Print the result of a run; returns the exit code (130 for a run that was stopped, as after Ctrl-C)."""
    folder, outcome = shlex.quote(str(result.folder)), result.outcome
    if result.training.reason == "stopped":
        write(
            tr(
                "Stopped at step {step:,}, and saved. Resume with: mingyue resume {folder}\n",
                result.training.step,
                folder,
            )
        )
        return INTERRUPTED
    for text in outcome.texts[:_SHOWN]:
        write(tr("\nGenerated text:\n") + "".join(f"    {line}\n" for line in text.strip("\n").split("\n")))
    course = result.describe_course()
    write(
        tr("\nVerdict: {verdict}.\n", outcome.verdict_words)
        if course is None
        else tr("\n{course}\nVerdict: {verdict}.\n", course, outcome.verdict_words)
    )
    for sentence in outcome.sentences:
        say(sentence)
    if outcome.copying is not None:
        for line in outcome.copying.describe():
            say(line)
    if outcome.repetition is not None:
        for line in outcome.repetition.describe():
            say(line)
    use = (
        tr("Translate: mingyue translate {folder}", folder)
        if result.of_pairs
        else tr("Generate: mingyue generate {folder}", folder)
    )
    write(tr("The model is in {model_folder}. {use}\n", result.model_folder, use))
    return OK
