"""`mingyue doctor`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from mingyue.cli.screen import remark, show, table, write_json


def doctor(*, json: Annotated[bool, Parameter(negative=(), help="Print JSON instead of a table.")] = False) -> None:
    """Check this machine: versions, cores, speed, memory, disk, what is missing. Takes a few seconds."""
    from mingyue import api

    diagnosis = api.doctor()
    if json:
        write_json(diagnosis.to_dict())
        return
    rows = table()
    for finding in diagnosis.findings:
        rows.add_row(finding.topic, finding.value)
    show(rows)
    for warning in diagnosis.warnings:
        remark(warning)
