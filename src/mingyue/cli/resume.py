"""`mingyue resume`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Group, Parameter

from mingyue.cli.options import takes
from mingyue.config import TrainSettings, one_budget
from mingyue.words import tr

_FIXED = Group("Fixed", help="Settings that a resume refuses to change, with a reason.", sort_key=99)


@takes(
    TrainSettings,
    without={"sources", "out", "overwrite"},
    panel=lambda details: None if details.resume.allowed else _FIXED,
    default=tr("as in the run"),
)
def resume(
    run: Annotated[str, Parameter(help="Run folder.")],
    /,
    **given: Any,  # noqa: ANN401  (values of TrainSettings, checked there)
) -> int:
    """Resume a run that was stopped, from its latest checkpoint."""
    from mingyue import api
    from mingyue.cli.launch import launch, needs_launch, progress_screen, report

    changes = one_budget(given)
    settings = api.processes_of_run(run, changes)
    if needs_launch(settings):
        return launch(settings, run)
    with progress_screen() as (screen, waited):
        result = api.resume(run, changes=changes, observer=screen, waited=waited)
    return report(result)
