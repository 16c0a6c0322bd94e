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
    from mingyue.cli.progress import RunScreen
    from mingyue.cli.verdict import show_result
    from mingyue.runtime import seconds_since_process_start

    with RunScreen() as screen:
        waited = seconds_since_process_start()
        result = api.resume(run, changes=one_budget(given), observer=screen, waited=waited)
    return show_result(result)
