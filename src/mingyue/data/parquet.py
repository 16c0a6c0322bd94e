"""Parquet files: the records of one column. What is damaged is named by file and row group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mingyue.data.formats import DEFAULT_FIELD, Record, no_column
from mingyue.data.report import BadRecords
from mingyue.errors import DataError, MissingExtraError
from mingyue.words import tr

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 4096  # rows
_ADVICE = tr("Write or download the file again.")


def parquet_records(file: Path | BinaryIO, name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a Parquet file, read in batches. `MissingExtraError` without pyarrow.

    A value that is not text goes to `bad`, and so do the rows of a damaged row group that could not be read.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(
            tr("reading {name} needs pyarrow", name), advice=tr("Install the extra: pip install 'mingyue[data]'.")
        ) from None
    column = field or DEFAULT_FIELD
    # pyarrow raises OSError for damaged pages; for a file that is read over a network it may also be the network's
    damage = (pa.ArrowException, OSError) if isinstance(file, Path) else (pa.ArrowException,)
    try:
        table = pq.ParquetFile(file, page_checksum_verification=True)
        names = table.schema_arrow.names
    except damage as error:
        raise DataError(tr("{name} is not a complete Parquet file: {error}", name, error), advice=_ADVICE) from None
    if column not in names:
        raise no_column(name, column, names)
    row = 0
    for group in range(table.num_row_groups):
        end = row + table.metadata.row_group(group).num_rows
        try:
            for batch in table.iter_batches(columns=[column], batch_size=_BATCH, row_groups=[group]):
                for value in _values(batch.column(0)):
                    row += 1
                    if isinstance(value, str):
                        yield Record(value, row)
                    else:
                        _refuse(value, column, tr("{name}, row {row}", name, row), bad)
        except damage as error:
            where = tr(
                "{name}, row group {group} of {num_row_groups} (rows {row:,} to {end:,})",
                name,
                group + 1,
                table.num_row_groups,
                row + 1,
                end,
            )
            bad(tr("row of a damaged row group"), where, tr("damaged: {error}", error), _ADVICE, count=end - row)
            row = end


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; bytes in place of text that is not UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_decoded(value) for value in column.cast("large_binary").to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return value if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _refuse(value: object, column: str, where: str, bad: BadRecords) -> None:
    if isinstance(value, bytes):
        bad(
            tr("record that is not UTF-8"),
            where,
            tr("{column!r} holds bytes that are not UTF-8", column),
            _ADVICE,
        )
        return
    what = "empty" if value is None else type(value).__name__
    bad(
        tr("record whose {column!r} is not text", column),
        where,
        tr("{column!r} is {what}, not text", column, what),
    )
