"""Pairs → tokenizers and token files, in a folder: read once, split into training and validation, encode.

The vocabulary comes from the training pairs alone. The folder holds tokenizer.json (of the targets, or of both sides),
source_tokenizer.json (where each side has its own), and one token file for each side and part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mingyue.config import DataSettings, PairSettings, TokenizerSettings
from mingyue.data.corpus import PairCorpus, PairRows, TokenRows
from mingyue.data.holdout import last_pairs
from mingyue.data.pairs import TOO_LONG, Pair, nothing_left, pair_digest, read_pairs, refuse_other_kinds
from mingyue.data.prepared import FORMAT, TOKENIZER, PreparedFolder, identity_of, key_of
from mingyue.data.report import PairReport, Progress, ReadReport
from mingyue.data.sources import expand_sources
from mingyue.data.store import MEMORY_BYTES, RecordStore
from mingyue.data.tokens import PREPARE_AGAIN, TokenShards, TokenWriter, check_digests
from mingyue.data.unseen import unseen_ids
from mingyue.errors import DataError
from mingyue.files import write_text_atomically
from mingyue.text import Tokenizer, make_tokenizer
from mingyue.words import tr

_SOURCE_TOKENIZER = "source_tokenizer.json"
_PARTS = tuple(f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target"))
_ONE_FILE = 1 << 62  # tokens of a shard: rows are gathered by offset, so a side is never split
_FILE_SETTINGS = ("source", "target", "pairs", "valid_source", "valid_target", "valid_pairs")


def prepare_pairs(
    pairs: PairSettings,
    data: DataSettings,
    tokenizer: TokenizerSettings,
    folder: Path,
    *,
    max_tokens: int,
    progress: Progress | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> tuple[Tokenizer, Tokenizer, PairCorpus, PairReport]:
    """Read the pairs and leave tokenizers, token files and pairs.json in `folder`; returns what `load_pairs` returns.

    The two tokenizers (of sources, of targets) are one object when the vocabulary is shared, which a given
    tokenizer.json always is. Without validation pairs the last `data.held_out` share of the pairs of each file (rounded
    down) is held out before anything is learnt. A pair with more than `max_tokens` tokens on a side, EOS included, is
    left out as "too long". A folder that was prepared from the same files (path, size, time of change) and settings is
    used again. `memory_bytes`: text beyond it is kept in a temporary file.

    Raises `DataError` (also when no pair is left, with the reasons), `TokenizerError`, `SettingsError`.
    """
    if tokenizer.tokenizer is None:
        tokenizer = tokenizer.replace(tokenizer="bpe")
    prepared = _prepared(folder)
    work = _Preparation(pairs, data, tokenizer, prepared, max_tokens=max_tokens, progress=progress)
    return prepared.prepare(_key(pairs, data, tokenizer, max_tokens), partial(work.run, memory_bytes), load_pairs)


def load_pairs(folder: Path) -> tuple[Tokenizer, Tokenizer, PairCorpus, PairReport]:
    """What `prepare_pairs` left in a folder; its sources are not needed. Raises `DataError` for a damaged folder."""
    prepared = _prepared(folder)
    with prepared.opened() as manifest:
        files = prepared.files(manifest)
        shared, valid_target_bytes = bool(manifest["shared"]), int(manifest["valid_target_bytes"])
        repeated = int(manifest.get("valid_repeated", 0))
        report = PairReport.from_dict(manifest["report"])
        target = Tokenizer.load(folder / TOKENIZER)
        source = target if shared else Tokenizer.load(folder / _SOURCE_TOKENIZER)
    rows = {part: _rows(paths, source if part.endswith("source") else target) for part, paths in files.items()}
    source_counts = rows["train_source"].counts(source.vocab_size)
    target_counts = rows["train_target"].counts(target.vocab_size)
    if shared:
        source_counts = target_counts = source_counts + target_counts
    corpus = PairCorpus(
        source_unseen=unseen_ids(source_counts, source.special_ids),
        target_unseen=unseen_ids(target_counts, target.special_ids),
        train=PairRows(rows["train_source"], rows["train_target"]),
        valid=PairRows(rows["valid_source"], rows["valid_target"]),
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        pad_id=target.pad_id,
        bos_id=target.bos_id,
        eos_id=target.eos_id,
        valid_target_bytes=valid_target_bytes,
        valid_repeated=repeated,
        fingerprint=_fingerprint_of(source, target),
        shared_vocabulary=shared,
        digest=check_digests(folder, manifest.get("digests", {})),
    )
    counts = (report.train_pairs, report.valid_pairs)
    if counts != (len(corpus.train), len(corpus.valid)):
        raise DataError(
            tr(
                "{folder} says {counts:,} and {valid_counts:,} pairs, and the files hold {n_train:,} and {n_valid:,}",
                folder / prepared.manifest,
                counts[0],
                counts[1],
                len(corpus.train),
                len(corpus.valid),
            ),
            advice=PREPARE_AGAIN,
        )
    return source, target, corpus, report


def _prepared(folder: Path) -> PreparedFolder:
    return PreparedFolder(folder, "pairs.json", "pairs", _PARTS)


def _key(pairs: PairSettings, data: DataSettings, tokenizer: TokenizerSettings, max_tokens: int) -> str | None:
    """The key of files and settings; None if a file is a pipe, whose content cannot be known beforehand."""
    identity: list[object] = [FORMAT, max_tokens]
    for name in _FILE_SETTINGS:
        files = [file for given in getattr(pairs, name) for file in expand_sources([given], ReadReport())]
        for file in files:
            refuse_other_kinds(file)
        of_files = identity_of(files)
        if of_files is None:
            return None
        identity.append(of_files)
    several = any(isinstance(files, list) and len(files) > 1 for files in identity)
    if several and not pairs.valid_source and not pairs.valid_pairs:
        identity.append(tr("held out of each file"))  # older versions took the end of the last one
    identity += [pairs.model_dump(exclude={*_FILE_SETTINGS, "bleu_lines", "select"}), tokenizer.model_dump()]
    identity.append(data.model_dump(include={"encoding", "skip_bad", "held_out"}))
    return key_of(identity, tokenizer)


def _fingerprint_of(source: Tokenizer, target: Tokenizer) -> str:
    """SHA-256 (hex) of a shared tokenizer, or of two."""
    if source is target:
        return target.fingerprint
    return sha256(f"{source.fingerprint} {target.fingerprint}".encode("ascii")).hexdigest()


def _rows(files: list[Path], tokenizer: Tokenizer) -> TokenRows:
    shards = TokenShards(files, fingerprint=tokenizer.fingerprint)
    return TokenRows.ending_with(tokenizer.eos_id, shards.read(0, len(shards)), ", ".join(map(str, files)))


class _Side(NamedTuple):
    tokenizer: Tokenizer
    writer: TokenWriter


class _Preparation:
    def __init__(
        self,
        pairs: PairSettings,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        prepared: PreparedFolder,
        *,
        max_tokens: int,
        progress: Progress | None,
    ) -> None:
        self._pairs, self._data, self._tokenizer = pairs, data, tokenizer
        self._prepared, self._max_tokens, self._progress = prepared, max_tokens, progress
        self._report = PairReport()
        self._valid_target_bytes = self._repeated = 0
        self._encoded = self._characters = 0

    def run(self, memory_bytes: int) -> dict[str, Any]:
        """Write tokenizers and token files; returns the rest of the manifest."""
        report = self._report
        self._path(_SOURCE_TOKENIZER).unlink(missing_ok=True)
        with self._store(memory_bytes) as train, self._store(memory_bytes) as given:
            counts: dict[str, int] = {}  # pairs of each file
            for pair in read_pairs(self._pairs, self._data, report, "train", self._progress):
                train.add(pair)
                name = pair.where.rpartition(":")[0]
                counts[name] = counts.get(name, 0) + 1
            lost = dict(report.dropped)
            valid, held = given, bytearray(len(train))
            if self._pairs.valid_source or self._pairs.valid_pairs:
                for pair in read_pairs(self._pairs, self._data, report, "valid", self._progress):
                    given.add(pair)
            else:
                valid, held = train, self._held_out(counts)
            self._characters = report.characters
            source, target = self._tokenizers(train, held)
            files = self._encode(train, held, valid, (source, target), lost)
        report.source_vocab_size, report.vocab_size = source.vocab_size, target.vocab_size
        return {
            "shared": source is target,
            "files": files,
            "valid_target_bytes": self._valid_target_bytes,
            "valid_repeated": self._repeated,
            "report": report.to_dict(),
        }

    def _path(self, name: str) -> Path:
        return self._prepared.path / name

    def _store(self, memory_bytes: int) -> RecordStore[Pair]:
        return RecordStore(Pair, self._prepared.path, texts=len(Pair._fields), memory_bytes=memory_bytes)

    def _held_out(self, counts: dict[str, int]) -> bytearray:
        """1 for each pair that is held out: the last ones of each file."""
        share, count = self._data.held_out, sum(counts.values())
        marks = last_pairs(list(counts.values()), share)
        if held := sum(marks):
            which = tr("the last {held:,} of {count:,} pairs are held out", held, count)
            if len(counts) > 1:
                which = tr(
                    "{held:,} of {count:,} pairs are held out, from the end of each of {n_counts:,} files",
                    held,
                    count,
                    len(counts),
                )
            self._report.note(tr("no validation pairs were given: {which}", which))
        elif share:
            self._report.note(
                tr("{count:,} pairs are too few to hold out {share:.1%} of them: there is no validation", count, share)
            )
        return marks

    def _tokenizers(self, store: RecordStore[Pair], held: bytearray) -> tuple[Tokenizer, Tokenizer]:
        """Tokenizers of sources and targets, learnt from the pairs that are not held out."""
        merging = None if self._progress is None else partial(self._progress, "merging")

        def learn(*sides: str) -> Tokenizer:
            return make_tokenizer(self._tokenizer, self._texts(store, held, sides), progress=merging)

        given = self._tokenizer.tokenizer not in ("char", "bpe", "byte")
        if self._pairs.shared_vocabulary or given:
            if not self._pairs.shared_vocabulary:
                self._report.note(
                    tr("{tokenizer} serves both sides: the vocabulary is shared", self._tokenizer.tokenizer)
                )
            source = target = learn("source", "target")
        else:
            source, target = learn("source"), learn("target")
            write_text_atomically(self._path(_SOURCE_TOKENIZER), source.to_json())
        write_text_atomically(self._path(TOKENIZER), target.to_json())
        return source, target

    def _texts(self, store: RecordStore[Pair], held: bytearray, sides: tuple[str, ...]) -> Iterator[str]:
        for number, pair in enumerate(store):
            if held[number]:
                continue
            for side in sides:
                yield pair.source if side == "source" else pair.target
            if self._progress is not None and number % 1024 == 0:
                self._progress("vocabulary", self._characters * number // len(store), self._characters)

    def _encode(
        self,
        store: RecordStore[Pair],
        held: bytearray,
        valid_store: RecordStore[Pair],
        tokenizers: tuple[Tokenizer, Tokenizer],
        lost: dict[str, int],
    ) -> dict[str, list[str]]:
        report = self._report
        report.documents = report.characters = report.bytes = 0  # counted again, without those that are too long
        with ExitStack() as stack:
            sides = [
                _Side(tokenizer, stack.enter_context(self._prepared.writer(name, tokenizer, _ONE_FILE)))
                for name, tokenizer in zip(_PARTS, tokenizers * 2, strict=True)
            ]
            before = report.dropped.get(TOO_LONG, 0)
            trained = {pair_digest(*texts) for texts in self._kept(store, held, 0, sides[:2])}
            report.train_pairs = report.documents
            if not trained:
                lost[TOO_LONG] = report.dropped.get(TOO_LONG, 0) - before
                names = self._pairs.pairs or (*self._pairs.source, *self._pairs.target)
                hidden = ReadReport()  # hidden files of a folder are not pairs
                expand_sources(names, hidden)
                raise nothing_left(names, {why: n - hidden.dropped.get(why, 0) for why, n in lost.items()})
            again = 0
            marks = held if valid_store is store else b"\x01" * len(valid_store)
            for source, target in self._kept(valid_store, marks, 1, sides[2:]):
                self._valid_target_bytes += len(target.encode("utf-8"))
                again += pair_digest(source, target) in trained
            report.valid_pairs = report.documents - report.train_pairs
            self._check_validation(again, sum(marks))
            files = {
                name: [path.name for path in side.writer.finish()] for name, side in zip(_PARTS, sides, strict=True)
            }
            report.train_source_tokens, report.train_tokens = sides[0].writer.tokens, sides[1].writer.tokens
            report.held_out_tokens = sides[3].writer.tokens
        if self._progress is not None:
            self._progress("encoding", self._characters, self._characters)
        return files

    def _check_validation(self, again: int, read: int) -> None:
        report = self._report
        if read and not report.valid_pairs:
            raise DataError(
                tr(
                    "all {read:,} validation pairs have more than {max_tokens:,} tokens on a side",
                    read,
                    self._max_tokens,
                ),
                advice=tr("Raise the context, or name other validation pairs."),
            )
        if again:
            self._repeated = again
            report.note(
                tr("{again:,} of {valid_pairs:,} validation pairs are trained on as well", again, report.valid_pairs)
            )
        if TOO_LONG in report.dropped:
            report.note(tr("too long: more than {max_tokens:,} tokens on one side, EOS included", self._max_tokens))

    def _kept(
        self, store: RecordStore[Pair], marks: bytes | bytearray, mark: int, sides: list[_Side]
    ) -> Iterator[tuple[str, str]]:
        """Writes the pairs with this mark that are short enough, and yields their texts."""
        report = self._report
        for number, pair in enumerate(store):
            if marks[number] != mark:
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


def _row(text: str, tokenizer: Tokenizer, where: str) -> npt.NDArray[np.int32]:
    """The ids of a text, and EOS, which may occur nowhere else: it separates the rows."""
    ids = tokenizer.encode_array(text)
    if (ids == tokenizer.eos_id).any():
        raise DataError(
            tr(
                "{where}: the tokenizer encodes a part of this text as its EOS token, so the row "
                "would seem to end there",
                where,
            ),
            advice=tr("Use a tokenizer whose EOS token is not also its token for unknown characters, or bpe."),
        )
    return np.append(ids, np.int32(tokenizer.eos_id))
