"""From sources to token files: what is trained on, what is held out, and the same result however it is done."""

from __future__ import annotations

import io
import os
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data import baselines, fit_context, heldout_batches, load_corpus, prepare_corpus, sources
from mingyue.data.store import PieceStore, StoredPiece
from mingyue.errors import DataError

BOS, EOS = 1, 2


@pytest.fixture
def prepare(tmp_path):
    def run(*names, folder="prepared", tokenizer="char", tokenizer_size=300, how=None, **settings):
        return prepare_corpus(
            DataSettings(sources=[str(name) for name in names], **settings),
            TokenizerSettings(tokenizer=tokenizer, tokenizer_size=tokenizer_size),
            tmp_path / folder,
            **(how or {}),
        )

    return run


def ids(corpus):
    return corpus.train.read().tolist(), corpus.held_out.read().tolist()


def test_one_document_is_cut_at_the_character(prepare, write):
    """The training part has no EOS, the held-out part no BOS; a prompt needs no BOS."""
    tokenizer, corpus, report = prepare(write("a.txt", "abcdefghijklmnopqrst"))
    train, held_out = ids(corpus)
    assert train == [BOS, *tokenizer.encode("abcdefghijklmnopqr")]
    assert held_out == [*tokenizer.encode("st"), EOS]
    assert (corpus.documents, corpus.starts_with_bos) == (1, False)
    assert (corpus.train_characters, corpus.held_out_characters, corpus.held_out_bytes) == (18, 2, 2)
    assert report.train_tokens == len(train) and report.held_out_tokens == len(held_out)
    assert "19 to train on" in report.describe()[2] and "(10.0% of the characters)" in report.describe()[2]


def test_documents_begin_with_bos_and_end_with_eos(prepare, write):
    """The cut goes to the end of a document that is near."""
    poems = ["床前明月光"] * 100
    tokenizer, corpus, _ = prepare(write("a.txt", "\n\n".join(poems) + "\n"), separator="blank-line")
    document = [BOS, *tokenizer.encode("床前明月光"), EOS]
    assert ids(corpus) == (document * 90, document * 10)
    assert (corpus.documents, corpus.starts_with_bos) == (100, True)
    assert corpus.held_out_characters == 10 * 5 + 9 * 2 + 1
    assert corpus.held_out_bytes == 10 * 15 + 9 * 2 + 1
    assert corpus.train_characters + corpus.held_out_characters == 100 * 5 + 99 * 2 + 1


def test_a_document_far_from_its_ends_is_cut_in_two(prepare, write):
    tokenizer, corpus, _ = prepare(write("a.txt", "a" * 60 + "|" + "b" * 40), separator="|")
    train, held_out = ids(corpus)
    assert train == [BOS, *tokenizer.encode("a" * 60), EOS, BOS, *tokenizer.encode("b" * 30)]
    assert held_out == [*tokenizer.encode("b" * 10), EOS]


def stored(folder, *pairs):
    store = PieceStore(folder)
    for text, tail in pairs:
        store.add(StoredPiece(text, tail, first=True, last=True))
    return store


def test_where_the_held_out_part_begins(tmp_path):
    assert stored(tmp_path, ("a" * 5145, "")).cut(0.1) == 5145 - 514
    assert stored(tmp_path, ("a" * 100, "")).cut(0.29) == 71  # not 72, as 0.29 × 100 in floats would have it
    assert stored(tmp_path, ("a" * 100, "")).cut(0.0) == 100
    assert stored(tmp_path, ("a" * 905, ""), ("b" * 95, "")).cut(0.1) == 905  # 0.5 % away
    assert stored(tmp_path, ("a" * 910, ""), ("b" * 90, "")).cut(0.1) == 900  # 1 % away
    assert stored(tmp_path, ("a" * 880, "\n" * 40), ("b" * 80, "")).cut(0.1) == 920  # never inside a separator
    assert stored(tmp_path, ("a" * 880, "\n" * 120)).cut(0.1) == 1000


documents = st.lists(st.tuples(st.text("ab ", min_size=1, max_size=30), st.text("\n", max_size=3)), min_size=1)


@given(documents, st.integers(0, 90).map(lambda percent: percent / 100))
def test_the_cut_is_within_one_percent_and_in_no_separator(tmp_path_factory, pairs, share):
    store = stored(tmp_path_factory.getbasetemp(), *pairs)
    whole = "".join(text + tail for text, tail in pairs)
    cut = store.cut(share)
    assert 0 < cut <= len(whole)
    at, inside = 0, False
    for text, tail in pairs:
        inside |= at + len(text) <= cut < at + len(text) + len(tail)
        at += len(text) + len(tail)
    assert not inside


def test_the_vocabulary_is_of_the_training_part_alone(prepare, write):
    """The held-out text may hold characters that are not in it: byte fallback encodes them."""
    tokenizer, corpus, _ = prepare(write("a.txt", "ab" * 90 + "月" * 20))
    assert tokenizer.vocab_size == 256 + 3 + 2
    assert len(corpus.held_out) == 20 * 3 + 1


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
@pytest.mark.parametrize("separator", ["file", "blank-line"])
def test_streaming_gives_the_same_files_as_memory(prepare, write, tmp_path, monkeypatch, tokenizer, separator):
    """Text beyond memory waits on the disk and goes into shards; the tokens are the same."""
    text = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。\n\nHello, world: it's 2026!\n\n" * 60
    paths = [write("a.txt", text), write("b.txt", text[:1000])]
    whole = prepare(*paths, separator=separator, tokenizer=tokenizer)
    monkeypatch.setattr(sources, "_IN_MEMORY", 0)
    how = {"memory_bytes": 0, "shard_tokens": 100}
    streamed = prepare(*paths, folder="streamed", separator=separator, tokenizer=tokenizer, how=how)
    assert len(streamed[1].train.shards.files) > 3
    assert ids(whole[1]) == ids(streamed[1])
    assert whole[0].fingerprint == streamed[0].fingerprint
    assert whole[2] == streamed[2]
    assert not list((tmp_path / "streamed").glob(".*"))


def test_memory_does_not_grow_with_the_text(prepare, write, monkeypatch):
    line = "All that glisters is not gold; often have you heard that told.\n"
    path = write("a.txt", (line * 100 + "\n") * 4000)
    size = path.stat().st_size
    monkeypatch.setattr(sources, "_IN_MEMORY", 0)
    tracemalloc.start()
    prepare(path, separator="blank-line", tokenizer="byte", how={"memory_bytes": 1 << 20})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.7 * size


def test_the_same_text_and_settings_are_used_again(prepare, write, tmp_path):
    path = write("a.txt", "床前明月光" * 10)
    first = prepare(path)
    state = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "prepared").iterdir()}
    again = prepare(path)
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "prepared").iterdir()} == state
    assert ids(first[1]) == ids(again[1]) and any("used again" in note for note in again[2].notes)
    assert again[2].characters == 50


def test_anything_that_changes_the_tokens_makes_them_anew(prepare, write):
    path = write("a.txt", "床前明月光\n\n" * 20)
    prepare(path)
    for settings in ({"separator": "blank-line"}, {"held_out": 0.2}, {"tokenizer": "byte"}, {"tokenizer": "bpe"}):
        report = prepare(path, **settings)[2]
        assert not any("used again" in note for note in report.notes), settings
        assert any("used again" in note for note in prepare(path, **settings)[2].notes)
    assert any("used again" in note for note in prepare(path, tokenizer="bpe", attend_across_documents=False)[2].notes)
    write("a.txt", "疑是地上霜\n\n" * 20)  # of the same length
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    tokenizer, corpus, _ = prepare(path, tokenizer="bpe")
    assert tokenizer.decode(corpus.train.read(1, 20).tolist()).startswith("疑是地上霜")


def test_a_damaged_folder_is_made_anew_and_an_unfinished_one_is_not_taken_for_whole(prepare, write, tmp_path):
    """T13: what a crash left behind is never read as if it were whole."""
    path = write("a.txt", "床前明月光" * 10)
    good = ids(prepare(path)[1])
    for damage in ("train-00000.tokens", "corpus.json", "tokenizer.json"):
        file = tmp_path / "prepared" / damage
        file.write_bytes(file.read_bytes()[:-5])
        assert ids(prepare(path)[1]) == good
        file.unlink()
        with pytest.raises(DataError):
            load_corpus(tmp_path / "prepared")
        assert ids(prepare(path)[1]) == good
    write("a.txt", b"\xff" * 100)
    with pytest.raises(DataError):
        prepare(path)
    with pytest.raises(DataError, match="no prepared text"):
        load_corpus(tmp_path / "prepared")


def test_the_prepared_text_outlives_its_source(prepare, write, tmp_path):
    path = write("a.txt", "床前明月光" * 10)
    first = prepare(path, separator="line")
    path.unlink()
    tokenizer, corpus, report = load_corpus(tmp_path / "prepared")
    assert ids(corpus) == ids(first[1]) and report.characters == 50
    assert tokenizer.fingerprint == corpus.fingerprint


def test_standard_input_is_never_taken_for_what_it_was_before(prepare, monkeypatch):
    for text in ("aaaaaaaaaa" * 3, "bbbbbbbbbb" * 3):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        tokenizer, corpus, _ = prepare("-")
        assert tokenizer.decode(corpus.train.read().tolist()) == text[:27]


def test_the_same_text_gives_the_same_ids_whatever_its_line_ends_and_mark(prepare, write):
    """D10: BOM, CRLF and LF of the same text: the same ids."""
    text = "床前明月光\n\n疑是地上霜\n" * 20
    found = [
        ids(prepare(write(f"{name}.txt", data), separator="blank-line", folder=name)[1])
        for name, data in (
            ("lf", text.encode()),
            ("crlf", text.replace("\n", "\r\n").encode()),
            ("bom", b"\xef\xbb\xbf" + text.encode()),
            ("utf16", text.replace("\n", "\r\n").encode("utf-16")),
        )
    ]
    assert all(each == found[0] for each in found)


def test_empty_and_blank_text_are_clear_errors(prepare, write):
    """D10: neither an empty model nor a crash."""
    for content in ("", " \n\n\t\n", "\r\n"):
        with pytest.raises(DataError, match="no text in"):
            prepare(write("a.txt", content))


def test_a_text_shorter_than_its_context_trains_and_says_the_numbers(prepare, write):
    """D1: 5145 tokens, 10 % held out, context 1024."""
    path = write("a.txt", ("明月几时有，把酒问青天。" * 500)[:5145])
    _, corpus, report = prepare(path, how={"context_hint": 1024})
    assert len(corpus.train) == 1 + 4631 and len(corpus.held_out) == 514 + 1
    assert "held-out targets 514 < context 1,024: they are scored as one window of 514" in report.describe()
    assert sum(batch.tokens for batch in heldout_batches(corpus.held_out, 1024, 4)) == 514
    _, corpus, report = prepare(path, how={"context_hint": 8000})
    assert any("context 4631 instead of 8000" in line for line in report.describe())


def test_a_few_characters_train_without_held_out_text_and_say_so(prepare, write):
    """D11, D1: too little to hold anything out."""
    _, corpus, report = prepare(write("a.txt", "月"))
    assert ids(corpus) == ([BOS, corpus.train.read()[1], EOS], [])
    assert any("1 characters are too few to hold out 10.0%" in line for line in report.describe())
    assert fit_context(corpus, 256, rows=8).context == 2
    assert baselines(corpus).bigram is None


def test_nothing_held_out_when_asked(prepare, write):
    _, corpus, report = prepare(write("a.txt", "床前明月光"), held_out=0.0)
    assert len(corpus.held_out) == 0 and len(corpus.train) == 7 and not report.notes


def test_stages_are_shown_and_end_at_the_whole(prepare, write):
    """D9: long work shows itself, the making of a vocabulary included."""
    seen = {}

    def progress(stage, done, total):
        assert seen.get(stage, (0, total))[0] <= done <= total
        seen[stage] = (done, total)

    text = "床前明月光\n\n" * 300
    prepare(write("a.txt", text), separator="blank-line", tokenizer="bpe", how={"progress": progress})
    assert seen["reading"] == (len(text.encode()),) * 2
    assert seen["encoding"] == (len(text), len(text))
    assert seen["vocabulary"][0] == seen["vocabulary"][1]
    assert "merging" in seen


def test_large_vocabularies_use_four_bytes(prepare, write):
    """D3: through the whole way: more than 65,536 different characters."""
    text = "".join(chr(code) for code in range(0x4E00, 0xA000)) + "".join(chr(c) for c in range(0x20000, 0x2C000))
    tokenizer, corpus, _ = prepare(write("a.txt", text), held_out=0.01)
    assert tokenizer.vocab_size > 65_536
    assert corpus.train.shards.dtype == np.dtype("<u4")
    assert tokenizer.decode(corpus.train.read().tolist()) == text[: corpus.train_characters]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_utf_8_are_read_and_reported(prepare, tmp_path):
    """D5: names of files are bytes of any encoding on Linux."""
    folder = tmp_path / "texts"
    for name in (b"\xc3\xf7.txt", b".\xff"):
        folder.mkdir(exist_ok=True)
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes("床前明月光，疑是地上霜。".encode("gbk") * 3)
    _, corpus, report = prepare(folder)
    assert corpus.documents == 1
    assert all(line.encode("utf-8") for line in report.describe())
    assert load_corpus(tmp_path / "prepared")[2] == report


def test_a_known_corpus_is_a_source(prepare, monkeypatch, tmp_path):
    """python-docs needs nothing but Python."""
    monkeypatch.setenv("MINGYUE_DATA", str(tmp_path / "data"))
    tokenizer, corpus, report = prepare("python-docs")
    assert report.characters > 100_000
    assert "statement" in tokenizer.decode(corpus.train.read(0, 2000).tolist())
