"""Long texts in pieces, endless words in windows: the ids of the whole, exactly."""

import json
import random

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.text import QWEN2_SPLIT, Tokenizer, train_bpe
from mingyue.text.encoders import PieceEncoder
from mingyue.text.pieces import Cutter, always_cuts
from mingyue.text.words import WordEncoder

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RUNS = st.tuples(
    st.sampled_from(
        [*"aZs'`!，。好月é\u0301 \t\n\r\u3000\x85\x1c5²😀_ก", "'s", "'ll", "\r\n", " \n", "明月", "<think>"]
    ),
    st.one_of(st.integers(1, 3), st.integers(1, 60)),
).map(lambda run: run[0] * run[1])
TEXT = st.lists(RUNS, max_size=12).map("".join)
SIZE = st.integers(8, 40)


@pytest.fixture(scope="module")
def families(bpe):
    """The same vocabulary behind each split whose cuts we know."""
    spec = json.loads(bpe.to_json())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    llama = json.loads(json.dumps(spec))
    llama["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = LLAMA3_SPLIT
    llama["model"]["ignore_merges"] = True
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    think = {"id": 700, "content": "<think>", **flags, "special": False}
    qwen = {**spec, "normalizer": {"type": "NFC"}, "added_tokens": [*spec["added_tokens"], think]}
    all_specs = {"ours": spec, "gpt2": {**spec, "pre_tokenizer": byte_level}, "llama3": llama, "qwen2": qwen}
    out = {}
    for name, each in all_specs.items():
        assert always_cuts(each)
        backend = tokenizers.Tokenizer.from_str(json.dumps(each))
        backend.encode_special_tokens = True
        out[name] = backend
    return out.__getitem__


@settings(max_examples=300)
@given(st.sampled_from(["ours", "gpt2", "llama3", "qwen2"]), TEXT, SIZE, st.integers(16, 64))
def test_ids_in_pieces_are_those_of_the_whole(families, name, text, size, window):
    backend = families(name)
    added = ["<think>"] if name == "qwen2" else []
    encoder = PieceEncoder(backend, composed=name == "qwen2", added=added, size=size, window=window)
    assert encoder(text).tolist() == backend.encode(text, add_special_tokens=False).ids


@given(TEXT, SIZE)
def test_every_cut_is_one_of_the_pre_tokenizer(text, size):
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2_SPLIT), "isolated")
    borders = {end for _, (_, end) in split.pre_tokenize_str(text)}
    position = 0
    for piece, is_word in Cutter(split, size).cut(text):
        assert piece == text[position : position + len(piece)]
        position += len(piece)
        assert position in borders
        if is_word:
            assert len(split.pre_tokenize_str(piece)) == 1
    assert position == len(text)


def test_pieces_of_ordinary_text_are_short(chinese):
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2_SPLIT), "isolated")
    text = "".join(f"{chinese(7, seed=seed)}，" for seed in range(5000)) + " and so on;\n\t" * 999
    pieces = list(Cutter(split).cut(text))
    assert max(len(piece) for piece, _ in pieces) <= 1 << 14
    assert not any(is_word for _, is_word in pieces)


@pytest.fixture(scope="module")
def tangled():
    """Vocabularies whose merges overlap in every way: tokens of two letters merged at random."""
    out = []
    for seed in range(12):
        rng = random.Random(seed)
        tokens, merges = ["a", "b"], []
        while len(merges) < 25:
            left, right = rng.choice(tokens), rng.choice(tokens)
            if len(left + right) <= 12 and (left, right) not in merges:
                merges.append((left, right))
                if left + right not in tokens:
                    tokens.append(left + right)
        vocab = {token: index for index, token in enumerate(tokens)}
        model = tokenizers.models.BPE(vocab=vocab, merges=merges)
        out.append((model, np.array([len(token) for token in tokens], dtype=np.int64)))
    return out


@settings(max_examples=300)
@given(
    st.integers(0, 11),
    st.one_of(
        st.text("ab", min_size=1, max_size=200),
        st.tuples(st.text("ab", min_size=1, max_size=9), st.integers(1, 60)).map(lambda part: part[0] * part[1]),
    ),
    st.integers(8, 40),
)
def test_ids_in_windows_are_those_of_the_word(tangled, which, word, window):
    model, lengths = tangled[which]
    whole = [token.id for token in model.tokenize(word)]
    assert WordEncoder(model, lengths, window).encode(word).tolist() == whole


def test_encode_encode_array_reload_and_library_agree_on_an_endless_word(bpe, plain, chinese):
    """D8, D9: 60,000 characters without a space or comma, through every door."""
    text = "床前，" + chinese(60_000, seed=3) + "！\n"
    ids = bpe.encode(text)
    assert ids == bpe.encode_array(text).tolist()
    assert ids == Tokenizer.from_json(bpe.to_json()).encode(text)
    assert ids == plain(bpe).encode(text, add_special_tokens=False).ids
    assert bpe.decode(ids) == text


@pytest.mark.parametrize("unit", ["好", "ab", " ", "\n", "!", "5", "ก", "\u3000\n", "!\n"])
def test_endless_repetition_is_encoded_whole(bpe, plain, unit):
    text = "x" + unit * (40_000 // len(unit)) + "y"
    assert bpe.encode(text) == plain(bpe).encode(text, add_special_tokens=False).ids


def test_progress_of_encoding_rises_to_all_characters(bpe, chinese):
    seen = []
    text = f"{chinese(7)}，" * 150_000
    bpe.encode_array(text, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1 and seen == sorted(seen)
    assert seen[-1] == (len(text), len(text)) and {total for _, total in seen} == {len(text)}


def test_an_unknown_split_is_encoded_as_one_string(plain):
    """Only its maker knows where it may be cut."""
    spec = json.loads(train_bpe(["ab ab abc"], vocab_size=300).to_json())
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"(?<=x)ab|[\s\S]{1,9}"
    assert not always_cuts(spec)
    tokenizer = Tokenizer.from_json(json.dumps(spec))
    text = "ab xab abcab " * 3000
    assert tokenizer.encode(text) == plain(tokenizer).encode(text, add_special_tokens=False).ids
