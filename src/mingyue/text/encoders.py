"""Text to ids, for each kind: exactly the ids that the tokenizers library gives for the whole text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tokenizers

from mingyue.text.char import CharTable, encode_bytes
from mingyue.text.check import utf8
from mingyue.text.pieces import PIECE, Cutter, always_cuts
from mingyue.text.spec import Kind
from mingyue.text.words import WINDOW, WordEncoder

Ids = npt.NDArray[np.int32]
Progress = Callable[[int, int], None]

_TOGETHER = 64  # pieces given to the library at once, which distributes them over the cores


class Encoder(Protocol):
    """Text to ids."""

    def __call__(self, text: str, progress: Progress | None = None) -> Ids:
        """The ids of the text; `progress` gets characters done and all characters."""
        ...


def encoder_of(kind: Kind, spec: Mapping[str, Any], backend: tokenizers.Tokenizer) -> Encoder:
    """The fastest encoder that is exact for this tokenizer.json."""
    if kind == "char":
        table = CharTable(spec["model"]["vocab"])
        return lambda text, progress=None: table.encode(text)
    if kind == "byte":
        return lambda text, progress=None: encode_bytes(text)
    words = [entry for entry in spec.get("added_tokens") or [] if not entry["special"]]
    plain = not any(entry[flag] for entry in words for flag in ("single_word", "lstrip", "rstrip"))
    if always_cuts(spec) and plain:
        composed = (spec.get("normalizer") or {}).get("type") == "NFC"
        return PieceEncoder(backend, composed=composed, added=[entry["content"] for entry in words])
    return lambda text, progress=None: _whole(backend, text)


class PieceEncoder:
    """Byte-level BPE of a text of any length in bounded memory."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        composed: bool = False,
        added: Sequence[str] = (),
        size: int = PIECE,
        window: int = WINDOW,
    ) -> None:
        vocab = backend.get_vocab(with_added_tokens=True)
        lengths = np.zeros(max(vocab.values()) + 1, dtype=np.int64)
        lengths[list(vocab.values())] = [len(token) for token in vocab]  # each character of a token is a byte
        self._backend = backend
        self._composed = composed
        self._added = added
        self._size = size
        self._cutter = Cutter(backend.pre_tokenizer, size)
        self._words = WordEncoder(backend.model, lengths, window)

    def __call__(self, text: str, progress: Progress | None = None) -> Ids:
        """The ids of the text; `progress` gets characters done and all characters."""
        if len(text) <= self._size:
            return _whole(self._backend, text)
        utf8(text)  # raises for text that has no UTF-8
        if self._composed:  # before cutting, so that no cut separates a letter from its accent
            text = unicodedata.normalize("NFC", text)
        return np.concatenate(list(self._encode(text, progress)))

    def _encode(self, text: str, progress: Progress | None) -> Iterator[Ids]:
        done = 0
        group: list[str] = []
        for piece, is_word in self._pieces(text):
            done += len(piece)
            group.append(piece)
            if is_word or len(group) == _TOGETHER:
                yield from self._group(group[:-1] if is_word else group)
                if is_word:
                    yield self._words.encode(piece)
                group = []
                if progress is not None:
                    progress(done, len(text))
        yield from self._group(group)

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces, and whether each is a word. The text is first cut at the added tokens of the vocabulary."""
        if not any(word in text for word in self._added):
            yield from self._cutter.cut(text)
            return
        longest_first = sorted(self._added, key=len, reverse=True)
        for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text):
            yield from self._cutter.cut(part)

    def _group(self, group: list[str]) -> Iterator[Ids]:
        for encoding in self._backend.encode_batch_fast(group, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.int32)


def _whole(backend: tokenizers.Tokenizer, text: str) -> Ids:
    utf8(text)
    return np.array(backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)
