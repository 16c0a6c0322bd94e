"""The command `mingyue`, also as `python -m mingyue`."""

import os
import sys

from mingyue import interrupts


def start() -> int:
    """Run the command line of this process; returns the exit code."""
    interrupts.watch(_hand_over)  # before anything else is imported
    if "GOMP_SPINCOUNT" not in os.environ:
        # OpenMP's threads spin while they wait. On cores that other programs use, two threads are then ten times slower
        # than one (bench/busy_threads.py). OpenMP reads this when torch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from mingyue.cli import main

    code = main()
    interrupts.finish()
    return code


def _hand_over(code: int) -> int:
    from mingyue.cli.launch import hand_over

    return hand_over(code)


if __name__ == "__main__":
    sys.exit(start())
