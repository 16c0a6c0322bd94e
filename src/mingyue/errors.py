"""The error classes. All of them derive from `MingyueError`.

Every error says what was wrong, where it was, and what to do. The command line prints the message
without a traceback and exits with code 2; Python callers catch `MingyueError` or a subclass.
"""

from __future__ import annotations

from mingyue.printable import printable
from mingyue.words import Words, in_language, tr


class MingyueError(Exception):
    """Base of every error that Mingyue raises on purpose.

    `message` says what was wrong and where (file, line, byte, both numbers); `advice` says what to do next. Both are
    English, and know their Chinese where they are `Words`. Characters that cannot be shown, such as bytes of a file
    name that are not UTF-8, are escaped in both.
    """

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        message, advice = printable(message), None if advice is None else printable(advice)
        super().__init__(message if advice is None else f"{message}\n{advice}")
        self.message = message
        self.advice = advice

    @property
    def words(self) -> Words:
        """Message and advice, in both languages."""
        parts = [self.message] if self.advice is None else [self.message, self.advice]
        return Words("\n".join(parts), lambda: "\n".join(in_language(part, "zh") for part in parts))


class SettingsError(MingyueError):
    """A setting is unknown, impossible, or contradicts another one."""


class FormatError(MingyueError, ValueError):
    """A JSON or TOML text is not what it should be; whoever reads the file adds its name to the message."""


class DataError(MingyueError):
    """Text could not be read, or there is not enough of it."""


class TokenizerError(MingyueError):
    """A tokenizer could not be made, loaded, or used on these ids."""


class BundleError(MingyueError):
    """A model folder is missing, damaged, or of an unknown version."""


class CheckpointError(MingyueError):
    """A run folder or a checkpoint cannot be read or written."""


class TrainingError(MingyueError):
    """Training had to stop (a loss of NaN, no steps to take, and the like)."""


class DivergedError(TrainingError):
    """The loss, the gradient or a weight is no longer finite."""

    def advised(self, saved_step: int | None) -> DivergedError:
        """The same error with advice: resume from the last checkpoint, or (None: there is none) start again."""
        rates = tr("lower rates (--learning-rate; with Muon --muon-learning-rate too)")
        again = tr("start again with {rates}, a longer --warmup, a smaller --clip, or --dtype fp32.", rates)
        if saved_step is None:
            return DivergedError(self.message, advice=tr("No checkpoint was saved before: {again}", again))
        return DivergedError(
            self.message,
            advice=(
                tr(
                    "The last checkpoint, of step {saved_step:,}, is finite. Resume it with {rates}. If "
                    "its held-out loss is no better than a guess, {again}",
                    saved_step,
                    rates,
                    again,
                )
            ),
        )


class LostRankError(TrainingError):
    """Another process of a run on several processes has ended."""


class GenerationError(MingyueError):
    """Text or scores cannot be computed as requested."""


class NothingToShowError(GenerationError):
    """A view has nothing to show for this text; a page shows its other views."""


class InteropError(MingyueError):
    """A foreign checkpoint does not match: the message names the first wrong tensor."""


class MissingExtraError(MingyueError):
    """An optional package is needed; the advice names the extra that installs it."""
