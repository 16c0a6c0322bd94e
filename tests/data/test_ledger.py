"""D12: nothing is left out uncounted: what is read is used, or counted under a reason, for every kind of file."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import DataSettings, PairSettings
from mingyue.data import PairReport, ReadReport, read_documents, read_pairs
from mingyue.data.formats import lines_of
from mingyue.data.parquet import parquet_records
from mingyue.data.report import BadRecords
from mingyue.data.split import parse_separator, split_documents
from mingyue.errors import DataError

# Good and bad records of each kind of file. A bad one is one line, and is one record left out.
KINDS = {
    "a.jsonl": (
        [b'{"text": "%d"}'],
        [b"{", b"[]", b'{"body": "x"}', b'{"text": 1}', b'{"text": ""}', b'{"text": "\xff"}'],
    ),
    "a.csv": (
        [b"%d,x", b'"%d",x', b'%d,"y\n,z"', b'%d,"say ""yes"""'],
        [b'"stray,x', b'a,"stray', b'"a"b,x', b"a", b"a,b,c", b",", b"\xff,x"],
    ),
    "a.tsv": ([b"%d\tx", b'"%d\tx'], [b"a", b"a\tb\tc", b"\t", b"\xff\tx"]),
    "a.txt": ([b"%d"], [b"\xff"]),
}
HEADS = {"a.csv": b"text,n\n", "a.tsv": b"text\tn\n"}


def mixture(name, choices, final=True):
    """A file of records, the numbers of the good ones, and how many are bad; choices: kind of each record."""
    good, bad = KINDS[name]
    lines, numbers = [], []
    for number, choice in enumerate(choices):
        if choice < 0:
            lines.append(bad[choice % len(bad)])
        else:
            form = good[choice % len(good)]
            lines.append(form % number)
            numbers.append(str(number))
    return HEADS.get(name, b"") + b"\n".join(lines) + b"\n" * final, numbers, len(choices) - len(numbers)


@pytest.mark.parametrize("name", KINDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(choices=st.lists(st.integers(-8, 5), min_size=1, max_size=30), final=st.booleans())
def test_records_read_are_used_or_counted(name, choices, final, tmp_path_factory):
    """D12: among any mixture of broken records every good one is read."""
    choices = [*choices, *range(len(choices) + 3)]  # most records are good
    content, expected, bad = mixture(name, choices, final)
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    report = ReadReport()
    how = DataSettings(sources=[str(path)], separator="line" if name == "a.txt" else "file", skip_bad=True)
    texts = [document.text.strip('"') for document in read_documents(how, report)]
    if name != "a.csv":
        assert texts == expected
        assert sum(report.dropped.values()) == bad
    else:  # two stray marks with text between them may also be one valid field: then its lines are in the text
        assert "".join(texts).count("\n") or texts == expected
        lines = content.rstrip(b"\n").count(b"\n")
        assert report.documents + sum(report.dropped.values()) <= lines
        assert all(any(number in text for text in texts) for number in expected)


def test_a_stray_quotation_mark_costs_its_own_row(read, write):
    """D12: one in 200 rows took 198 others with it, reported as one row."""
    rows = [f"{number},good" for number in range(200)]
    rows[1] = '1,"stray'
    documents, report = read(write("a.csv", "n,text\n" + "\n".join(rows) + "\n"), skip_bad=True)
    assert len(documents) == 199 and report.dropped == {"row that is not CSV": 1}
    rows[150] = 'more",x'
    documents, report = read(write("b.csv", "n,text\n" + "\n".join(rows) + "\n"), skip_bad=True)
    assert len(documents) == 199 and report.dropped == {"row that is not CSV": 1}
    with pytest.raises(DataError, match=r"line 3: not CSV: .*reaches line 152"):
        read(tmp := write("c.csv", "n,text\n" + "\n".join(rows).replace('more",x', 'more"x,1') + "\n"))
    assert len(read(tmp, skip_bad=True)[0]) == 199
    how = PairSettings(pairs=str(tmp), source_field="n", target_field="text", keep_duplicates=True)
    report = PairReport()
    assert len(list(read_pairs(how, DataSettings(skip_bad=True), report, "train"))) == 199
    assert report.dropped == {"row that is not CSV": 1}


def test_a_row_of_empty_cells_is_counted(read, write):
    """D12: it was left out without a word."""
    documents, report = read(write("a.csv", "text,n\n,\nb,1\n\n"))
    assert [document.text for document in documents] == ["b"]
    assert report.dropped == {"record without text (empty, or only whitespace)": 1}


class Counted(str):
    """A chunk of text that counts the characters which are copied to put others before it."""

    copied = 0
    __slots__ = ()

    def __radd__(self, other):
        Counted.copied += len(other) + len(self)
        return str(other) + str(self)


def test_a_long_line_is_joined_once():
    """D9: each chunk of a line of 400 MB copied all that were before it: 3 minutes."""
    chunks = [Counted("x" * 100) for _ in range(300)]
    assert list(lines_of([*chunks, Counted("\nend")])) == ["x" * 30_000 + "\n", "end"]
    assert Counted.copied <= 2 * 30_000


def test_a_long_record_is_cut_into_pieces_without_copying_the_rest(monkeypatch):
    """D9: a piece copied everything after it."""
    import tracemalloc

    text = "word " * 400_000
    parts = split_documents([text], parse_separator("file"), piece_characters=10_000)
    next(parts)
    tracemalloc.start()
    pieces = sum(1 for _ in parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pieces == 200 - 1 and peak < len(text) / 4


def parquet(path, values, **how):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    array = pa.array([value.encode() if isinstance(value, str) else value for value in values], pa.binary())
    pq.write_table(pa.table({"text": array.view(pa.string())}), path, **how)


def test_parquet_values_that_are_not_utf_8_are_named_or_left_out_alone(read, tmp_path):
    """D12: one of them was an unexpected error."""
    path = tmp_path / "a.parquet"
    parquet(path, ["床前", b"\xff\xfe", None, "明月"])
    with pytest.raises(DataError, match=r"a\.parquet, row 2: 'text' holds bytes that are not UTF-8"):
        read(path)
    documents, report = read(path, skip_bad=True)
    assert [document.text for document in documents] == ["床前", "明月"]
    assert report.dropped == {"record that is not UTF-8": 1, "record whose 'text' is not text": 1}


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_damaged_page_of_parquet_costs_its_row_group_and_is_counted(tmp_path, compression):
    """D12: records = used + counted, whatever byte of the data is flipped."""
    path = tmp_path / "a.parquet"
    values = [f"record {number} " * 5 for number in range(400)]
    parquet(path, values, row_group_size=100, compression=compression, write_page_checksum=True, use_dictionary=False)
    whole = path.read_bytes()
    import pyarrow.parquet as pq

    chunks = [pq.ParquetFile(path).metadata.row_group(group).column(0) for group in range(4)]
    draws = random.Random(1)
    for _ in range(20):
        group = draws.randrange(4)
        start = chunks[group].data_page_offset
        at = start + draws.randrange(chunks[group].total_compressed_size)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << draws.randrange(8))]) + whole[at + 1 :])
        report = ReadReport()
        records = list(parquet_records(path, "a.parquet", None, BadRecords(report, skip=True)))
        assert len(records) + sum(report.dropped.values()) == 400
        assert {record.text for record in records} <= set(values)
        if report.dropped:
            assert report.dropped == {"row of a damaged row group": 100}
            with pytest.raises(DataError, match=rf"a\.parquet, row group {group + 1} of 4 \(rows .*damaged") as error:
                list(parquet_records(path, "a.parquet", None, BadRecords(ReadReport(), skip=False)))
            assert "download the file again" in str(error.value)


def test_json_lines_of_any_length_are_read(read, write):
    text = "明月" * 700_000
    documents, _ = read(write("a.jsonl", json.dumps({"text": text}, ensure_ascii=False) + "\n"))
    assert documents[0].text == text
