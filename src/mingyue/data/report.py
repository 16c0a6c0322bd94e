"""The report of reading: what was kept, what was left out and why, in which encodings. Nothing is lost unreported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from mingyue.errors import DataError
from mingyue.words import Words, joined, listed, stored, tr

WAITING = tr("waiting for")
"""The beginning of a stage in which nothing happens until another program, or a person, writes."""


class Progress(Protocol):
    """Called during long work. `total` is 0 where it is unknown.

    `stage`: "reading" and "fetching" in bytes, "vocabulary" and "encoding" in characters, "merging" (bpe) in parts;
    `WAITING` and the name of a pipe, once, before it is read.
    """

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of `stage` are finished."""
        ...


@dataclass
class ReadReport:
    """Counts of one reading. `prepare_corpus` adds what the text became (tokens, vocabulary, held-out share)."""

    files: int = 0
    """Files read, standard input and data sets of a hub included."""
    documents: int = 0
    """Documents kept."""
    characters: int = 0
    """Characters kept, the separators between documents included."""
    bytes: int = 0
    """UTF-8 bytes of the same."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason → number of files or records left out."""
    examples: dict[str, str] = field(default_factory=dict)
    """Reason → the first file and line where it occurred."""
    encodings: dict[str, int] = field(default_factory=dict)
    """Encoding → number of files."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""
    train_tokens: int = 0
    held_out_tokens: int = 0
    held_out_characters: int = 0
    vocab_size: int = 0

    def drop(self, reason: str, where: str, *, count: int = 1) -> None:
        """Count something that is left out; keeps the first file and line for each reason."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.examples.setdefault(reason, readable(where))

    def note(self, sentence: str) -> None:
        """Add a sentence for the user, unless it is there already."""
        if readable(sentence) not in self.notes:
            self.notes.append(readable(sentence))

    def count_encoding(self, label: str) -> None:
        """Count a file in this encoding."""
        self.encodings[label] = self.encodings.get(label, 0) + 1

    def describe(self) -> list[str]:
        """The report as lines for a person."""
        counts = tr("{many}, {size} as UTF-8", _characters(self.characters), _bytes(self.bytes))
        lines: list[str] = [tr("read {many}: {kept}, {counts}", _files(self.files), self._kept(), counts)]
        if self.encodings:
            ordered = sorted(self.encodings.items(), key=lambda item: (-item[1], item[0]))
            counted = [tr("{label} ({many})", stored(label), _files(n)) for label, n in ordered]
            lines.append(tr("encoding: ") + listed(counted))
        if self.dropped:
            parts = [
                tr("{n:,} × {reason} (first: {examples})", n, stored(reason), self.examples[reason])
                for reason, n in self.dropped.items()
            ]
            lines.append(tr("left out: ") + joined(parts, en="; ", zh="；"))
        if self.vocab_size:
            lines.append(self._sizes())
        return lines + self.notes

    def _kept(self) -> str:
        return _documents(self.documents)

    def _sizes(self) -> str:
        share = self.held_out_characters / self.characters if self.characters else 0.0
        return tr(
            "tokens: {train_tokens:,} to train on, {held_out_tokens:,} held out ({share:.1%} of "
            "the characters); vocabulary {vocab_size:,}",
            self.train_tokens,
            self.held_out_tokens,
            share,
            self.vocab_size,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The report from the values of `to_dict`."""
        return cls(**values)


@dataclass
class PairReport(ReadReport):
    """A `ReadReport` of pairs: its documents are pairs, both sides together.

    `train_tokens` and `held_out_tokens` count target tokens (with EOS) of the training and the validation pairs;
    `vocab_size` is that of the target side.
    """

    train_pairs: int = 0
    valid_pairs: int = 0
    train_source_tokens: int = 0
    """Source tokens of the training pairs, with EOS."""
    source_vocab_size: int = 0

    def _kept(self) -> str:
        return tr("{many} kept", _pairs(self.documents))

    def _sizes(self) -> str:
        vocabulary = f"{self.vocab_size:,}"
        if self.source_vocab_size != self.vocab_size:
            vocabulary = tr(
                "{source_vocab_size:,} for sources, {vocab_size:,} for targets", self.source_vocab_size, self.vocab_size
            )
        return tr(
            "pairs: {train_pairs:,} to train on ({train_source_tokens:,} source tokens, "
            "{train_tokens:,} target tokens), {valid_pairs:,} held out ({held_out_tokens:,} "
            "target tokens); vocabulary {vocabulary}",
            self.train_pairs,
            self.train_source_tokens,
            self.train_tokens,
            self.valid_pairs,
            self.held_out_tokens,
            vocabulary,
        )


@dataclass(frozen=True)
class BadRecords:
    """Handles records that cannot be read: raises for the first one, or counts them all."""

    report: ReadReport
    skip: bool
    offers: bool = True
    """Whether the error may advise --skip-bad, which not every command that reads records has."""

    def __call__(self, reason: str, where: str, message: str, advice: str | None = None, *, count: int = 1) -> None:
        """Raise `DataError`, or count the record (or `count` of them) under `reason`."""
        if self.skip:
            self.report.drop(reason, where, count=count)
            return
        offer = tr("--skip-bad leaves such records out and counts them.") if self.offers else None
        parts = [part for part in (advice, offer) if part]
        message = tr("{where}: {message}", where, message)
        raise DataError(message, advice=joined(parts) if parts else None)


def readable(name: str) -> str:
    """A file name that can be printed and stored: bytes that are not UTF-8 (lone surrogates in Python) are escaped."""
    if isinstance(name, Words):
        return name.mapped(readable)
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _files(n: int) -> str:
    return tr("{n:,} file", n) if n == 1 else tr("{n:,} files", n)


def _documents(n: int) -> str:
    return tr("{n:,} document", n) if n == 1 else tr("{n:,} documents", n)


def _characters(n: int) -> str:
    return tr("{n:,} character", n) if n == 1 else tr("{n:,} characters", n)


def _bytes(n: int) -> str:
    return tr("{n:,} byte", n) if n == 1 else tr("{n:,} bytes", n)


def _pairs(n: int) -> str:
    return tr("{n:,} pair", n) if n == 1 else tr("{n:,} pairs", n)
