r"""Reads pairs of texts from the files that the user named: aligned files, or records that hold both sides.

Only \n or \r\n ends a line, so that no character inside a text (U+2028, U+0085, a form feed…) can shift the following
lines against the other side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from mingyue.config import DataSettings, PairSettings
from mingyue.data.formats import SURROGATE, lines_of
from mingyue.data.pair_records import Fields, pair_records
from mingyue.data.reading import Gauge, open_text
from mingyue.data.report import BadRecords, Progress, ReadReport
from mingyue.data.sources import Source, expand_sources
from mingyue.errors import DataError
from mingyue.words import listed, stored, tr

Part = Literal["train", "valid"]
EMPTY_SOURCE, EMPTY_TARGET, DUPLICATE = tr("empty source"), tr("empty target"), "duplicate"
TOO_LONG = tr("too long")
_NO_TEXT = tr("pair with half a surrogate pair, or bytes that do not fit the encoding")


class Pair(NamedTuple):
    """A source text and its target, exactly as read, without line ends."""

    source: str
    target: str
    where: str
    """File and line of the source text: "train.en:17"."""


def read_lines(
    path: Path | str,
    encoding: str | None,
    report: ReadReport,
    *,
    skip_bad: bool = False,
    offers_skipping: bool = True,
    progress: Progress | None = None,
) -> Iterator[str]:
    r"""The lines of a text file, of a .gz file, or of standard input ("-"), without their ends, one after the other.

    `encoding` None: UTF-8, or detected and noted in `report`. A line end at the end of the file begins no further line;
    a byte-order mark is not a character, NUL is one. `skip_bad`: bytes that do not fit stay in the line as lone
    surrogates; `offers_skipping`: errors may advise --skip-bad.

    Raises `DataError` for what cannot be read, `SettingsError` for an encoding that does not exist.
    """
    source = _one_file(str(path), report)
    yield from _lines(
        source,
        DataSettings(encoding=encoding, skip_bad=skip_bad),
        report,
        Gauge([source], progress).of(0),
        offers_skipping=offers_skipping,
        keep_nul=True,
    )


def read_pairs(
    settings: PairSettings,
    data: DataSettings,
    report: ReadReport,
    part: Part,
    progress: Progress | None = None,
    *,
    offers_skipping: bool = True,
) -> Iterator[Pair]:
    """The pairs to train on, or the validation pairs, in order. Of `data` the encoding and skip_bad are used.

    Left out and counted in `report`: a pair with an empty side (only white space), and in the training part an exact
    duplicate of an earlier pair (unless `keep_duplicates`).

    Raises `DataError` for aligned files of unequal length (both counts, the first line without a partner), for a
    record that cannot be read (line, what was found; unless `data.skip_bad`), and when no pair is left (how many were
    read, and why they were left out).
    """
    bad = BadRecords(report, data.skip_bad, offers_skipping)
    names = _names(settings, part)
    if settings.pairs if part == "train" else settings.valid_pairs:
        files = expand_sources(names, report)
        pairs = _record_pairs(
            files,
            Fields(settings.source_field, settings.target_field),
            data=data,
            report=report,
            bad=bad,
            progress=progress,
        )
    else:
        files = [_one_file(name, report) for name in names]
        pairs = _aligned_pairs(files, data, report, progress)
    seen: set[bytes] | None = set() if part == "train" and not settings.keep_duplicates else None
    before, kept = dict(report.dropped), 0
    for pair in pairs:
        if SURROGATE.search(pair.source) or SURROGATE.search(pair.target):
            bad(
                _NO_TEXT,
                pair.where,
                tr("half of a surrogate pair, or bytes that do not fit the encoding: this is not text"),
            )
            continue
        reason = _reason(pair, seen)
        if reason is not None:
            report.drop(reason, pair.where)
            continue
        kept += 1
        report.documents += 1
        for text in (pair.source, pair.target):
            report.characters += len(text)
            report.bytes += len(text.encode("utf-8"))
        yield pair
    if not kept:
        raise nothing_left(names, {reason: n - before.get(reason, 0) for reason, n in report.dropped.items()})


def pair_digest(source: str, target: str) -> bytes:
    """A hash of 16 bytes: equal for equal pairs, and with near certainty only for these."""
    return hashlib.blake2b(f"{len(source)}:{source}{target}".encode(), digest_size=16).digest()


def nothing_left(names: Sequence[str], lost: Mapping[str, int]) -> DataError:
    """The error when all pairs were left out: how many there were, and why."""
    reasons = [tr("{count:,} × {reason}", count, stored(reason)) for reason, count in lost.items() if count]
    total = sum(lost.values())
    shown: str = ", ".join(names[:4])
    if len(names) > 4:
        shown = shown + tr(" and {n_names} more", len(names) - 4)
    if not total:
        return DataError(
            tr("no pairs were read from {shown}: 0 pairs", shown),
            advice=tr("Name files that hold pairs of texts."),
        )
    return DataError(
        tr("no pair is left of {shown}: {total:,} read, {total:,} left out ({reasons})", shown, total, listed(reasons)),
        advice=tr("Each pair needs text on both sides, short enough for the model's context."),
    )


def _names(settings: PairSettings, part: Part) -> tuple[str, ...]:
    """Files of a part: those of records, or source, target, source, target…"""
    everything = (*settings.source, *settings.target, *settings.pairs)
    everything += (*settings.valid_source, *settings.valid_target, *settings.valid_pairs)
    if everything.count("-") > 1:
        raise DataError(
            tr("standard input was named more than once, but can only be read once"), advice=tr("Name files instead.")
        )
    records = settings.pairs if part == "train" else settings.valid_pairs
    sources = settings.source if part == "train" else settings.valid_source
    targets = settings.target if part == "train" else settings.valid_target
    names = records or tuple(name for both in zip(sources, targets, strict=True) for name in both)
    if not names:
        options = (
            tr("--source and --target, or --pairs") if part == "train" else tr("--valid-source and --valid-target")
        )
        raise DataError(tr("no pairs of the {part} part were named", part), advice=tr("Give {options}.", options))
    return names


def _reason(pair: Pair, seen: set[bytes] | None) -> str | None:
    if not pair.source or pair.source.isspace():
        return EMPTY_SOURCE
    if not pair.target or pair.target.isspace():
        return EMPTY_TARGET
    if seen is not None:
        digest = pair_digest(pair.source, pair.target)
        if digest in seen:
            return DUPLICATE
        seen.add(digest)
    return None


def _aligned_pairs(
    files: Sequence[Source], data: DataSettings, report: ReadReport, progress: Progress | None
) -> Iterator[Pair]:
    gauge = Gauge(files, progress)
    for at in range(0, len(files), 2):
        source, target = files[at : at + 2]
        sources = _lines(source, data, report, gauge.of(at))
        targets = _lines(target, data, report, gauge.of(at + 1))
        for number, (one, other) in enumerate(zip_longest(sources, targets), start=1):
            if one is None or other is None:
                longer, rest = (target, targets) if one is None else (source, sources)
                raise _unequal(source, target, longer, number, number + sum(1 for _ in rest))
            yield Pair(one, other, f"{source.name}:{number}")


def _unequal(source: Source, target: Source, longer: Source, first_bad: int, most: int) -> DataError:
    counts = [most if file is longer else first_bad - 1 for file in (source, target)]
    return DataError(
        tr(
            "{name} has {counts:,} lines and {other} has {other_counts:,}: "
            "line {first_bad:,} of {longer} has no partner",
            source.name,
            counts[0],
            target.name,
            counts[1],
            first_bad,
            longer.name,
        ),
        advice=tr(
            "Line n of one file belongs to line n of the other; a missing line shifts all that "
            "follow. Repair the files, or name two that belong together."
        ),
    )


def _record_pairs(
    files: Sequence[Source],
    fields: Fields,
    *,
    data: DataSettings,
    report: ReadReport,
    bad: BadRecords,
    progress: Progress | None,
) -> Iterator[Pair]:
    for file in files:
        refuse_other_kinds(file)
    gauge = Gauge(files, progress)
    for at, file in enumerate(files):
        raw = _lines(file, data, report, gauge.of(at), offers_skipping=bad.offers)
        lines = (line + "\n" for line in raw)
        for sides in pair_records(file.kind, lines, file.name, fields, bad):
            yield Pair(sides.source, sides.target, f"{file.name}:{sides.line}")


def _one_file(name: str, report: ReadReport) -> Source:
    files = expand_sources([name], report)
    if len(files) != 1 or not (files[0].named or files[0].repeatable):
        raise DataError(
            tr("{name} is {n_files:,} files, and one was expected", name, len(files)),
            advice=tr("Name each file by itself."),
        )
    refuse_other_kinds(files[0])
    return files[0]


def refuse_other_kinds(file: Source) -> None:
    """Raise `DataError` for Parquet files and data sets of a hub, which pairs are not read from."""
    if file.kind in ("hub", "parquet"):
        raise DataError(
            tr("{name}: pairs are not read from {value}", file.name, "a hub" if file.kind == "hub" else "Parquet"),
            advice=tr("Save them as two aligned text files, or as TSV, CSV or JSON lines."),
        )


def _lines(
    source: Source,
    data: DataSettings,
    report: ReadReport,
    advance: Callable[[int], None],
    *,
    offers_skipping: bool = True,
    keep_nul: bool = False,
) -> Iterator[str]:
    how = {"offers_skipping": offers_skipping, "keep_nul": keep_nul}
    with open_text(source, data, report, advance, **how) as (_, chunks):
        for line in lines_of(chunks):
            yield line.removesuffix("\n")
    advance(source.size)
