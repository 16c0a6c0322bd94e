"""PAD, BOS and EOS of a tokenizer.json from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from mingyue.errors import FormatError, TokenizerError
from mingyue.parsing import parse_json
from mingyue.text.spec import Spec, dump
from mingyue.words import tr

# Names in use, the most specific first; chat tokens and those of BERT are the last resort. The only special token of
# GPT-2, <|endoftext|>, is EOS: BOS and PAD get ids of their own, since EOS must have loss and padding must not.
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
    """The tokenizer of the library for a tokenizer.json. Raises `TokenizerError` if the library refuses it."""
    try:
        backend = tokenizers.Tokenizer.from_str(dump(spec))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            tr("{source}: not a tokenizer.json that the tokenizers library can load: {error}", source, error),
            advice=tr("Give the tokenizer.json of a Hugging Face fast tokenizer, or --tokenizer char, bpe or byte."),
        ) from None
    backend.encode_special_tokens = True  # the name of a special token inside text is text
    return backend


def parse(text: str, source: str) -> Spec:
    """Parse the text of a tokenizer.json. Raises `TokenizerError` with line and column."""
    try:
        spec = parse_json(text)
    except FormatError as error:
        raise TokenizerError(
            tr("{source}: {message}", source, error.message),
            advice=tr("The file is damaged or cut short: copy it again."),
        ) from None
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise TokenizerError(
            tr('{source}: JSON, but not a tokenizer.json: it has no "model"', source),
            advice=tr("Give the file named tokenizer.json, not tokenizer_config.json or vocab.json."),
        )
    return spec


@dataclass(frozen=True)
class SpecialTokens:
    """A tokenizer.json that has all three special tokens."""

    spec: Spec
    backend: tokenizers.Tokenizer
    ids: dict[str, int]
    """Ids by role: pad, bos, eos."""
    notes: list[str]
    """What was added, and warnings, for the user."""


def with_special_tokens(spec: Spec, source: str) -> SpecialTokens:
    """Find PAD, BOS and EOS of a foreign tokenizer.json by their names; returns a copy that has all of them.

    Truncation, padding and BPE dropout are switched off: they would lose text, add ids or draw them at random. A
    missing special token is added after the last id. Raises `TokenizerError` if the library refuses that.
    """
    backend = load_backend(spec, source)
    added = [dict(entry) for entry in spec.get("added_tokens") or []]
    vocab = backend.get_vocab(with_added_tokens=True)
    ids: dict[str, int] = {}
    notes: list[str] = []
    for role, names in _NAMES.items():
        name = next((n for n in names if _is_special(n, vocab, added, backend)), None)
        if name is None:
            name = next((n for n in names if n not in vocab), f"<|mingyue-{role}|>")
            vocab[name] = max(vocab.values(), default=-1) + 1
            notes.append(tr("{name} added as id {vocab} ({role})", name, vocab[name], role))
        ids[role] = vocab[name]
        entry = next((e for e in added if e["content"] == name), None)
        if entry is None:
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            entry = {"id": vocab[name], "content": name, **flags}
            added.append(entry)
        entry["special"] = True
    added.sort(key=lambda entry: entry["id"])
    complete = {**spec, "truncation": None, "padding": None, "added_tokens": added}
    if dropout := spec["model"].get("dropout"):
        complete["model"] = {**spec["model"], "dropout": None}
        notes.append(tr("BPE dropout {dropout} switched off: a text always has the same ids", dropout))
    if complete != spec:
        backend = load_backend(complete, source)
    for role, index in ids.items():
        name = next(n for n, i in vocab.items() if i == index)
        got = backend.token_to_id(name)
        if got != index:
            raise TokenizerError(
                tr(
                    "{source}: {name} ({role}) should be id {index}, but the library makes it {got}",
                    source,
                    name,
                    role,
                    index,
                    got,
                ),
                advice=tr("The vocabulary has gaps between its ids: add pad, bos and eos tokens to the file."),
            )
        if _reachable(name, index, backend):  # the token is in the vocabulary of the model
            notes.append(tr("text that contains {name} becomes that special token", name))
    return SpecialTokens(complete, backend, ids, notes)


def _is_special(
    name: str, vocab: Mapping[str, int], added: list[dict[str, Any]], backend: tokenizers.Tokenizer
) -> bool:
    """Whether `name` is a special token: an added token, or one of the vocabulary that no text is encoded as."""
    if name not in vocab:
        return False
    if any(entry["content"] == name for entry in added):
        return True
    return not _reachable(name, vocab[name], backend)


def _reachable(name: str, index: int, backend: tokenizers.Tokenizer) -> bool:
    return index in backend.encode(name, add_special_tokens=False).ids
