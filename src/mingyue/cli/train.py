"""`mingyue train`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from mingyue.cli.options import takes, train_settings
from mingyue.config import TrainSettings

_SOURCES = "Files, folders, globs, `-` for standard input, a known corpus by name, or hf://owner/name."
_CONFIG = "A file of settings, such as the run.toml of a run; the options given beside it win."


@takes(TrainSettings, without={"sources"})
def train(
    *sources: Annotated[str, Parameter(help=_SOURCES)],
    config: Annotated[str | None, Parameter(help=_CONFIG)] = None,
    **given: object,
) -> int:
    """Train a model on text: files, folders, standard input, or a known corpus.

    mingyue train poems.txt --out runs/poems --minutes 10
    """
    _ = train_settings(config, sources, given)
    return 0
