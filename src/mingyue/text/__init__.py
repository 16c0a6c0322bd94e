"""Text to ids and back: characters, byte-level BPE, bytes, or a given tokenizer, each one tokenizer.json."""

from mingyue.text.make import byte_tokenizer, make_tokenizer, train_bpe, train_char
from mingyue.text.missing import MissingCharacters, missing_characters
from mingyue.text.spec import QWEN2_SPLIT
from mingyue.text.stream import StreamDecoder
from mingyue.text.tokenizer import Tokenizer

__all__ = [
    "QWEN2_SPLIT",
    "MissingCharacters",
    "StreamDecoder",
    "Tokenizer",
    "byte_tokenizer",
    "make_tokenizer",
    "missing_characters",
    "train_bpe",
    "train_char",
]
