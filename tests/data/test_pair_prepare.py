"""Pairs as token rows: the same pairs come back, nothing of the validation is learnt, nothing half looks whole."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import DataSettings, PairSettings, TokenizerSettings
from mingyue.data import PairReport, PairRows, load_pairs, pair_prepare, prepare_pairs
from mingyue.data.corpus import TokenRows
from mingyue.data.pairs import Pair
from mingyue.data.store import RecordStore
from mingyue.errors import DataError, TokenizerError
from mingyue.text import Tokenizer, train_char

EOS = 2


@pytest.fixture
def prepare(write, tmp_path):
    """Prepares pairs given as (source, target) texts, with characters as tokens."""

    def run(pairs, *, valid=None, tokenizer="char", max_tokens=100, how=None, data=None, **settings):
        files = {}
        for prefix, given_pairs in (("", pairs), ("valid_", valid)):
            if given_pairs is not None:
                for place, side in enumerate(("source", "target")):
                    text = "".join(pair[place] + "\n" for pair in given_pairs)
                    path = tmp_path / f"{prefix}{side}"
                    if not path.exists() or path.read_bytes() != text.encode():
                        write(f"{prefix}{side}", text)
                    files[prefix + side] = [str(path)]
        return prepare_pairs(
            PairSettings(**files, **settings),
            DataSettings(**{"held_out": 0.0, **(data or {})}),
            TokenizerSettings(tokenizer=tokenizer, tokenizer_size=300),
            tmp_path / "prepared",
            max_tokens=max_tokens,
            **(how or {}),
        )

    return run


def texts(prepared, part="train"):
    source, target, corpus, _ = prepared
    rows = getattr(corpus, part)
    assert all(rows.source(n)[-1] == rows.target(n)[-1] == EOS for n in range(len(rows)))
    return [(source.decode(rows.source(n)), target.decode(rows.target(n))) for n in range(len(rows))]


def test_rows_are_the_ids_of_a_text_and_eos(prepare):
    source, target, corpus, report = prepare([("ab", "床前床"), ("b", "前")])
    assert source is target
    assert corpus.train.source(0).tolist() == [*source.encode("ab"), EOS]
    assert corpus.train.target(0).tolist() == [*source.encode("床前床"), EOS]
    assert corpus.train.source_lengths.tolist() == [3, 2] and corpus.train.target_lengths.tolist() == [4, 2]
    assert corpus.train.source_lengths.dtype == corpus.train.source(0).dtype == np.int64
    assert (corpus.pad_id, corpus.bos_id, corpus.eos_id) == (0, 1, EOS)
    assert corpus.source_vocab_size == corpus.target_vocab_size == source.vocab_size == 259 + 4
    assert corpus.fingerprint == source.fingerprint
    assert (report.train_pairs, report.valid_pairs, report.train_source_tokens, report.train_tokens) == (2, 0, 5, 6)
    assert (report.documents, report.characters, report.bytes) == (2, 7, 15)


def test_one_tokenizer_a_side(prepare):
    prepared = source, target, corpus, _ = prepare([("ab", "床前"), ("a", "床")], shared_vocabulary=False)
    assert (corpus.source_vocab_size, corpus.target_vocab_size) == (259 + 2, 259 + 2)
    assert source.encode("ab") == target.encode("床前") == [259, 260]
    assert source.fingerprint != target.fingerprint
    assert corpus.fingerprint not in (source.fingerprint, target.fingerprint)
    assert texts(prepared) == [("ab", "床前"), ("a", "床")]


def test_bpe_is_the_default_and_a_given_tokenizer_serves_both_sides(prepare, tmp_path):
    assert prepare([("ab", "cd")], tokenizer=None)[0].kind == "bpe"
    train_char(["abcd"]).save(tmp_path / "given" / "tokenizer.json")
    source, target, corpus, report = prepare([("ab", "cd")], tokenizer=str(tmp_path / "given"), shared_vocabulary=False)
    assert source is target and corpus.target_vocab_size == 263
    assert any("serves both sides" in note for note in report.notes)


def test_the_vocabulary_comes_from_the_training_pairs_alone(prepare):
    source, _, corpus, _ = prepare([("a", "b")], valid=[("x", "床")])
    assert source.vocab_size == 259 + 2
    assert texts((source, source, corpus, None), "valid") == [("x", "床")]  # in bytes
    source, *_ = prepare([("a", "b")] * 9 + [("x", "y")], data={"held_out": 0.1}, keep_duplicates=True)
    assert source.vocab_size == 259 + 2


def test_the_last_pairs_are_held_out_when_none_are_given(prepare):
    """The share is of the pairs kept, rounded down, and said."""
    pairs = [(f"a{n}", f"b{n}") for n in range(29)]
    prepared = prepare([*pairs[:10], ("", "x"), pairs[3], *pairs[10:]], data={"held_out": 0.1})
    assert texts(prepared) == pairs[:27] and texts(prepared, "valid") == pairs[27:]
    report = prepared[3]
    assert "no validation pairs were given: the last 2 of 29 pairs are held out" in report.notes
    assert report.dropped == {"empty source": 1, "duplicate": 1}
    assert prepared[2].valid_target_bytes == 6 and prepared[2].valid_targets == 8
    assert "27 to train on" in "".join(report.describe()) and "2 held out (8 target tokens)" in "".join(
        report.describe()
    )
    few = prepare(pairs[:3], data={"held_out": 0.3})
    assert len(few[2].valid) == 0 and any("too few to hold out 30.0%" in note for note in few[3].notes)


def test_what_is_too_long_with_its_eos_is_left_out(prepare, tmp_path):
    """The context counts source tokens with EOS, and BOS with the target: one more than the text on either side."""
    pairs = [("abc", "a"), ("abcd", "a"), ("a", "abc"), ("b", "abcd")]
    prepared = prepare(pairs, valid=[("abcd", "a"), ("c", "床")], max_tokens=4)
    assert texts(prepared) == [("abc", "a"), ("a", "abc")] and texts(prepared, "valid") == [("c", "床")]
    report = prepared[3]
    assert report.dropped == {"too long": 3} and report.examples["too long"] == f"{tmp_path / 'source'}:2"
    assert "too long: more than 4 tokens on one side, EOS included" in report.notes
    assert prepared[2].valid_target_bytes == 3 and report.documents == 3


def test_pairs_that_all_go_are_refused_with_the_reasons(prepare, tmp_path):
    """D6: all pairs filtered out, for being empty, repeated or too long; also those of the validation."""
    with pytest.raises(DataError, match=r"4 read, 4 left out \(1 × duplicate, 1 × empty target, 2 × too long\)"):
        prepare([("abcd", "a"), ("abcd", "a"), ("a", " "), ("a", "abcd")], max_tokens=4)
    with pytest.raises(DataError, match="all 2 validation pairs have more than 4 tokens"):
        prepare([("a", "b")], valid=[("abcd", "a"), ("abcd", "b")], max_tokens=4)
    with pytest.raises(DataError, match=r"1 read, 1 left out \(1 × empty source\)"):
        prepare([("", "b"), ("a", ""), ("a", "b")], valid=[("", "b")])
    with pytest.raises(DataError, match="holds no prepared pairs"):
        load_pairs(tmp_path / "prepared")


def test_hidden_files_of_a_folder_are_not_counted_as_pairs(write, tmp_path):
    write("p/a.tsv", "abcd\tA\n")
    write("p/.hidden", "x")
    with pytest.raises(DataError, match=r"1 read, 1 left out \(1 × too long\)"):
        prepare_pairs(
            PairSettings(pairs=str(tmp_path / "p")),
            DataSettings(),
            TokenizerSettings(tokenizer="char"),
            tmp_path / "prepared",
            max_tokens=4,
        )


def test_validation_pairs_that_are_trained_on_are_counted(prepare):
    _, _, corpus, report = prepare([("a", "b"), ("c", "d")], valid=[("a", "b"), ("a", "b"), ("a", "d")])
    assert len(corpus.valid) == 3
    assert "2 of 3 validation pairs are trained on as well" in report.notes


def test_text_that_spells_eos_is_text(prepare):
    pairs = [("<eos>", "a<eos>b<bos>"), ("<pad>", "<eos>")]
    for kind in ("char", "bpe", "byte"):
        assert texts(prepare(pairs, tokenizer=kind)) == pairs


def test_a_tokenizer_that_writes_unknown_characters_as_the_end_is_refused(prepare, tmp_path):
    """Otherwise one row would be read back as two, and every pair after it would be wrong."""
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}
    special = [
        {"id": n, "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for word, n in list(vocab.items())[:3]
    ]
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None}
    spec |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None}
    spec["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": "</s>"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    assert Tokenizer.load(path).encode("a b") == [3, 2]
    with pytest.raises(DataError, match=r"source:2: the tokenizer encodes a part of this text as its EOS token"):
        prepare([("a", "a"), ("b", "a")], tokenizer=str(path))


def test_the_same_is_used_again_and_anything_else_made_anew(prepare, tmp_path, write):
    pairs = [("a", "b"), ("c", "d")]
    first = prepare(pairs)
    stamp = (tmp_path / "prepared" / "pairs.json").stat().st_mtime_ns
    again = prepare(pairs)
    assert any("used again" in note for note in again[3].notes) and not any("used again" in n for n in first[3].notes)
    assert texts(again) == texts(first) and again[2].fingerprint == first[2].fingerprint
    assert prepare(pairs, bleu_lines=3)[3].notes == again[3].notes  # does not touch the tokens
    assert (tmp_path / "prepared" / "pairs.json").stat().st_mtime_ns == stamp
    for change in ({"max_tokens": 50}, {"tokenizer": "byte"}, {"keep_duplicates": True}, {"data": {"held_out": 0.5}}):
        assert not any("used again" in note for note in prepare(pairs, **change)[3].notes), change
    prepare(pairs)
    write("target", "b\nx\n")
    os.utime(tmp_path / "target", ns=(1, 1))
    assert texts(prepare([("a", "b"), ("c", "x")])) == [("a", "b"), ("c", "x")]


def test_a_load_gives_what_was_prepared(prepare, tmp_path):
    made = prepare([("a", "b"), ("cd", "e")], valid=[("a", "eb")], shared_vocabulary=False)
    (tmp_path / "source").unlink()
    found = load_pairs(tmp_path / "prepared")
    for part in ("train", "valid"):
        assert texts(found, part) == texts(made, part)
    assert found[3] == made[3] and isinstance(found[3], PairReport)
    assert (found[2].fingerprint, found[2].valid_target_bytes) == (made[2].fingerprint, 2)
    assert "vocabulary 262 for sources, 261 for targets" in "".join(found[3].describe())


@pytest.mark.parametrize("name", ["train_source", "train_target", "valid_source", "valid_target"])
def test_a_damaged_folder_is_refused_and_made_anew(prepare, tmp_path, name):
    pairs, valid = [("a", "b"), ("c", "d")], [("a", "bd")]
    prepare(pairs, valid=valid)
    path = tmp_path / "prepared" / f"{name}-00000.tokens"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(DataError, match="should hold"):
        load_pairs(tmp_path / "prepared")
    path.write_bytes(whole[:-2] + b"\x05\x00")  # the last row has no end
    with pytest.raises(DataError, match=r"the last row of .* does not end"):
        load_pairs(tmp_path / "prepared")
    path.write_bytes(whole[:64] + b"\x02\x00" * ((len(whole) - 64) // 2))  # more rows than there are pairs
    with pytest.raises(DataError, match="rows"):
        load_pairs(tmp_path / "prepared")
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        load_pairs(tmp_path / "prepared")
    found = prepare(pairs, valid=valid)
    assert texts(found) == pairs and texts(found, "valid") == valid


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 99}', '{"format": 1}', '{"format": 1, "files": 3}'])
def test_a_manifest_that_is_not_one_is_refused(prepare, tmp_path, content):
    prepare([("a", "b")])
    (tmp_path / "prepared" / "pairs.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError):
        load_pairs(tmp_path / "prepared")


@pytest.mark.parametrize("where", ["make_tokenizer", "_row", "write_text_atomically"])
def test_a_crash_leaves_nothing_that_looks_whole(prepare, tmp_path, monkeypatch, where):
    """Neither what was there before nor a part of the new: the next run starts again, and no temporary file stays."""
    prepare([("a", "b")])
    real = f"mingyue.data.pair_prepare.{where}"
    with monkeypatch.context() as patch, pytest.raises(DataError, match="disk is full"):
        patch.setattr(real, lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        prepare([("a", "b"), ("c", "d")])
    with pytest.raises(DataError, match="holds no prepared pairs"):
        load_pairs(tmp_path / "prepared")
    assert not [path for path in (tmp_path / "prepared").iterdir() if path.suffix == ".tmp"]
    assert texts(prepare([("a", "b"), ("c", "d")])) == [("a", "b"), ("c", "d")]


def test_little_memory_changes_nothing(prepare):
    pairs = [(f"a{n}床", f"b\u2028{n}") for n in range(50)]
    held = {"held_out": 0.2}
    here = prepare(pairs, data=held)
    there = prepare(pairs, data=held, max_tokens=101, how={"memory_bytes": 10})
    assert [texts(here, part) for part in ("train", "valid")] == [texts(there, part) for part in ("train", "valid")]


def test_a_store_gives_its_pairs_as_often_as_asked(tmp_path):
    pairs = [Pair("", "b", "x:1"), Pair("床\n", "\x00", "y:2")]
    for size in (1 << 20, 1):
        with RecordStore(Pair, tmp_path, texts=3, memory_bytes=size) as store:
            for pair in pairs:
                store.add(pair)
            assert list(store) == list(store) == pairs and len(store) == 2
    assert not list(tmp_path.iterdir())


def test_progress_goes_up_to_the_end(prepare):
    seen = []
    prepare([("ab", "c")] * 3 + [("d", "e")], how={"progress": lambda *values: seen.append(values)})
    assert {"reading", "vocabulary", "encoding"} <= {stage for stage, *_ in seen}
    assert all(0 <= done <= total for _, done, total in seen)
    assert [values for values in seen if values[0] == "encoding"][-1][1:] == (5, 5)


def test_no_text_makes_no_vocabulary(prepare):
    with pytest.raises(TokenizerError):
        prepare([("a", "b")], tokenizer="no-such-file")


rows = st.lists(st.lists(st.integers(3, 9), max_size=5).map(lambda ids: [*ids, EOS]), max_size=8)


@given(rows)
def test_rows_are_found_again_by_their_ends(given_rows):
    ids = np.array([id_ for row in given_rows for id_ in row], dtype=np.uint16)
    found = TokenRows.ending_with(EOS, ids, "here")
    assert [found.row(n).tolist() for n in range(len(found))] == given_rows
    assert found.lengths.tolist() == [len(row) for row in given_rows]


@given(rows.filter(bool), st.data())
def test_padded_rows_hold_each_row_then_the_filling(given_rows, data):
    index = data.draw(st.lists(st.integers(0, len(given_rows) - 1), min_size=1))
    padded = TokenRows.of(given_rows).padded(np.array(index), -7)
    longest = max(len(given_rows[n]) for n in index)
    assert padded.tolist() == [given_rows[n] + [-7] * (longest - len(given_rows[n])) for n in index]


def test_sides_of_unequal_number_are_no_pairs():
    with pytest.raises(DataError, match="2 source rows and 1 target rows"):
        PairRows.of([[3, EOS], [EOS]], [[EOS]])


line = st.text(st.sampled_from("ab 床\u2028\x85\x0b\x0c\x1c"), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.lists(st.tuples(line, line), min_size=1, max_size=12), st.integers(2, 5))
def test_alignment_is_kept_whatever_goes(prepare, pairs, most):
    """Empty, repeated or too long: what is left is in order, and each source still has its own target."""
    kept = [p for p in dict.fromkeys(pairs) if p[0].strip() and p[1].strip() and max(map(len, p)) < most]
    if kept:
        assert texts(prepare(pairs, max_tokens=most)) == kept
    else:
        with pytest.raises(DataError, match=f"{len(pairs)} read, {len(pairs)} left out"):
            prepare(pairs, max_tokens=most)


def test_the_module_keeps_one_file_a_side(prepare, tmp_path):
    """Rows are gathered by offset, so a side is never cut into shards."""
    assert pair_prepare._ONE_FILE > 1 << 50
    prepare([("a", "b")])
    assert sorted(path.name for path in (tmp_path / "prepared").iterdir()) == [
        "pairs.json",
        "tokenizer.json",
        *(f"{part}_{side}-00000.tokens" for part in ("train", "valid") for side in ("source", "target")),
    ]
