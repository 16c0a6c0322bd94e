"""`mingyue version`."""

from __future__ import annotations

import mingyue
from mingyue.cli.screen import write


def version() -> None:
    """Print the version."""
    write(f"mingyue {mingyue.__version__}\n")
