"""The log of a run: metrics.jsonl, one JSON object per line, and TensorBoard events if set.

Every line has `event`, `step` (steps taken), `tokens` (targets seen in training) and `seconds` (since the program
started, without the time between stop and resume). Further keys by event:

    plan       the plan, whenever it is made or fixed
    train      train_loss (nats per token, mean since the last such line), learning_rate, muon_learning_rate,
               gradient_norm, tokens_per_second (of the steps alone), share_of_peak
    evaluate   heldout_loss (nats per token), heldout_tokens, bits_per_byte, evaluation_seconds, best; of pairs bleu,
               cut_translations (of those that BLEU counts, cut at their largest length)
    sample     text
    compare    of a run that starts from a trained model, before the first step and after the last: heldout_loss and
               heldout_tokens of the new text, old_heldout_loss and old_heldout_tokens of the model's own
    resume     from_step, changes
    former     of a run that was resumed after its end: former_step and heldout_loss of the model that it had; taken:
               whether that is kept, since the new one is worse
    threads    threads: their number, whenever it is chosen by measuring
    end        reason, and the keys of evaluate for the final evaluation
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from mingyue.errors import FormatError, MissingExtraError
from mingyue.files import write_bytes_atomically
from mingyue.parsing import as_object, parse_json, take
from mingyue.training.storage import SET_ASIDE, disk_errors, free_name
from mingyue.words import tr

_TYPES: dict[str, type] = {"event": str, "step": int, "tokens": int, "seconds": float}
_TYPES_OF: dict[str, dict[str, type]] = {
    "train": {"train_loss": float},
    "evaluate": {"heldout_loss": float},
    "compare": {"heldout_loss": float, "old_heldout_loss": float},
    "threads": {"threads": int},
    "end": {"reason": str},
}
"""Of the keys that are read again; a line with other types is damaged. (A number that is not finite is null.)"""


class MetricsLog:
    """Appends to metrics.jsonl, without buffering lines."""

    def __init__(self, path: Path, *, board: Board | None = None) -> None:
        self.path = path
        self._board = board
        self._file: TextIO | None = None

    def cut(self, size: int) -> int:
        """Remove what follows the first `size` bytes (or the last whole line before); returns the number of lines.

        A resumed run removes the events after its checkpoint. The file is rewritten whole.
        """
        self.close()
        content = self.path.read_bytes() if self.path.is_file() else b""
        kept = content[:size]
        kept = kept[: kept.rfind(b"\n") + 1]
        if kept != content:
            with disk_errors(tr("the log"), self.path):
                write_bytes_atomically(self.path, kept)
        return content[len(kept) :].count(b"\n")

    def mend(self) -> str | None:
        """Remove damaged lines, and keep a copy of the whole file; returns a sentence about it, or None."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        lines = content.splitlines(keepends=True)
        sound = [line for line in lines if _event(line) is not None]
        if len(sound) == len(lines):
            return None
        aside = free_name(self.path.with_name(f"{SET_ASIDE}{self.path.name}"))
        with disk_errors(tr("the log"), aside):
            write_bytes_atomically(aside, content)
            write_bytes_atomically(self.path, b"".join(sound))
        return tr(
            "{path} is damaged: {n_lines} of {n_all} lines are no events. It was set aside "
            "as {name}; the other lines are kept.",
            self.path,
            len(lines) - len(sound),
            len(lines),
            aside.name,
        )

    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def write(self, event: str, *, step: int, tokens: int, seconds: float, **values: object) -> None:
        """Append one event. Infinity and NaN, which JSON lacks, become null."""
        line: dict[str, object] = {"event": event, "step": step, "tokens": tokens, "seconds": round(seconds, 3)}
        line |= {key: _finite_or_none(value) for key, value in values.items()}
        with disk_errors(tr("the log"), self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        if self._board is not None:
            self._board.write(event, step, values)

    def close(self) -> None:
        """Close the files. The next `write` opens them again."""
        if self._file is not None:
            file, self._file = self._file, None
            with disk_errors(tr("the log"), self.path):  # it flushes again what could not be written
                file.close()
        if self._board is not None:
            self._board.close()


def open_log(path: Path, *, size: int, board: Path | None, from_step: int, tell: Callable[[str], None]) -> MetricsLog:
    """The log of a run at `from_step`, cut to its first `size` bytes; damaged lines are removed, and `tell` says so.

    `board`: the folder of TensorBoard events, if they are written too.
    """
    log = MetricsLog(path, board=None if board is None else Board(board, from_step=from_step))
    log.cut(size)
    if (damage := log.mend()) is not None:
        tell(damage)
    return log


def read_log(path: Path) -> list[dict[str, Any]]:
    """The events of a metrics.jsonl in order, without damaged lines such as a last one that was cut by a kill."""
    if not path.is_file():
        return []
    return [event for line in path.read_bytes().split(b"\n")[:-1] if (event := _event(line)) is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line of the log; None for a damaged line."""
    try:
        event = as_object(parse_json(line))
        for key, kind in {**_TYPES, **_TYPES_OF.get(take(event, "event", str), {})}.items():
            if key in _TYPES or event.get(key) is not None:
                take(event, key, kind)
    except FormatError:
        return None
    return event


def summary_writer() -> Any:  # noqa: ANN401  (a class of an optional package)
    """The class that writes TensorBoard events. Raises `MissingExtraError` if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError(
            tr("--tensorboard needs the tensorboard package, which is not installed"),
            advice=tr("pip install 'mingyue[track]'"),
        ) from error
    return SummaryWriter


class Board:
    """TensorBoard scalars and texts, under `<event>/<key>`. Raises `MissingExtraError` if it is not installed."""

    def __init__(self, folder: Path, *, from_step: int = 0) -> None:
        self._writer = summary_writer()(str(folder), purge_step=from_step + 1 if from_step else None)

    def write(self, event: str, step: int, values: Mapping[str, object]) -> None:
        """Add an event's numbers and texts."""
        for key, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{event}/{key}", value, step)
            elif isinstance(value, str):
                self._writer.add_text(f"{event}/{key}", value, step)

    def close(self) -> None:
        """Flush and end the file. The next `write` starts another."""
        self._writer.close()


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
