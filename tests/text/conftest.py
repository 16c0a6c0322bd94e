"""Texts and tokenizers that the tests share; all made here."""

import random

import pytest
import tokenizers

from mingyue.text import byte_tokenizer, train_bpe, train_char

MIXED = (
    "床前明月光，疑是地上霜。\r\n举头望明月，低头思故乡。\n\n"
    "It's the moon's light; they'll say we've seen 2,024 moons...\n"
    "  for i in range(10):\n\t\tprint(i)   \n\n\n" + "the moon and the man " * 6 + "明月明月明月光光光 ——!!!!\n"
)


def _chinese(characters: int, *, seed: int = 1, kinds: int = 400) -> str:
    """Unspaced, unpunctuated Chinese-looking text, a few characters far more frequent than the rest."""
    rng = random.Random(seed)
    return "".join(chr(0x4E00 + min(kinds - 1, int(rng.expovariate(8 / kinds)))) for _ in range(characters))


def _plain(tokenizer):
    """The plain library's tokenizer from the same tokenizer.json."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    backend.encode_special_tokens = True
    return backend


@pytest.fixture(scope="session")
def mixed():
    """A text of many kinds of words."""
    return MIXED


@pytest.fixture(scope="session")
def chinese():
    """Makes unspaced Chinese: chinese(characters, seed=…, kinds=…)."""
    return _chinese


@pytest.fixture(scope="session")
def plain():
    """The library's own tokenizer from the same file: plain(tokenizer)."""
    return _plain


@pytest.fixture(scope="session")
def char():
    return train_char([MIXED])


@pytest.fixture(scope="session")
def bpe():
    return train_bpe([MIXED, _chinese(8000)], vocab_size=700)


@pytest.fixture(scope="session", params=["char", "bpe", "byte"])
def made(request):
    """Each kind of tokenizer that we make."""
    return byte_tokenizer() if request.param == "byte" else request.getfixturevalue(request.param)
