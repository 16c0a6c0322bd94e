"""Padding, begin and end marks of a tokenizer.json that someone else made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from mingyue.errors import TokenizerError
from mingyue.text.spec import Spec, dump

# Names in the wild, most telling first; chat marks and BERT's are the last resort. GPT-2's only mark, <|endoftext|>, is
# an end mark: begin and padding get ids of their own, since the end of a text must have loss and padding must not.
_NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<PAD>", "<|padding|>", "<｜▁pad▁｜>", "<|finetune_right_pad_id|>"),
    "bos": (
        *("<bos>", "<s>", "[BOS]", "<|bos|>", "<BOS>", "<|begin_of_text|>", "<|startoftext|>"),
        *("<｜begin▁of▁sentence｜>", "<|im_start|>", "[CLS]"),
    ),
    "eos": (
        *("<eos>", "</s>", "[EOS]", "<|eos|>", "<EOS>", "<|end_of_text|>", "<|endoftext|>"),
        *("<｜end▁of▁sentence｜>", "<|im_end|>", "[SEP]"),
    ),
}


def load_backend(spec: Mapping[str, Any], source: str) -> tokenizers.Tokenizer:
    """The library's tokenizer for a tokenizer.json. Raises `TokenizerError` if it does not take it."""
    try:
        backend = tokenizers.Tokenizer.from_str(dump(spec))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{source}: not a tokenizer.json that the tokenizers library can load: {error}",
            advice="Give the tokenizer.json of a Hugging Face fast tokenizer, or --tokenizer char, bpe or byte.",
        ) from None
    backend.encode_special_tokens = True  # text that spells a special token is text
    return backend


def parse(text: str, source: str) -> Spec:
    """Parse the text of a tokenizer.json. Raises `TokenizerError` with line and column."""
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise TokenizerError(
            f"{source}: not JSON: {error.msg} at line {error.lineno}, column {error.colno} of {len(text)} characters",
            advice="The file is damaged or cut short: copy it again.",
        ) from None
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise TokenizerError(
            f'{source}: JSON, but not a tokenizer.json: it has no "model"',
            advice="Give the file named tokenizer.json, not tokenizer_config.json or vocab.json.",
        )
    return spec


@dataclass(frozen=True)
class Marked:
    """A foreign tokenizer.json that has all three marks."""

    spec: Spec
    backend: tokenizers.Tokenizer
    ids: dict[str, int]
    """Ids by role: pad, bos, eos."""
    notes: list[str]
    """What was added, and what to beware of, for people."""


def with_marks(spec: Spec, source: str) -> Marked:
    """Find the marks of a foreign tokenizer.json, in a copy that has all of them.

    Cutting and padding to a length are switched off: they would lose text or add ids. A mark is found by its name; one
    that is missing becomes a new token after the last id. Raises `TokenizerError` where the library refuses that.
    """
    backend = load_backend(spec, source)
    added = [dict(entry) for entry in spec.get("added_tokens") or []]
    vocab = backend.get_vocab(with_added_tokens=True)
    ids: dict[str, int] = {}
    notes: list[str] = []
    for role, names in _NAMES.items():
        name = next((n for n in names if _is_mark(n, vocab, added, backend)), None)
        if name is None:
            name = next((n for n in names if n not in vocab), f"<|mingyue-{role}|>")
            vocab[name] = max(vocab.values(), default=-1) + 1
            notes.append(f"{name} added as id {vocab[name]} ({role})")
        ids[role] = vocab[name]
        entry = next((e for e in added if e["content"] == name), None)
        if entry is None:
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            entry = {"id": vocab[name], "content": name, **flags}
            added.append(entry)
        entry["special"] = True
    added.sort(key=lambda entry: entry["id"])
    marked = {**spec, "truncation": None, "padding": None, "added_tokens": added}
    if marked != spec:
        backend = load_backend(marked, source)
    for role, index in ids.items():
        name = next(n for n, i in vocab.items() if i == index)
        got = backend.token_to_id(name)
        if got != index:
            raise TokenizerError(
                f"{source}: {name} ({role}) should be id {index}, but the library makes it {got}",
                advice="The vocabulary has gaps between its ids: give the file the three marks (pad, bos, eos) itself.",
            )
        if _reachable(name, index, backend):  # its model holds the mark as a word
            notes.append(f"text that spells {name} becomes that mark")
    return Marked(marked, backend, ids, notes)


def _is_mark(name: str, vocab: Mapping[str, int], added: list[dict[str, Any]], backend: tokenizers.Tokenizer) -> bool:
    """Whether `name` is a mark and not a word: an added token, or in the vocabulary where no text can reach it."""
    if name not in vocab:
        return False
    if any(entry["content"] == name for entry in added):
        return True
    return not _reachable(name, vocab[name], backend)


def _reachable(name: str, index: int, backend: tokenizers.Tokenizer) -> bool:
    return index in backend.encode(name, add_special_tokens=False).ids
