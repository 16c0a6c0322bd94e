"""A sample of the text that a model was trained on, for views that search it: token ids, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mingyue.data import load_corpus, load_pairs
from mingyue.errors import SettingsError
from mingyue.files import reason_of
from mingyue.inspection import Subject
from mingyue.inspection.command import TrainingSample
from mingyue.paths import path_of
from mingyue.text import Tokenizer
from mingyue.training import RunFolder
from mingyue.words import Words

LONGEST_ROW = 256
"""Tokens of a row, or the context of the model if it is shorter."""
_MOST_BYTES = 16 << 20
"""Of a file; of a longer one the beginning is read."""

Ids = npt.NDArray[np.int64]


def training_sample(
    subject: Subject, folder: Path | None, corpus: str | None, *, tokens: int, seed: int
) -> TrainingSample:
    """About `tokens` tokens of the training text of the run in `folder`, or of a file (`corpus`), drawn with the seed.

    For an encoder-decoder model source texts. Raises `SettingsError` for a model that does not come from a run, if no
    file is given, and for a file that cannot be read; `DataError` for damaged token files.
    """
    generator = np.random.default_rng(seed)
    if corpus is not None:
        path = path_of(corpus)
        text, cut = _read(path)
        rows, total = _rows_of_text(subject, text, tokens, generator)
        part = Words(", its first 16 MiB", " 的前 16 MiB") if cut else Words("", "")
        return TrainingSample(rows, total, Words(f"{path.name}{part.en}", f" {path.name}{part.zh}"))
    run = None if folder is None else RunFolder(folder)
    if run is None or not run.data.is_dir():
        raise SettingsError(
            "a model folder holds no training text to search",
            advice="Give the folder of the run (runs/poems), or a text with --corpus FILE.",
        )
    name = Words("the training text", "训练文本")
    if subject.of_pairs:
        _, _, pairs, _ = load_pairs(run.data)
        order = generator.permutation(len(pairs.train))
        total = int(pairs.train.source_lengths.sum())
        longest = subject.module.config.context
        found = (pairs.train.source(int(number)) for number in order)
        return TrainingSample(_until(tokens, (row for row in found if len(row) <= longest)), total, name)
    tokenizer, text_corpus, _ = load_corpus(run.data)
    length = _row_length(subject)
    starts = np.arange(max(1, len(text_corpus.train) // length)) * length
    chosen = generator.permutation(starts)[: max(1, tokens // length)]
    windows = text_corpus.train.windows(np.sort(chosen), min(length, len(text_corpus.train))).astype(np.int64)
    return TrainingSample([_begun(subject, tokenizer, row) for row in windows], len(text_corpus.train), name)


def _read(path: Path) -> tuple[str, bool]:
    """The beginning of a file, and whether there is more."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
            more = bool(file.read(1))
        return data.decode("utf-8", errors="ignore" if more else "strict"), more
    except OSError as error:
        raise SettingsError(f"the corpus {path} cannot be read: {reason_of(error)}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start})", advice="Convert it to UTF-8.") from None


def _rows_of_text(subject: Subject, text: str, tokens: int, generator: np.random.Generator) -> tuple[list[Ids], int]:
    """Rows of a text: lines for the source side of an encoder-decoder model, windows for a decoder-only model."""
    tokenizer = subject.source_tokenizer or subject.tokenizer
    if subject.of_pairs:
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [np.array([*tokenizer.encode(line), tokenizer.eos_id], dtype=np.int64) for line in lines]
        rows = [row for row in rows if len(row) <= subject.module.config.context]
        ordered = [rows[int(number)] for number in generator.permutation(len(rows))]
        found, total = _until(tokens, iter(ordered)), sum(map(len, rows))
    else:
        ids, length = tokenizer.encode_array(text).astype(np.int64), _row_length(subject)
        total = len(ids)
        starts = generator.permutation(np.arange(-(-total // length)))[: max(1, tokens // length)] * length
        found = [_begun(subject, tokenizer, ids[start : start + length]) for start in np.sort(starts)]
    if not total:
        raise SettingsError("the corpus holds no text that fits the context", advice="Give another file with --corpus.")
    return found, total


def _row_length(subject: Subject) -> int:
    """Tokens of a window, without the BOS that is put before it."""
    return max(1, min(LONGEST_ROW, subject.module.config.context) - subject.starts_with_bos)


def _begun(subject: Subject, tokenizer: Tokenizer, ids: Ids) -> Ids:
    """A window as the model reads a text: after BOS, if it reads one."""
    return np.concatenate([[tokenizer.bos_id], ids]) if subject.starts_with_bos else ids


def _until(tokens: int, rows: Iterable[npt.NDArray[np.integer]]) -> list[Ids]:
    """Rows until they have that many tokens together, at least one."""
    found, count = list[Ids](), 0
    for row in rows:
        found.append(np.asarray(row, dtype=np.int64))
        count += len(row)
        if count >= tokens:
            break
    return found
