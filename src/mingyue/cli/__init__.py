"""The command line: parse, call `mingyue.api`, print. Nothing heavy is imported before a verb runs."""

from mingyue.cli.main import main

__all__ = ["main"]
