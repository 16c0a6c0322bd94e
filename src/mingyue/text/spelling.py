"""How token ids are spelled: the bytes that an id stands for, in the light of the id before it where that matters.

Text is then always the same two steps, whole or streamed: spell each id in bytes, read the bytes as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import tokenizers

from mingyue.text.spec import byte_letters

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Protocol):
    """Bytes of ids."""

    def alone(self, index: int) -> bytes:
        """Bytes of the id in the middle of a text, whatever stands before it (b"" for a special id)."""
        ...

    def after(self, previous: int | None, index: int) -> bytes:
        """Bytes that the id adds to a text whose last id is `previous`; None = it is the first one."""
        ...


def spelling_of(spec: Mapping[str, Any], backend: tokenizers.Tokenizer, silent: frozenset[int]) -> Spelling:
    """The spelling of a tokenizer.json; `silent` are the special ids, which are spelled as nothing."""
    decoder = spec.get("decoder") or {}
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    names = [step.get("type") for step in steps]
    if names == ["ByteLevel"]:
        return _byte_level(backend, silent)
    plain = all(_is_plain(step) for step in steps)
    if plain and "ByteFallback" in names and names.count("Strip") <= ("Fuse" in names):
        return _byte_fallback(backend, silent, steps)
    return _Contextual(backend, silent)


class _Table:
    """Every id has its bytes; the first id of a text may lose one leading space."""

    def __init__(self, spelled: list[bytes], *, strips_space: bool = False) -> None:
        self._spelled = spelled
        self._strips_space = strips_space

    def alone(self, index: int) -> bytes:
        return self._spelled[index]

    def after(self, previous: int | None, index: int) -> bytes:
        spelled = self._spelled[index]
        return spelled.removeprefix(b" ") if self._strips_space and previous is None else spelled


class _Contextual:
    """Decoders whose text depends on the neighbour (WordPiece, Metaspace, …): what the library adds after it."""

    def __init__(self, backend: tokenizers.Tokenizer, silent: frozenset[int]) -> None:
        self._backend = backend
        self._silent = silent

    def alone(self, index: int) -> bytes:
        return self.after(None, index)

    def after(self, previous: int | None, index: int) -> bytes:
        if index in self._silent:
            return b""
        before = [] if previous is None else [previous]
        known = self._backend.decode(before, skip_special_tokens=False)
        return self._backend.decode([*before, index], skip_special_tokens=False)[len(known) :].encode("utf-8")


def _tokens(backend: tokenizers.Tokenizer, silent: frozenset[int]) -> list[str | None]:
    vocab = backend.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for token, index in vocab.items():
        if index not in silent:
            tokens[index] = token
    return tokens


def _byte_level(backend: tokenizers.Tokenizer, silent: frozenset[int]) -> _Table:
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    spelled = []
    for token in _tokens(backend, silent):
        try:
            spelled.append(bytes(byte_of[letter] for letter in token or ""))
        except KeyError:  # an added token that is written as it is
            spelled.append((token or "").encode("utf-8"))
    return _Table(spelled)


def _byte_fallback(backend: tokenizers.Tokenizer, silent: frozenset[int], steps: list[dict[str, Any]]) -> _Table:
    spelled = []
    for token in _tokens(backend, silent):
        text = token or ""
        for step in steps:
            found = _BYTE_TOKEN.fullmatch(text) if step["type"] == "ByteFallback" else None
            if found:
                spelled.append(bytes([int(found[1], 16)]))
                break
            if step["type"] == "Replace":
                text = text.replace(step["pattern"]["String"], step["content"])
        else:
            spelled.append(text.encode("utf-8"))
    return _Table(spelled, strips_space=any(step["type"] == "Strip" for step in steps))


def _is_plain(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Replace":
        return "String" in step["pattern"]
    if step.get("type") == "Strip":
        return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
    return step.get("type") in ("ByteFallback", "Fuse")
