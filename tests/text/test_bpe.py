"""Byte-level BPE: its split, its vocabulary, and learning it in bounded memory."""

import json
import random
import subprocess
import sys
import textwrap

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from mingyue.errors import TokenizerError
from mingyue.text import QWEN2_SPLIT, Tokenizer, train_bpe
from mingyue.text.bpe import _spread, learn_bpe

QWEN_OWN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRICKY = st.text("ab'sSlLtrRevVmMdD好月，。! \t\r\n\u30001２²é́😀_-", max_size=30)


def split(pattern, text):
    return [
        word
        for word, _ in tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated").pre_tokenize_str(text)
    ]


def merged(spec):
    return {left + right for left, right in spec["model"]["merges"]}


def test_words_are_those_of_qwen2():
    text = "I'm here: 床前，明月 123\n\n  x!!\nWE'LL"
    words = ["I", "'m", " here", ":", " 床前", "，明月", " ", "1", "2", "3", "\n\n", " ", " x", "!!\n", "WE", "'LL"]
    assert split(QWEN2_SPLIT, text) == words


@given(TRICKY)
def test_split_is_qwens_own(text):
    """They differ only in the long s, which folds to s and which llama.cpp does not take for one."""
    assert split(QWEN2_SPLIT, text) == split(QWEN_OWN, text)


def test_vocabulary_is_special_ids_bytes_then_merges_in_order(bpe):
    spec = json.loads(bpe.to_json())
    vocab = spec["model"]["vocab"]
    assert [bpe.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert [vocab[left + right] for left, right in spec["model"]["merges"]] == list(range(259, bpe.vocab_size))
    assert bpe.vocab_size == len(vocab) == 700


def test_reloaded_split_encodes_the_same(bpe, plain, mixed):
    """D8: the split pattern is in the file, for us and for the plain library."""
    text = mixed + "unseen: Ωmega 龘龘 9876 's\r\n"
    ids = bpe.encode(text)
    assert Tokenizer.from_json(bpe.to_json()).encode(text) == ids
    assert plain(bpe).encode(text, add_special_tokens=False).ids == ids
    words = split(QWEN2_SPLIT, text)
    assert [index for word in words for index in bpe.encode(word)] == ids, "no token crosses a border of words"


def test_text_that_has_nothing_more_to_merge_gives_fewer_ids():
    tokenizer = train_bpe(["abab ab"], vocab_size=500)
    assert tokenizer.kind == "bpe"
    assert [tokenizer.token_text(index) for index in range(259, tokenizer.vocab_size)] == ["ab"]
    assert train_bpe(["abc"], vocab_size=300).vocab_size == 259


def test_learning_twice_gives_the_same_file(mixed, chinese):
    pieces = [mixed, chinese(2000)]
    assert train_bpe(pieces, vocab_size=600).to_json() == train_bpe(iter(pieces), vocab_size=600).to_json()


def test_progress_rises_to_its_total(chinese):
    """D9: learning shows itself."""
    seen = []
    train_bpe([chinese(150_000)], vocab_size=500, progress=lambda done, total: seen.append((done, total)))
    totals = {total for _, total in seen}
    assert len(seen) > 100 and len(totals) == 1
    assert seen == sorted(seen) and seen[-1] == (totals.pop(),) * 2


def test_a_long_text_is_sampled_evenly():
    """D9: memory for reading is bounded: blocks at even distances over the whole text are kept."""
    rng = random.Random(0)
    blocks = ["".join(rng.choice(letters) for _ in range(1 << 16)) for letters in ("ab", "cd", "ef", "gh")]
    spec = learn_bpe(blocks * 4, 400, read_at_most=600_000)  # of 16 blocks every other one: 8, half a million bytes
    assert {letter for token in merged(spec) for letter in token} == set("abef")
    assert {letter for token in merged(learn_bpe(blocks * 4, 400)) for letter in token} == set("abcdefgh")


def test_different_words_are_counted_up_to_a_bound(chinese):
    """D9: memory for counting is bounded too."""
    parts = [chinese(1 << 16, seed=seed, kinds=2000) for seed in range(8)]
    calls = []
    learn_bpe(parts, 300, lambda done, total: calls.append(done / total), learn_from=150_000)
    assert calls[0] == 0.6, "the first block of 196,608 bytes is enough: counting is done"
    calls.clear()
    learn_bpe(parts, 300, lambda done, total: calls.append(done / total))
    assert calls[0] == 0.6 / 8, "all are counted"


@given(st.integers(1, 200))
def test_blocks_are_visited_once_each_spread_over_the_whole(count):
    order = _spread(count)
    assert sorted(order) == list(range(count))
    if count >= 8:
        assert {index * 4 // count for index in order[: max(8, count // 4)]} == {0, 1, 2, 3}


@pytest.mark.parametrize("pieces", [[], [""], [" ", "\n\t\u3000"]])
def test_training_text_without_words_is_refused(pieces):
    """D10: empty; only white space."""
    with pytest.raises(TokenizerError, match=r"empty|only white space"):
        train_bpe(pieces, vocab_size=300)


def test_too_small_a_vocabulary_is_refused_with_both_numbers():
    with pytest.raises(TokenizerError, match=r"258 .*259"):
        train_bpe(["text"], vocab_size=258)


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is read with resource")
def test_unspaced_chinese_is_learnt_and_encoded_in_bounded_memory():
    """D9: one word of 600,000 characters; the library alone needs some 250 MB more to encode it."""
    code = """
        import random, resource, sys
        from mingyue.text import train_bpe
        rng = random.Random(1)
        text = "".join(chr(0x4e00 + min(1999, int(rng.expovariate(0.01)))) for _ in range(600_000))
        unit = 1e6 if sys.platform == "darwin" else 1e3
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        before = peak()
        tokenizer = train_bpe([text], vocab_size=2000)
        learnt = peak()
        ids = tokenizer.encode_array(text)
        after = peak()
        assert tokenizer.decode(ids[:999]) == text[:len(tokenizer.decode(ids[:999]))]
        print(learnt - before, after - learnt)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    learning, encoding = map(float, done.stdout.split())
    assert learning < 160, "100 bytes for each of 1.8 million bytes"
    assert encoding < 50
