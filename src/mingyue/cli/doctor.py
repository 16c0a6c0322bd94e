"""`mingyue doctor`."""

from __future__ import annotations

from mingyue.cli.arguments import JsonTable
from mingyue.cli.screen import print_note, show, table, write_json


def doctor(*, json: JsonTable = False) -> None:
    """Check this machine: versions, cores, speed, memory, disk, missing packages. Takes a few seconds."""
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
        print_note(warning)
