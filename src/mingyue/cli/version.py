"""`mingyue version`."""

from __future__ import annotations

import mingyue
from mingyue.cli.screen import write
from mingyue.words import tr


def version() -> None:
    """Print the version."""
    write(tr("mingyue {version__}\n", mingyue.__version__))
