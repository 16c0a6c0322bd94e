"""What a run came to, and what to do next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from mingyue.cli.main import INTERRUPTED, OK
from mingyue.cli.screen import write

if TYPE_CHECKING:
    from mingyue.api import RunResult

_SHOWN = 2
"""Texts of the model that are printed at the end."""


def show_result(result: RunResult) -> int:
    """Print the verdict; returns the exit code: a run that was stopped ends like any program that Ctrl-C stops."""
    folder, outcome = shlex.quote(str(result.folder)), result.outcome
    if result.training.reason == "stopped":
        write(f"Stopped at step {result.training.step:,}, and saved. Go on with: mingyue resume {folder}\n")
        return INTERRUPTED
    for text in outcome.texts[:_SHOWN]:
        write("\nIt writes:\n" + "".join(f"    {line}\n" for line in text.strip("\n").split("\n")))
    write(f"\nVerdict: {outcome.verdict}.\n")
    write("".join(f"{sentence}\n" for sentence in outcome.sentences))
    if outcome.copying is not None:
        write("".join(f"{line}\n" for line in outcome.copying.describe()))
    use = (
        f"Translate with it: mingyue translate {folder}"
        if result.of_pairs
        else f"Write with it: mingyue generate {folder}"
    )
    write(f"The model is in {result.model_folder}. {use}\n")
    return OK
