"""Making tokenizers: from a text, from nothing, or from a file."""

from __future__ import annotations

from collections.abc import Iterable

from mingyue.config import TokenizerSettings
from mingyue.text.bpe import Progress, learn_bpe
from mingyue.text.char import choose_characters, count_characters
from mingyue.text.spec import byte_spec, char_spec
from mingyue.text.tokenizer import Tokenizer


def train_char(pieces: Iterable[str], *, min_count: int = 1) -> Tokenizer:
    """One id for each character seen at least `min_count` times, the most frequent first, equals by code point.

    Any other character is spelled in the bytes of its UTF-8, so every text can be encoded and is read back exactly.
    Raises `TokenizerError` for a text that is empty or only white space.
    """
    return Tokenizer(char_spec(choose_characters(count_characters(pieces), min_count)))


def train_bpe(pieces: Iterable[str], *, vocab_size: int, progress: Progress | None = None) -> Tokenizer:
    """Byte-level BPE behind the Qwen2 split (llama.cpp: pre-tokenizer "qwen2"), `vocab_size` ids or fewer.

    Fewer if the text has no further pair of tokens that occurs twice. Memory is bounded whatever the text; see
    `mingyue.text.bpe`. `progress` gets parts done and all parts. Raises `TokenizerError` for a size below 259, and for
    a text that is empty or only white space.
    """
    return Tokenizer(learn_bpe(pieces, vocab_size, progress))


def byte_tokenizer() -> Tokenizer:
    """One id a byte: 3 + the byte."""
    return Tokenizer(byte_spec())


def make_tokenizer(
    settings: TokenizerSettings, pieces: Iterable[str], *, progress: Progress | None = None
) -> Tokenizer:
    """The tokenizer that the settings ask for, learnt from `pieces` (the training part of the text) where it learns.

    Raises `TokenizerError` as the makers do, and for a file that is not a tokenizer.json.
    """
    if settings.tokenizer in (None, "char"):
        return train_char(pieces, min_count=settings.min_count)
    if settings.tokenizer == "bpe":
        return train_bpe(pieces, vocab_size=settings.tokenizer_size, progress=progress)
    if settings.tokenizer == "byte":
        return byte_tokenizer()
    assert settings.tokenizer is not None  # None is char, above
    return Tokenizer.load(settings.tokenizer)
