"""hf:// data sets: their Parquet files, read over the network batch by batch.

The hub converts every public data set to Parquet in the revision refs/convert/parquet, as config/split/NNNN.parquet;
if that is missing, Parquet files of the repository itself are read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from mingyue.data.formats import Record
from mingyue.data.parquet import parquet_records
from mingyue.data.report import BadRecords
from mingyue.errors import DataError, MissingExtraError
from mingyue.words import tr

_NAME = re.compile(r"hf://(?:datasets/)?([\w.-]+)/([\w.-]+)((?:/[\w.-]+)*)(?::([\w.+-]+))?")
_CONVERTED = "refs/convert/parquet"


class HubFileSystem(Protocol):
    """The methods of an fsspec file system that are used."""

    def ls(self, path: str, detail: bool = True) -> list[Any]:
        """Entries of a folder: names, or dictionaries with name and type."""
        ...

    def find(self, path: str) -> list[str]:
        """Every file below a folder."""
        ...

    def info(self, path: str) -> dict[str, Any]:
        """Size and hashes of a file."""
        ...

    def open(self, path: str, mode: str) -> BinaryIO:
        """A file to read from."""
        ...


@dataclass(frozen=True)
class HubFile:
    """One Parquet file: path in the file system, size in bytes, and a mark that changes with its content."""

    path: str
    size: int
    mark: str


def hub_files(source: str) -> tuple[HubFileSystem, list[HubFile]]:
    """The file system and the files of hf://owner/name[/config][:split].

    The config may be omitted if there is only one, or one called default; the split defaults to train. Raises
    `DataError` that lists what exists.
    """
    match = _NAME.fullmatch(source)
    if match is None:
        raise DataError(
            tr("{source} is not a data set of the hub", source),
            advice=tr("Write hf://owner/name, hf://owner/name/config:split."),
        )
    owner, name, folder, split = match[1], match[2], match[3].strip("/"), match[4]
    files = _filesystem(source)
    try:
        found = _converted(files, source, f"datasets/{owner}/{name}@{_CONVERTED}", folder, split)
        if found is None:
            found = _own(files, source, f"datasets/{owner}/{name}", folder, split)
        return files, [_describe(files, path) for path in found]
    except DataError:
        raise
    except Exception as error:  # the network libraries below have no common error class
        raise DataError(
            tr("{source} cannot be read: {kind}: {error}", source, type(error).__name__, error),
            advice=tr("Check the name and the network (a private data set needs `hf auth login`)."),
        ) from None


def hub_records(source: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """The records of a hub data set, file after file."""
    files, found = hub_files(source)
    for item in found:
        label = f"{source} ({posixpath.basename(item.path)})"
        try:
            with files.open(item.path, "rb") as file:
                yield from parquet_records(file, label, field, bad)
        except (DataError, MissingExtraError):
            raise
        except Exception as error:
            raise DataError(tr("{label} cannot be read: {kind}: {error}", label, type(error).__name__, error)) from None


def _filesystem(source: str) -> HubFileSystem:
    try:
        from huggingface_hub import HfFileSystem
    except ImportError:
        raise MissingExtraError(
            tr("reading {source} needs huggingface-hub", source),
            advice=tr("Install the extra: pip install 'mingyue[data]'."),
        ) from None
    return cast(HubFileSystem, HfFileSystem())


def _converted(files: HubFileSystem, source: str, root: str, config: str, split: str | None) -> list[str] | None:
    configs = _folders(files, root)
    if not configs:
        return None
    chosen = _choose(source, "config", config or None, configs, "default")
    splits = _folders(files, f"{root}/{chosen}")
    picked = _choose(source, "split", split, splits, "train")
    return _parquet(files.ls(f"{root}/{chosen}/{picked}", detail=False)) or None


def _own(files: HubFileSystem, source: str, root: str, folder: str, split: str | None) -> list[str]:
    every = _parquet(files.find(f"{root}/{folder}" if folder else root))
    if not every:
        raise DataError(
            tr("{source} has no Parquet files", source), advice=tr("Download it and name its files instead.")
        )
    wanted = split or "train"
    found = [path for path in every if wanted in re.split(r"[^A-Za-z0-9]+", path.removeprefix(root))]
    if found or split is None:
        return found or every
    raise DataError(
        tr(
            "{source} has no files of a split {split!r}; its first file is {every}",
            source,
            split,
            every[0].removeprefix(root),
        )
    )


def _folders(files: HubFileSystem, path: str) -> list[str]:
    try:
        entries = files.ls(path, detail=True)
    except FileNotFoundError:
        return []
    return sorted(posixpath.basename(entry["name"].rstrip("/")) for entry in entries if entry["type"] == "directory")


def _choose(source: str, what: str, asked: str | None, there: list[str], usual: str) -> str:
    if asked is not None:
        if asked in there:
            return asked
    elif usual in there:
        return usual
    elif len(there) == 1:
        return there[0]
    wanted = tr("no {what} {asked!r}", what, asked) if asked is not None else tr("more than one {what}", what)
    example = f"{source}/{there[0]}" if what == "config" else f"{source}:{there[0]}"
    advice = tr("Name one of them, for example {example}.", example) if asked is None and there else None
    raise DataError(
        tr("{source} has {wanted}; it has: {there}", source, wanted, ", ".join(there) or "none"),
        advice=advice,
    )


def _parquet(paths: list[str]) -> list[str]:
    return sorted(path for path in paths if path.endswith(".parquet"))


def _describe(files: HubFileSystem, path: str) -> HubFile:
    info = files.info(path)
    mark = str(info.get("lfs") or info.get("blob_id") or info.get("etag") or info.get("mtime") or "")
    return HubFile(path, int(info.get("size") or 0), mark)
