"""`mingyue resume`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from mingyue.cli.options import one_budget, takes
from mingyue.config import TrainSettings


@takes(TrainSettings, without={"sources", "out", "overwrite"})
def resume(
    run: Annotated[str, Parameter(help="The run folder.")],
    /,
    **given: Any,  # noqa: ANN401  (values of TrainSettings, checked there)
) -> int:
    """Go on with a run that was stopped, exactly as if it never had been.

    mingyue resume runs/poems

    A setting given here takes effect and is told, or is refused with a reason where the run could not follow it.
    """
    from mingyue import api
    from mingyue.cli.launch import launch, needs_launch, watch

    changes = one_budget(given)
    settings = api.processes_of_run(run, changes)
    if needs_launch(settings):
        return launch(settings, run)
    return watch(lambda screen, waited: api.resume(run, changes=changes, observer=screen, waited=waited))
