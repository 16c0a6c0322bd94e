"""Byte-level BPE with the Qwen2 split: samples the text and learns the vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers

from mingyue.errors import TokenizerError
from mingyue.text.char import no_text
from mingyue.text.check import utf8
from mingyue.text.encoders import Progress
from mingyue.text.merges import learn_merges
from mingyue.text.pieces import Cutter
from mingyue.text.spec import FIRST_LEARNED, QWEN2_SPLIT, Spec, bpe_spec
from mingyue.words import tr

READ_AT_MOST = 1 << 26
"""Bytes of text held in memory; a longer text is sampled evenly."""
LEARN_FROM = 1 << 24
"""Bytes of distinct words to learn from; about 50 bytes of memory for each."""
_BLOCK = 1 << 16


def learn_bpe(
    pieces: Iterable[str],
    vocab_size: int,
    progress: Progress | None = None,
    *,
    read_at_most: int = READ_AT_MOST,
    learn_from: int = LEARN_FROM,
) -> Spec:
    """The tokenizer.json of a vocabulary of `vocab_size` ids, or fewer if no pair of tokens is left that occurs twice.

    Memory is bounded whatever the text: of one longer than `read_at_most` bytes, blocks at even distances are kept;
    blocks spread over these are counted until their distinct words fill `learn_from` bytes. `progress` gets parts
    done and all parts. Raises `TokenizerError` for a size below 259, and for a text that is empty or only white space.
    """
    if vocab_size < FIRST_LEARNED:
        raise TokenizerError(
            tr(
                "a bpe vocabulary of {vocab_size} ids is too small: 256 bytes and 3 special ids need {first_learned}",
                vocab_size,
                FIRST_LEARNED,
            ),
            advice=tr("Give --tokenizer-size {first_learned} or more.", FIRST_LEARNED),
        )
    report = progress or (lambda done, total: None)
    blocks = _sample(pieces, read_at_most)
    words = _count_words(blocks, learn_from, lambda done, total: report(600 * done // total, 1000))
    merges = learn_merges(
        words, vocab_size - FIRST_LEARNED, lambda done, total: report(600 + 400 * done // total, 1000)
    )
    report(1000, 1000)
    return bpe_spec(merges)


def _sample(pieces: Iterable[str], at_most: int) -> list[list[str]]:
    """Blocks of pieces at even distances over the whole text, `at_most` bytes in total."""
    kept: list[list[str]] = []
    size, step, characters, any_word = 0, 1, 0, False
    for number, (block, length) in enumerate(_blocks(pieces)):
        characters += sum(map(len, block))
        any_word = any_word or any(not part.isspace() for part in block)
        if number % step:
            continue
        kept.append(block)
        size += length
        while size > at_most and len(kept) > 1:  # from here on every other block, of those kept and of those to come
            kept = kept[::2]
            step *= 2
            size = sum(len(utf8(part)) for block in kept for part in block)
    if not any_word:
        raise no_text(characters)
    return kept


def _blocks(pieces: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Blocks of whole pieces, or of parts of long ones, with their size in bytes."""
    block: list[str] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), _BLOCK):
            part = piece[start : start + _BLOCK]  # a word cut here counts as two: one in 65,536 characters
            block.append(part)
            size += _bytes(part, piece)
            if size >= _BLOCK:
                yield block, size
                block = []
                size = 0
    if block:
        yield block, size


def _bytes(part: str, piece: str) -> int:
    try:
        return len(utf8(part))
    except TokenizerError:
        utf8(piece)  # the same error, with the position in the whole piece
        raise


def _count_words(blocks: list[list[str]], at_most: int, progress: Progress) -> Counter[str]:
    """Counts of the words (matches of the split)."""
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2_SPLIT), "isolated")
    cutter = Cutter(split)
    words: Counter[str] = Counter()
    size = 0
    for done, index in enumerate(_spread(len(blocks)), start=1):
        here: Counter[str] = Counter()
        for text in blocks[index]:
            for piece, _ in cutter.cut(text):
                here.update([word for word, _ in split.pre_tokenize_str(piece)])
        size += sum(len(word.encode("utf-8")) for word in here if word not in words)
        words.update(here)
        progress(int(1000 * max(done / len(blocks), min(1.0, size / at_most))), 1000)
        if size >= at_most:
            break
    return words


def _spread(count: int) -> list[int]:
    """0 … count - 1 in an order of which any prefix is spread over the whole (van der Corput)."""
    width = max(1, (count - 1).bit_length())
    mirrored = (int(f"{number:0{width}b}"[::-1], 2) for number in range(1 << width))
    return [index for index in mirrored if index < count]
