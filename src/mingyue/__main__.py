"""The command `mingyue`, also as `python -m mingyue`."""

import sys

from mingyue import interrupts


def start() -> int:
    """Run the command line of this process; returns the exit code."""
    interrupts.watch(_hand_over)  # before anything else is imported
    from mingyue.cli import main

    code = main()
    interrupts.finish()
    return code


def _hand_over(code: int) -> int:
    from mingyue.cli.launch import hand_over

    return hand_over(code)


if __name__ == "__main__":
    sys.exit(start())
