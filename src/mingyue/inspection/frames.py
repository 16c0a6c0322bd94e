"""Frames of a film: attention and predictions on one text at one training step, small enough to keep many.

    <run>/watch/step-00001234.safetensors

Attention maps are bytes (255 = weight 1) of at most 64 × 64 cells per head; the lens keeps the most likely tokens and
their probabilities. Text is JSON in the header of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mingyue.files import write_bytes_atomically
from mingyue.inspection.attention_weights import part_weights
from mingyue.inspection.labels import token_at
from mingyue.inspection.parts import Part, attention_parts
from mingyue.inspection.subject import Reading, Subject
from mingyue.parsing import as_object, parse_json
from mingyue.paths import utf8_name
from mingyue.training.storage import disk_errors
from mingyue.words import tr

FORMAT = 1
SIDE = 64
"""Maximum cells per side of a map; for longer texts blocks of tokens are kept."""
MOST_POSITIONS = 128
"""Positions whose predictions are kept: the last ones."""
_TOP = 3
_NAME = re.compile(r"step-(\d{8,})\.safetensors")
_HEADER = "frame"


@dataclass(frozen=True, eq=False)
class FramePart:
    """One kind of attention."""

    part: Part
    bytes_LHTS: NDArray[np.uint8]
    """Weights × 255. For blocks of tokens: mean over queries, sum over keys."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    tokens: tuple[int, int]
    """Number of queries and keys, in single tokens."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Attention and predictions on one text after `step` training steps."""

    step: int
    text: str
    """The text; of a pair the target, which is the model's own translation at that step."""
    source: str | None
    parts: tuple[FramePart, ...]
    pieces_T: tuple[str, ...]
    """The tokens whose predictions were kept."""
    truth_pieces_T: tuple[str, ...]
    """The token that comes next at each position; empty where none is known."""
    places_L: tuple[str, ...]
    """Names of taps: embeddings, then each block."""
    words_LTK: tuple[tuple[tuple[str, ...], ...], ...]
    """The most likely next tokens, as printable text."""
    ids_LTK: NDArray[np.int32]
    probabilities_LTK: NDArray[np.float32]
    logprob_T: NDArray[np.float32]
    """log P of the token that comes next, from the model's output; NaN where none is known."""

    @property
    def watched(self) -> str:
        """The watched text: of a pair its source."""
        return self.text if self.source is None else self.source

    @property
    def first_position(self) -> int:
        """The position of the first of `pieces_T` in the input of the (target side of the) model, from 0."""
        return self.parts[-1].tokens[0] - len(self.pieces_T)

    def read_at(self, number: int) -> str:
        """The token `number` of `pieces_T` with its position."""
        return token_at(self.first_position + number, self.pieces_T[number])

    @property
    def loss(self) -> float:
        """Mean −log P of the tokens that were kept, in nats; NaN for a text of one token."""
        known = self.logprob_T[np.isfinite(self.logprob_T)]
        return float(-known.mean()) if known.size else float("nan")


def take_frame(subject: Subject, reading: Reading, step: int) -> Frame:
    """The frame of a text, from the model as it is. Raises `GenerationError` as `capture` and `attention_view` do."""
    from mingyue.inspection.lens import lens_view  # with charts, which runs without --watch do not load

    lens = lens_view(subject, reading, top=_TOP)
    kept = slice(max(0, len(lens.pieces_T) - MOST_POSITIONS), None)
    parts = []
    for part in attention_parts(subject):
        found = part_weights(subject, reading, part)
        weights_LHTS, starts_T, starts_S = _in_blocks(found.weights_LHTS)
        parts.append(
            FramePart(
                part.name,
                np.rint(np.clip(weights_LHTS, 0, 1) * 255).astype(np.uint8),
                tuple(found.rows[start] for start in starts_T),
                tuple(found.columns[start] for start in starts_S),
                found.tokens,
            )
        )
    return Frame(
        step=step,
        text=reading.text,
        source=reading.source,
        parts=tuple(parts),
        pieces_T=lens.pieces_T[kept],
        truth_pieces_T=lens.truth_pieces_T[kept],
        places_L=lens.places_L,
        words_LTK=tuple(words_TK[kept] for words_TK in lens.top_pieces_LTK),
        ids_LTK=lens.top_ids_LTK[:, kept].astype(np.int32),
        probabilities_LTK=lens.top_probabilities_LTK[:, kept].astype(np.float32),
        logprob_T=lens.truth_logprob_LT[-1, kept].astype(np.float32),
    )


def _in_blocks(weights_LHTS: NDArray[Any]) -> tuple[NDArray[Any], list[int], list[int]]:
    """Blocks of at most `SIDE` rows and columns, with the first token of each; rows still sum to 1."""
    starts = []
    for axis in (2, 3):
        n_tokens = weights_LHTS.shape[axis]
        n_cells = min(SIDE, n_tokens)
        first = np.arange(n_cells) * n_tokens // n_cells
        weights_LHTS = np.add.reduceat(weights_LHTS, first, axis=axis)
        if axis == 2:
            weights_LHTS = weights_LHTS / np.diff([*first, n_tokens])[:, None]
        starts.append(first.tolist())
    return weights_LHTS, starts[0], starts[1]


def frame_path(folder: Path, step: int) -> Path:
    """The path of the frame of a step."""
    return folder / f"step-{step:08d}.safetensors"


def write_frame(folder: Path, frame: Frame) -> Path:
    """Write a frame atomically. Raises `CheckpointError` if the disk refuses."""
    ids, first = np.unique(frame.ids_LTK, return_index=True)
    flat = [word for words_TK in frame.words_LTK for words_K in words_TK for word in words_K]
    header = {
        "format": FORMAT,
        "step": frame.step,
        "text": frame.text,
        "source": frame.source,
        "pieces": frame.pieces_T,
        "truth_pieces": frame.truth_pieces_T,
        "places": frame.places_L,
        "words": {str(index): flat[number] for index, number in zip(ids, first, strict=True)},
        "parts": [
            {"part": part.part, "rows": part.rows, "columns": part.columns, "tokens": part.tokens}
            for part in frame.parts
        ],
    }
    arrays = {f"attention.{part.part}": part.bytes_LHTS for part in frame.parts}
    arrays |= {
        "lens.ids": frame.ids_LTK,
        "lens.probabilities": frame.probabilities_LTK,
        "lens.logprob": frame.logprob_T,
    }
    content = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={_HEADER: json.dumps(header, ensure_ascii=False)},
    )
    path = frame_path(folder, frame.step)
    with disk_errors(tr("a frame of the film"), path):
        folder.mkdir(exist_ok=True)
        write_bytes_atomically(path, content)
    return path


def read_frames(folder: Path) -> tuple[list[Frame], list[str]]:
    """All frames in a folder by step, and names of files that are damaged or of a later version."""
    frames, bad = list[Frame](), list[str]()
    for path in sorted(folder.glob("step-*.safetensors")) if folder.is_dir() else ():
        if not _NAME.fullmatch(path.name):
            continue
        try:
            frames.append(_read(path))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            bad.append(path.name)
    return sorted(frames, key=lambda frame: frame.step), bad


def _read(path: Path) -> Frame:
    with utf8_name(path) as name, safe_open(name, framework="numpy") as file:
        header = as_object(parse_json((file.metadata() or {})[_HEADER]))
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}")
        arrays = {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118  (not a mapping)
    words = {int(index): word for index, word in header["words"].items()}
    ids_LTK = arrays["lens.ids"]
    return Frame(
        step=int(header["step"]),
        text=header["text"],
        source=header["source"],
        parts=tuple(
            FramePart(
                part["part"],
                arrays[f"attention.{part['part']}"],
                tuple(part["rows"]),
                tuple(part["columns"]),
                _two(part["tokens"]),
            )
            for part in header["parts"]
        ),
        pieces_T=tuple(header["pieces"]),
        truth_pieces_T=tuple(header["truth_pieces"]),
        places_L=tuple(header["places"]),
        words_LTK=tuple(
            tuple(tuple(words[index] for index in ids_K) for ids_K in ids_TK) for ids_TK in ids_LTK.tolist()
        ),
        ids_LTK=ids_LTK,
        probabilities_LTK=arrays["lens.probabilities"],
        logprob_T=arrays["lens.logprob"],
    )


def _two(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second
