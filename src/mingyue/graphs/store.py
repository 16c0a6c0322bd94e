"""Graphs that were checked once, in the user's cache folder: a later start needs neither PyTorch nor the check.

A graph holds no weights, and takes some kilobytes. Its name is a hash of all that it depends on, so a file is never
wrong, only missing.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from mingyue.config import PartsConfig
from mingyue.files import write_bytes_atomically
from mingyue.paths import cache_folder

_BUILDER = 1
"""To be raised with every change of what the builder writes."""


def graph_key(config: PartsConfig, weights_sha256: str, kind: str, onnxruntime_version: str) -> str:
    """The name of a graph that was checked with these weights. `kind`: of weights, and which graph it is."""
    parts = [_BUILDER, config.model_dump(mode="json"), weights_sha256, kind, onnxruntime_version]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def kept_graph(key: str) -> bytes | None:
    """The graph of that name; None if there is none that can be read."""
    with suppress(OSError):
        return _path(key).read_bytes()
    return None


def keep_graph(key: str, graph: bytes) -> None:
    """Keep a graph that was checked. Where nothing can be written, it is checked again at the next start."""
    with suppress(OSError):
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(path, graph)


def _path(key: str) -> Path:
    return cache_folder() / "graphs" / f"{key}.onnx"
