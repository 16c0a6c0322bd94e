"""The bytes of token ids, which may depend on the previous id.

Decoding is then the same two steps, whole or streamed: ids to bytes, bytes to text as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import tokenizers

from mingyue.text.spec import byte_letters

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(Protocol):
    """The bytes of token ids."""

    def alone(self, index: int) -> bytes:
        """Bytes of the id in the middle of a text (b"" for a special id)."""
        ...

    def after(self, previous: int | None, index: int) -> bytes:
        """Bytes that the id adds after the id `previous` (None: at the start of a text)."""
        ...


def token_bytes_of(spec: Mapping[str, Any], backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> TokenBytes:
    """The bytes of the ids of a tokenizer.json; those of `special_ids` have none."""
    decoder = spec.get("decoder") or {}
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    names = [step.get("type") for step in steps]
    if names == ["ByteLevel"]:
        return _byte_level(backend, special_ids)
    plain = all(_is_plain(step) for step in steps)
    if plain and "ByteFallback" in names and names.count("Strip") <= ("Fuse" in names):
        return _byte_fallback(backend, special_ids, steps)
    return _Contextual(backend, special_ids)


class _Table:
    """Fixed bytes for each id; the first id of a text may lose one leading space."""

    def __init__(self, table: list[bytes], *, strips_space: bool = False) -> None:
        self._table = table
        self._strips_space = strips_space

    def alone(self, index: int) -> bytes:
        return self._table[index]

    def after(self, previous: int | None, index: int) -> bytes:
        data = self._table[index]
        return data.removeprefix(b" ") if self._strips_space and previous is None else data


class _Contextual:
    """Decoders whose text depends on the previous id (WordPiece, Metaspace, …), by decoding both ids."""

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        self._backend = backend
        self._special_ids = special_ids

    def alone(self, index: int) -> bytes:
        return self.after(None, index)

    def after(self, previous: int | None, index: int) -> bytes:
        if index in self._special_ids:
            return b""
        before = [] if previous is None else [previous]
        known = self._backend.decode(before, skip_special_tokens=False)
        return self._backend.decode([*before, index], skip_special_tokens=False)[len(known) :].encode("utf-8")


def _tokens(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> list[str | None]:
    vocab = backend.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for token, index in vocab.items():
        if index not in special_ids:
            tokens[index] = token
    return tokens


def _byte_level(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> _Table:
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    table: list[bytes] = []
    for token in _tokens(backend, special_ids):
        try:
            table.append(bytes(byte_of[letter] for letter in token or ""))
        except KeyError:  # an added token, which is plain text
            table.append((token or "").encode("utf-8"))
    return _Table(table)


def _byte_fallback(backend: tokenizers.Tokenizer, special_ids: frozenset[int], steps: list[dict[str, Any]]) -> _Table:
    table: list[bytes] = []
    for token in _tokens(backend, special_ids):
        text = token or ""
        for step in steps:
            found = _BYTE_TOKEN.fullmatch(text) if step["type"] == "ByteFallback" else None
            if found:
                table.append(bytes([int(found[1], 16)]))
                break
            if step["type"] == "Replace":
                text = text.replace(step["pattern"]["String"], step["content"])
        else:
            table.append(text.encode("utf-8"))
    return _Table(table, strips_space=any(step["type"] == "Strip" for step in steps))


def _is_plain(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Replace":
        return "String" in step["pattern"]
    if step.get("type") == "Strip":
        return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
    return step.get("type") in ("ByteFallback", "Fuse")
