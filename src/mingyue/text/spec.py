"""The tokenizer.json of each kind that Mingyue makes, and the kind of a given tokenizer.json.

All kinds have the same layout of ids: 0 PAD, 1 BOS, 2 EOS, 3 + b for the byte b, and from 259 on what was learnt from
the text (characters, or merges in the order in which they were learnt).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Kind = Literal["char", "bpe", "byte", "given"]
Spec = dict[str, Any]

PAD, BOS, EOS = 0, 1, 2
SPECIAL_NAMES = ("<pad>", "<bos>", "<eos>")
FIRST_BYTE = 3
FIRST_LEARNED = FIRST_BYTE + 256

# The pattern that llama.cpp applies under the name "qwen2". Qwen's own tokenizer.json writes the contractions as
# (?i:'s|'t|…), which under Unicode case folding also takes the long s (U+017F) and so differs from llama.cpp there.
QWEN2_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_FOLDED_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_QWEN2_FOLDED = _FOLDED_CONTRACTIONS + QWEN2_SPLIT[QWEN2_SPLIT.index("|[^") :]

# Split patterns for which `pieces.py` knows where they always cut: Qwen2 as above and as Qwen writes it, and Llama 3.
# (GPT-2's is the regex built into the ByteLevel pre-tokenizer.)
KNOWN_SPLITS = frozenset({QWEN2_SPLIT, _QWEN2_FOLDED, _QWEN2_FOLDED.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)})


def byte_letters() -> list[str]:
    """The printable character for each byte in byte-level vocabularies (Radford et al. 2019, GPT-2).

    Printable Latin-1 bytes stand for themselves; the other 68 take U+0100, U+0101, … in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def char_spec(characters: Sequence[str]) -> Spec:
    """One id per character, and byte fallback (<0x00> to <0xFF>) for any other character."""
    tokens = [*SPECIAL_NAMES, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    return _spec(tokens, [], byte_fallback=True, pre_tokenizer=None, decoder=decoder)


def byte_spec() -> Spec:
    """One id per byte."""
    return _spec([*SPECIAL_NAMES, *byte_letters()], [], pre_tokenizer=_byte_level(), decoder=_byte_level())


def bpe_spec(merges: Sequence[tuple[str, str]]) -> Spec:
    """Byte-level BPE after the Qwen2 split; `merges` are pairs of tokens in byte letters, in order of rank."""
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, _byte_level()]}
    tokens = [*SPECIAL_NAMES, *byte_letters(), *(left + right for left, right in merges)]
    return _spec(tokens, [list(pair) for pair in merges], pre_tokenizer=pre_tokenizer, decoder=_byte_level())


def kind_of(spec: Mapping[str, Any]) -> Kind:
    """The kind of a tokenizer.json: one of Mingyue's if every part but the vocabulary is as Mingyue writes it."""
    model = spec.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("vocab"), Mapping):
        return "given"
    vocab, merges = model["vocab"], model.get("merges")
    for kind, ours in (("char", char_spec([])), ("byte", byte_spec()), ("bpe", bpe_spec([]))):
        base = ours["model"]["vocab"]
        same = all(spec.get(part) == ours[part] for part in ours if part != "model")
        same = same and all(model.get(part) == ours["model"][part] for part in _base_parts(ours["model"]))
        same = same and all(vocab.get(token) == index for token, index in base.items())
        if not same or set(vocab.values()) != set(range(len(vocab))):
            continue
        if kind == "char" and not merges and all(len(token) == 1 or token in base for token in vocab):
            return "char"
        if kind == "byte" and not merges and len(vocab) == len(base):
            return "byte"
        if kind == "bpe" and merges is not None:
            return "bpe"
    return "given"


def _base_parts(model: Mapping[str, Any]) -> list[str]:
    """Fields of a model that do not depend on the text it was learnt from."""
    return [part for part in model if part not in ("vocab", "merges")]


def dump(spec: Mapping[str, Any]) -> str:
    """The text of a tokenizer.json."""
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":"))


def fingerprint(spec: Mapping[str, Any]) -> str:
    """sha256 (hex) of the canonical form: keys sorted, no spaces, UTF-8."""
    canonical = json.dumps(spec, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _byte_level() -> Spec:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def _spec(
    tokens: Sequence[str],
    merges: list[list[str]],
    *,
    pre_tokenizer: Spec | None,
    decoder: Spec,
    byte_fallback: bool = False,
) -> Spec:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": name, **flags} for index, name in enumerate(SPECIAL_NAMES)],
        "normalizer": None,  # Qwen has NFC, but decoding must give back the text that was encoded
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": byte_fallback,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges,
        },
    }
