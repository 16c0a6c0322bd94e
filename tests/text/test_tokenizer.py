"""What every tokenizer promises: any text, its own special ids, one file."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.config import TokenizerSettings
from mingyue.errors import TokenizerError
from mingyue.text import Tokenizer, byte_tokenizer, make_tokenizer, train_bpe, train_char

SPELLED = st.one_of(
    st.text(), st.lists(st.sampled_from(["<pad>", "<bos>", "<eos>", "<0x41>", "Ġ", "Ā", "a", " ", "\x00"])).map("".join)
)


@given(SPELLED)
def test_every_text_is_read_back_exactly_and_no_text_makes_a_special_id(made, text):
    ids = made.encode(text)
    assert made.decode(ids) == text
    assert b"".join(made.token_bytes(index) for index in ids) == text.encode()
    assert min(ids, default=3) >= 3, "text that spells a special token is text"


@given(SPELLED)
def test_the_plain_library_gets_the_same_ids_from_the_file(made, plain, text):
    array = made.encode_array(text)
    assert array.dtype == np.int32 and array.ndim == 1
    assert array.tolist() == made.encode(text) == plain(made).encode(text, add_special_tokens=False).ids


@given(st.text(max_size=20))
def test_the_plain_library_reads_the_same_text_from_the_ids(made, plain, text):
    assert plain(made).decode(made.encode(text)) == text


def test_special_ids_are_our_own(made):
    assert (made.pad_id, made.bos_id, made.eos_id) == (0, 1, 2)
    assert made.special_ids == {0, 1, 2}
    assert made.notes == ()


def test_byte_ids_are_bytes_after_the_special_ids():
    tokenizer = byte_tokenizer()
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("a好") == [3 + 0x61, 3 + 0xE5, 3 + 0xA5, 3 + 0xBD]


@pytest.mark.parametrize("text", ["ok\ud83d", "\udc00" * 2, "x" * 50_000 + "\ud800" + "y"])
def test_half_a_surrogate_pair_is_refused_by_name_and_place(made, text):
    code = next(c for c in text if 0xD800 <= ord(c) < 0xE000)
    expected = f"character {text.index(code)} of {len(text)} is U\\+{ord(code):04X}"
    for use in (made.encode, made.encode_array):
        with pytest.raises(TokenizerError, match=expected):
            use(text)
    for learn in (train_char, lambda pieces: train_bpe(pieces, vocab_size=300)):
        with pytest.raises(TokenizerError, match=expected):
            learn(["fine", text])


def test_empty_text_has_no_ids(made):
    assert made.encode("") == [] and made.encode_array("").dtype == np.int32
    assert made.decode([]) == ""


def test_file_keeps_everything(made, tmp_path):
    path = tmp_path / "new" / "tokenizer.json"
    made.save(path)
    for again in (Tokenizer.load(path), Tokenizer.load(path.parent), Tokenizer.from_json(made.to_json())):
        assert (again.kind, again.fingerprint, again.vocab_size) == (made.kind, made.fingerprint, made.vocab_size)
        assert again.to_json() == made.to_json()
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.json"]


def test_fingerprint_is_of_the_content_not_of_its_order(char):
    spec = json.loads(char.to_json())
    turned = json.dumps(dict(reversed(spec.items())), indent=2)
    assert Tokenizer.from_json(turned).fingerprint == char.fingerprint
    assert train_char(["other"]).fingerprint != char.fingerprint
    assert len(char.fingerprint) == 64


def test_a_failed_save_leaves_the_old_file(char, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text("old", encoding="utf-8")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot write .*the disk is full"):
        char.save(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_facts_for_people(char, bpe):
    assert char.describe() == {
        "kind": "char",
        "vocab_size": char.vocab_size,
        "special": 3,
        "characters": char.vocab_size - 259,
    }
    assert bpe.describe() == {"kind": "bpe", "vocab_size": 700, "special": 3, "merges": 441}
    assert byte_tokenizer().describe() == {"kind": "byte", "vocab_size": 259, "special": 3}


def test_settings_choose_the_tokenizer(tmp_path, char):
    pieces = ["aab ab ab", "月"]
    assert make_tokenizer(TokenizerSettings(), pieces).describe()["characters"] == 4
    assert make_tokenizer(TokenizerSettings(min_count=2), pieces).describe()["characters"] == 3
    bpe = make_tokenizer(TokenizerSettings(tokenizer="bpe", tokenizer_size=260), pieces)
    assert (bpe.kind, bpe.vocab_size) == ("bpe", 260)
    assert make_tokenizer(TokenizerSettings(tokenizer="byte"), iter(())).kind == "byte"
    char.save(tmp_path / "mine.json")
    given_one = make_tokenizer(TokenizerSettings(tokenizer=str(tmp_path / "mine.json")), iter(()))
    assert given_one.fingerprint == char.fingerprint


def test_text_needs_no_torch():
    code = "import sys, mingyue.text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
