"""Makes tokenizers: from a text, without a text, or from a file."""

from __future__ import annotations

from collections.abc import Iterable

from mingyue.config import TokenizerSettings
from mingyue.text.bpe import learn_bpe
from mingyue.text.char import choose_characters, count_characters, fitting_min_count
from mingyue.text.encoders import Progress
from mingyue.text.spec import byte_spec, char_spec
from mingyue.text.tokenizer import Tokenizer
from mingyue.words import tr


def train_char(pieces: Iterable[str], *, min_count: int | None = 1) -> Tokenizer:
    """One id for each character seen at least `min_count` times, the most frequent first, ties by code point.

    Byte fallback encodes any other character as its UTF-8 bytes, so every text can be encoded and decodes exactly.
    `min_count` None: chosen by `fitting_min_count`; the notes of the tokenizer then say which characters have no id.
    Raises `TokenizerError` for a text that is empty or only white space.
    """
    counts = count_characters(pieces)
    least = fitting_min_count(counts) if min_count is None else min_count
    tokenizer = Tokenizer(char_spec(choose_characters(counts, least)))
    rare = counts[(counts > 0) & (counts < least)]
    if min_count is None and len(rare):
        tokenizer.notes = (
            tr(
                "{n_rare:,} of {counts:,} characters, seen fewer than {least} times each and "
                "{rare:.1%} of the text together, use byte fallback (--min-count 1 gives each an id)",
                len(rare),
                (counts > 0).sum(),
                least,
                rare.sum() / counts.sum(),
            ),
        )
    return tokenizer


def train_bpe(pieces: Iterable[str], *, vocab_size: int, progress: Progress | None = None) -> Tokenizer:
    """Byte-level BPE after the Qwen2 split (llama.cpp: pre-tokenizer "qwen2"), `vocab_size` ids or fewer.

    Fewer if no further pair of tokens occurs twice in the text. Memory is bounded whatever the text; see
    `mingyue.text.bpe`. `progress` gets parts done and all parts. Raises `TokenizerError` for a size below 259, and for
    a text that is empty or only white space.
    """
    return Tokenizer(learn_bpe(pieces, vocab_size, progress))


def byte_tokenizer() -> Tokenizer:
    """One id per byte: 3 + the byte."""
    return Tokenizer(byte_spec())


def make_tokenizer(
    settings: TokenizerSettings, pieces: Iterable[str], *, progress: Progress | None = None
) -> Tokenizer:
    """The tokenizer of the settings, learnt from `pieces` (the training part of the text) if its kind is learnt.

    Raises `TokenizerError` as the functions above, and for a file that is not a tokenizer.json.
    """
    if settings.tokenizer in (None, "char"):
        return train_char(pieces, min_count=settings.min_count)
    if settings.tokenizer == "bpe":
        return train_bpe(pieces, vocab_size=settings.tokenizer_size, progress=progress)
    if settings.tokenizer == "byte":
        return byte_tokenizer()
    assert settings.tokenizer is not None  # None is char, above
    return Tokenizer.load(settings.tokenizer)
