"""`mingyue train`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from mingyue.cli.options import takes, train_settings
from mingyue.config import TrainSettings
from mingyue.errors import SettingsError

_SOURCES = "Files, folders, globs, `-` for standard input, a known corpus by name, or hf://owner/name."
_CONFIG = "A file of settings, such as the run.toml of a run; the options given beside it win."


@takes(TrainSettings, without={"sources"})
def train(
    *sources: Annotated[str, Parameter(help=_SOURCES)],
    config: Annotated[str | None, Parameter(help=_CONFIG)] = None,
    **given: Any,  # noqa: ANN401  (values of TrainSettings, checked there)
) -> int:
    """Train a model on text (files, folders, standard input, a known corpus), or on pairs.

    mingyue train poems.txt --out runs/poems --minutes 10

    mingyue train --source train.en --target train.de --out runs/en-de --minutes 60

    Ctrl-C saves and stops; `mingyue resume` goes on.
    """
    settings = train_settings(config, sources, given)
    if not settings.data.sources and not settings.pairs.given:
        raise SettingsError(
            "there is nothing to train on",
            advice="Name a text file: mingyue train poems.txt. Without one at hand: mingyue train python-docs.",
        )
    from mingyue import api
    from mingyue.cli.launch import launch, needs_launch, watch

    if needs_launch(settings.run):
        return launch(settings.run, api.run_path(settings))
    return watch(lambda screen, waited: api.train(settings, observer=screen, waited=waited))
