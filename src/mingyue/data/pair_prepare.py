"""Pairs → tokenizers and token files, in a folder: read once, split into training and validation, encode.

The vocabulary comes from the training pairs alone. A folder that already holds the same is used as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mingyue.config import DataSettings, PairSettings, TokenizerSettings
from mingyue.data.pair_corpus import (
    FILES,
    MANIFEST,
    PAIRS_FORMAT,
    SOURCE_TOKENIZER,
    TOKENIZER,
    PairCorpus,
    load_pairs,
    read_manifest,
)
from mingyue.data.pair_key import pairs_key
from mingyue.data.pair_report import PairReport
from mingyue.data.pair_store import PairStore
from mingyue.data.pairs import TOO_LONG, nothing_left, pair_digest, read_pairs
from mingyue.data.report import Progress, ReadReport
from mingyue.data.sources import expand_sources
from mingyue.data.tokens import TokenWriter, digests_of
from mingyue.errors import DataError
from mingyue.files import explain_os_error, sealed, write_text_atomically

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

_MEMORY_BYTES = 1 << 28
_ONE_FILE = 1 << 62  # tokens of a shard: rows are gathered by offset, so a side is never split


def prepare_pairs(
    pairs: PairSettings,
    data: DataSettings,
    tokenizer: TokenizerSettings,
    folder: Path,
    *,
    max_tokens: int,
    progress: Progress | None = None,
    memory_bytes: int = _MEMORY_BYTES,
) -> tuple[Tokenizer, Tokenizer, PairCorpus, PairReport]:
    """Read the pairs and leave tokenizers, token files and pairs.json in `folder`; gives what `load_pairs` gives.

    The two tokenizers (of sources, of targets) are one object when the vocabulary is shared, which a given
    tokenizer.json always is. Without validation pairs the last `data.held_out` share of the pairs (rounded down) is
    held out before anything is learnt. A pair with more than `max_tokens` tokens on a side, EOS among them, is left
    out as "too long". What the folder holds is used again if files (path, size, time of change) and settings are the
    same. `memory_bytes`: text above it waits in a temporary file.

    Raises `DataError` (also when no pair is left, with the reasons), `TokenizerError`, `SettingsError`.
    """
    if tokenizer.tokenizer is None:
        tokenizer = tokenizer.replace(tokenizer="bpe")
    key = pairs_key(pairs, data, tokenizer, max_tokens)
    manifest = read_manifest(folder)
    if key is not None and manifest is not None and manifest.get("key") == key:
        with suppress(DataError):  # damaged: made anew
            found = load_pairs(folder)
            found[3].note(f"the tokens in {folder} are of the same pairs and settings: used again")
            return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        _Preparation(pairs, data, tokenizer, folder, max_tokens=max_tokens, progress=progress).run(key, memory_bytes)
    except OSError as error:
        message, advice = explain_os_error("the prepared pairs", folder, error)
        raise DataError(message, advice=advice) from None
    return load_pairs(folder)


class _Side(NamedTuple):
    tokenizer: Tokenizer
    writer: TokenWriter


class _Preparation:
    def __init__(
        self,
        pairs: PairSettings,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        folder: Path,
        *,
        max_tokens: int,
        progress: Progress | None,
    ) -> None:
        self._pairs, self._data, self._tokenizer = pairs, data, tokenizer
        self._folder, self._max_tokens, self._progress = folder, max_tokens, progress
        self._report = PairReport()
        self._valid_target_bytes = 0
        self._encoded = self._characters = 0

    def run(self, key: str | None, memory_bytes: int) -> None:
        """Everything, the manifest last."""
        report = self._report
        with PairStore(self._folder, memory_bytes) as train, PairStore(self._folder, memory_bytes) as given:
            for pair in read_pairs(self._pairs, self._data, report, "train", self._progress):
                train.add(pair)
            lost = dict(report.dropped)
            valid, cut = given, len(train)
            if self._pairs.valid_source or self._pairs.valid_pairs:
                for pair in read_pairs(self._pairs, self._data, report, "valid", self._progress):
                    given.add(pair)
            else:
                valid, cut = train, self._cut(len(train))
            self._characters = report.characters
            source, target = self._tokenizers(train, cut)
            files = self._encode(train, cut, valid, (source, target), lost)
        report.source_vocab_size, report.vocab_size = source.vocab_size, target.vocab_size
        manifest = {
            "format": PAIRS_FORMAT,
            "key": key,
            "shared": source is target,
            "files": files,
            "digests": digests_of(self._folder / name for names in files.values() for name in names),
            "valid_target_bytes": self._valid_target_bytes,
            "report": report.to_dict(),
        }
        write_text_atomically(self._folder / MANIFEST, json.dumps(sealed(manifest), indent=1) + "\n")

    def _cut(self, count: int) -> int:
        share = self._data.held_out
        held = int(Fraction(str(share)) * count)
        if held:
            self._report.note(f"no validation pairs were given: the last {held:,} of {count:,} pairs are held out")
        elif share:
            self._report.note(f"{count:,} pairs are too few to hold out {share:.1%} of them: there is no validation")
        return count - held

    def _tokenizers(self, store: PairStore, cut: int) -> tuple[Tokenizer, Tokenizer]:
        """Learnt from the pairs before the cut; the target's file is called tokenizer.json as everywhere."""
        from mingyue.text import make_tokenizer

        merging = None if self._progress is None else partial(self._progress, "merging")

        def learn(*sides: str) -> Tokenizer:
            return make_tokenizer(self._tokenizer, self._texts(store, cut, sides), progress=merging)

        given = self._tokenizer.tokenizer not in ("char", "bpe", "byte")
        if self._pairs.shared_vocabulary or given:
            if not self._pairs.shared_vocabulary:
                self._report.note(f"{self._tokenizer.tokenizer} serves both sides: the vocabulary is shared")
            source = target = learn("source", "target")
        else:
            source, target = learn("source"), learn("target")
            write_text_atomically(self._folder / SOURCE_TOKENIZER, source.to_json())
        write_text_atomically(self._folder / TOKENIZER, target.to_json())
        return source, target

    def _texts(self, store: PairStore, cut: int, sides: tuple[str, ...]) -> Iterator[str]:
        for number, pair in enumerate(store):
            if number >= cut:
                return
            for side in sides:
                yield pair.source if side == "source" else pair.target
            if self._progress is not None and number % 1024 == 0:
                self._progress("vocabulary", self._characters * number // cut, self._characters)

    def _encode(
        self,
        store: PairStore,
        cut: int,
        valid_store: PairStore,
        tokenizers: tuple[Tokenizer, Tokenizer],
        lost: dict[str, int],
    ) -> dict[str, list[str]]:
        report = self._report
        report.documents = report.characters = report.bytes = 0  # counted again, without those that are too long
        with ExitStack() as stack:
            sides = [
                _Side(tokenizer, stack.enter_context(self._writer(name, tokenizer)))
                for name, tokenizer in zip(FILES, tokenizers * 2, strict=True)
            ]
            before = report.dropped.get(TOO_LONG, 0)
            trained = {pair_digest(*texts) for texts in self._kept(store, 0, cut, sides[:2])}
            report.train_pairs = report.documents
            if not trained:
                lost[TOO_LONG] = report.dropped.get(TOO_LONG, 0) - before
                names = self._pairs.pairs or (*self._pairs.source, *self._pairs.target)
                hidden = ReadReport()  # files that a folder hides are no pairs
                expand_sources(names, hidden)
                raise nothing_left(names, {why: n - hidden.dropped.get(why, 0) for why, n in lost.items()})
            again = 0
            start = cut if valid_store is store else 0
            for source, target in self._kept(valid_store, start, len(valid_store), sides[2:]):
                self._valid_target_bytes += len(target.encode("utf-8"))
                again += pair_digest(source, target) in trained
            report.valid_pairs = report.documents - report.train_pairs
            self._tell_of_validation(again, len(valid_store) - start)
            files = {
                name: [path.name for path in side.writer.finish()] for name, side in zip(FILES, sides, strict=True)
            }
            report.train_source_tokens, report.train_tokens = sides[0].writer.tokens, sides[1].writer.tokens
            report.held_out_tokens = sides[3].writer.tokens
        if self._progress is not None:
            self._progress("encoding", self._characters, self._characters)
        return files

    def _tell_of_validation(self, again: int, read: int) -> None:
        report = self._report
        if read and not report.valid_pairs:
            raise DataError(
                f"all {read:,} validation pairs have more than {self._max_tokens:,} tokens on a side",
                advice="Raise the context, or name other validation pairs.",
            )
        if again:
            report.note(f"{again:,} of {report.valid_pairs:,} validation pairs are trained on as well")
        if TOO_LONG in report.dropped:
            report.note(f"too long: more than {self._max_tokens:,} tokens on one side, the end mark among them")

    def _kept(self, store: PairStore, start: int, stop: int, sides: list[_Side]) -> Iterator[tuple[str, str]]:
        """Writes the pairs start … stop − 1 that are short enough, and gives their texts."""
        report = self._report
        for number, pair in enumerate(store):
            if number >= stop:
                break
            if number < start:
                continue
            texts = (pair.source, pair.target)
            rows = [_row(text, side.tokenizer, pair.where) for text, side in zip(texts, sides, strict=True)]
            characters = len(pair.source) + len(pair.target)
            self._encoded += characters
            if self._progress is not None and number % 1024 == 0:
                self._progress("encoding", self._encoded, self._characters)
            if max(map(len, rows)) > self._max_tokens:
                report.drop(TOO_LONG, pair.where)
                continue
            for row, side in zip(rows, sides, strict=True):
                side.writer.append(row)
            report.documents += 1
            report.characters += characters
            report.bytes += sum(len(text.encode("utf-8")) for text in texts)
            yield texts

    def _writer(self, name: str, tokenizer: Tokenizer) -> TokenWriter:
        return TokenWriter(
            self._folder,
            name,
            vocab_size=tokenizer.vocab_size,
            fingerprint=tokenizer.fingerprint,
            shard_tokens=_ONE_FILE,
        )


def _row(text: str, tokenizer: Tokenizer, where: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The ids of a text and EOS, which may stand nowhere else: rows are told apart by it."""
    ids = tokenizer.encode_array(text)
    if (ids == tokenizer.eos_id).any():
        raise DataError(
            f"{where}: the tokenizer spells a part of this text with its end mark, so the row would seem to end there",
            advice="Take a tokenizer whose end mark is not also its mark for unknown characters, or bpe.",
        )
    return np.append(ids, np.int32(tokenizer.eos_id))


def _clear(folder: Path) -> None:
    """Remove older pairs; the manifest first, so that a crash on the way leaves nothing that looks whole."""
    (folder / MANIFEST).unlink(missing_ok=True)
    (folder / SOURCE_TOKENIZER).unlink(missing_ok=True)
    for name in FILES:
        for path in [*folder.glob(f"{name}-*.tokens"), *folder.glob(f".{name}-*.tmp")]:
            path.unlink()
