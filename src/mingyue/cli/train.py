"""`mingyue train`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from mingyue.cli.options import COMMON, takes, train_settings
from mingyue.config import DataSettings, TrainSettings
from mingyue.errors import SettingsError
from mingyue.words import tr

_CONFIG = "File of settings, such as the run.toml of a run; options that are given win over it."


@takes(TrainSettings, without={"sources"}, panel=lambda details: COMMON if details.common else None)
def train(
    *sources: Annotated[str, Parameter(help=DataSettings.model_fields["sources"].description, group=COMMON)],
    config: Annotated[str | None, Parameter(help=_CONFIG, group=COMMON)] = None,
    **given: Any,  # noqa: ANN401  (values of TrainSettings, checked there)
) -> int:
    """Train a model on text or on pairs. Ctrl-C saves and stops; `mingyue resume` continues."""
    settings = train_settings(config, sources, given)
    if not settings.data.sources and not settings.pairs.given:
        raise SettingsError(
            tr("there is no data to train on"),
            advice=tr("Give a text file: mingyue train poems.txt. Or use a known corpus: mingyue train python-docs."),
        )
    from mingyue import api
    from mingyue.cli.launch import launch, needs_launch, progress_screen, report

    if needs_launch(settings.run):
        return launch(settings.run, api.run_path(settings))
    with progress_screen() as (screen, waited):
        result = api.train(settings, observer=screen, waited=waited)
    return report(result)
