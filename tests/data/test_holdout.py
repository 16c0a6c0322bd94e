"""What is held out of several files, and what of it is also trained on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.config import DataSettings, PairSettings, TokenizerSettings
from mingyue.data import load_corpus, prepare_corpus, prepare_pairs
from mingyue.data.holdout import FileSplit, last_pairs, spread_over_files
from mingyue.data.store import PieceStore, StoredPiece

EN = "The mill turns by the river.\n"
ZH = "床前明月光，疑是地上霜。\n"
BOS, EOS = 1, 2


@pytest.fixture
def prepare(tmp_path):
    def run(*names, **settings):
        data = DataSettings(sources=[str(name) for name in names], **settings)
        return prepare_corpus(data, TokenizerSettings(tokenizer="byte"), tmp_path / "prepared")

    return run


def texts(tokenizer, view):
    """Documents and their parts, cut at BOS and EOS."""
    parts = [[]]
    for index in view.read().tolist():
        if index in (BOS, EOS):
            parts.append([])
        else:
            parts[-1].append(index)
    return [tokenizer.decode(part) for part in parts if part]


def test_a_folder_of_two_languages_holds_out_the_end_of_each(prepare, write, tmp_path):
    """D15: the end of the last file was held out: Chinese alone, and every loss looked like overfitting."""
    write("in/en.txt", EN * 200)
    write("in/zh.txt", ZH * 200)
    tokenizer, corpus, report = prepare(tmp_path / "in")
    assert texts(tokenizer, corpus.train) == [(EN * 180), (ZH * 180)]
    assert texts(tokenizer, corpus.held_out) == [(EN * 20), (ZH * 20)]
    held = corpus.held_out.read().tolist()
    assert held.count(BOS) == 1 and held[held.index(EOS) + 1] == BOS  # the second part begins with BOS
    assert corpus.train_characters == 180 * (len(EN) + len(ZH))
    assert (corpus.held_out_characters, corpus.held_out_bytes) == (20 * (len(EN) + len(ZH)), 20 * (len(EN) + 37))
    note = next(note for note in report.notes if note.startswith("held out of 2 files: the end of 2 ("))
    assert "en.txt: 580 of 5,800 characters" in note and "zh.txt: 260 of 2,600 characters" in note


def test_of_many_short_files_whole_ones_are_held_out_evenly(prepare, write, tmp_path):
    """D15: each keeps its end, so that EOS is trained on."""
    for number in range(40):
        write(f"in/{number:02}.txt", f"letter {number:02} " * 20)
    tokenizer, corpus, report = prepare(tmp_path / "in")
    held = texts(tokenizer, corpus.held_out)
    assert held == [f"letter {number:02} " * 20 for number in (4, 14, 24, 34)]
    assert len(texts(tokenizer, corpus.train)) == 36
    assert corpus.train.read().tolist().count(EOS) == 36 and corpus.held_out.read().tolist().count(BOS) == 4
    assert any("held out of 40 files: 4 short ones whole (" in note and "04.txt" in note for note in report.notes)


def test_long_and_short_files_together(prepare, write, tmp_path):
    write("in/book.txt", EN * 400)
    for number in range(20):
        write(f"in/{number:02}.txt", f"letter {number:02} " * 20)
    tokenizer, corpus, report = prepare(tmp_path / "in")
    assert [text[:9] for text in texts(tokenizer, corpus.held_out)] == ["letter 04", "letter 14", "The mill "]
    assert any("the end of 1 (" in note and "and 2 short ones whole" in note for note in report.notes)
    assert report.documents == 21


def test_one_file_is_split_as_ever(prepare, write):
    """D15: the held-out part of one file stays the last 10 % of the characters, and is not spoken of."""
    tokenizer, corpus, report = prepare(write("a.txt", EN * 200), write("empty.txt", "\n"))
    assert texts(tokenizer, corpus.held_out) == [EN * 20]
    assert not any("held out of" in note for note in report.notes)


files = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 400)), min_size=1, max_size=40)


@given(files, st.sampled_from([0.0, 0.01, 0.1, 0.29, 0.5, 0.9]))
def test_every_character_is_in_one_part_and_the_share_is_kept(tmp_path_factory, sizes, share):
    """D15: training + held out = the text; both parts as large as was asked for, within a file or a document."""
    store = PieceStore(tmp_path_factory.getbasetemp())
    for number, (documents, characters) in enumerate(sizes):
        store.begin_file(f"{number}")
        for _ in range(documents):
            store.add(StoredPiece("x" * characters, "\n", first=True, last=True))
    splits = store.splits(share)
    assert [split.start for split in splits] == [0, *(split.end for split in splits[:-1])]
    assert splits[-1].end == store.characters and len(splits) == len(sizes)
    assert all(split.start <= split.cut <= split.end for split in splits)
    held = sum(split.held_out for split in splits)
    assert held < store.characters
    if not share:
        assert held == 0
    elif all(documents * characters * share >= 10 for documents, characters in sizes):
        assert share / 2.5 <= held / store.characters <= 2.5 * share
    assert store.splits(share) == splits


@given(st.lists(st.integers(1, 50), min_size=1), st.sampled_from([0.0, 0.1, 0.25, 0.99]))
def test_the_share_of_pairs_is_exact_and_of_each_file(counts, share):
    marks = last_pairs(counts, share)
    assert len(marks) == sum(counts)
    assert sum(marks) == int(sum(counts) * round(share * 100) // 100)
    at = 0
    for count in counts:
        part = bytes(marks[at : at + count])
        assert part == bytes(sorted(part)) and abs(sum(part) - share * count) <= 1
        at += count


def test_short_files_of_very_unequal_length_are_all_cut():
    """D15: else the held-out part would be nothing, or nearly everything."""
    files, at = [], 0
    for size in (9000, *([10] * 20)):
        files.append(FileSplit(str(at), at, at + size - size // 10, at + size))
        at += size
    assert spread_over_files(files, 0.1) == files


def test_pairs_of_several_files_hold_out_the_end_of_each(write, tmp_path):
    """D15: two pairs of files: validation was the end of the last."""
    sides = [
        [str(write(f"{name}.{side}", "".join(f"{name} {n}\n" for n in range(50)))) for name in "ab"] for side in "st"
    ]
    *_, corpus, report = prepare_pairs(
        PairSettings(source=sides[0], target=sides[1]),
        DataSettings(),
        TokenizerSettings(tokenizer="byte"),
        tmp_path / "prepared",
        max_tokens=64,
    )
    first = [corpus.valid.source(number)[0] for number in range(len(corpus.valid))]
    assert first == [3 + ord("a")] * 5 + [3 + ord("b")] * 5
    assert "10 of 100 pairs are held out, from the end of each of 2 files" in "\n".join(report.notes)


def test_held_out_documents_that_are_trained_on_as_well_are_counted(prepare, write, tmp_path):
    """D15: of pairs it was reported, of text not."""
    lines = [f"line {number % 30}" for number in range(100)]
    lines[95] = "a new line"
    path = write("a.txt", "\n".join(lines) + "\n")
    _, corpus, report = prepare(path, separator="line")
    assert (corpus.held_out_documents, corpus.repeated_documents) == (10, 9)
    assert corpus.repeated_characters == sum(len(line) for line in lines[90:]) - len("a new line")
    assert any("9 of 10 held-out documents (" in n and "are trained on as well" in n for n in report.notes)
    assert load_corpus(tmp_path / "prepared")[1].repeated_documents == 9
    _, corpus, report = prepare(path)
    assert (corpus.held_out_documents, corpus.repeated_documents) == (0, 0)
    _, corpus, report = prepare(write("b.txt", "\n".join(f"line {number}" for number in range(100))), separator="line")
    assert corpus.repeated_documents == 0 and not any("trained on as well" in note for note in report.notes)
