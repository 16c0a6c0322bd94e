"""Files of records."""

from __future__ import annotations

import builtins
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.data.formats import lines_of, tsv_records
from mingyue.data.report import BadRecords, ReadReport
from mingyue.errors import DataError, MissingExtraError


def texts(found):
    return [document.text for document in found[0]]


def test_json_lines_give_a_document_a_record(read, write):
    lines = '{"text": "床前\\n明月"}\n\n{"text": "b\u2028c", "id": 1}\r\n{"text": "d\\r\\ne"}'
    assert texts(read(write("a.jsonl", lines))) == ["床前\n明月", "b\u2028c", "d\ne"]
    assert texts(read(write("a.jsonl.gz", gzip.compress(lines.encode())))) == ["床前\n明月", "b\u2028c", "d\ne"]
    assert texts(read(write("b.ndjson", '{"body": "x"}'), field="body")) == ["x"]


def test_records_can_be_split_further(read, write):
    assert texts(read(write("a.jsonl", '{"text": "a\\n\\nb"}\n{"text": "c"}'), separator="blank-line")) == [
        "a",
        "b",
        "c",
    ]


BROKEN = {
    '{"text": "a"': "not JSON",
    '["a"]': "object was expected, not list",
    '{"body": "x", "id": 1}': "no key 'text'; keys found: 'body', 'id'",
    '{"text": null}': "'text' holds NoneType",
    '{"text": "\\ud83d"}': "half of a surrogate pair",
    '{"text": ' + "[" * 100_000: "not JSON",
}


@pytest.mark.parametrize(("line", "message"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_record_is_an_error_with_its_line(read, write, line, message):
    """D7: line number, keys found, and the way out; --skip-bad counts and reports."""
    path = write("a.jsonl", f'{{"text": "good"}}\n\n{line}\n{{"text": "also"}}\n')
    with pytest.raises(DataError) as error:
        read(path)
    assert "a.jsonl, line 3: " in str(error.value) and message in str(error.value)
    assert "--skip-bad" in str(error.value)
    found = read(path, skip_bad=True)
    assert texts(found) == ["good", "also"]
    assert list(found[1].dropped.values()) == [1]
    assert any("left out: 1 ×" in line and "a.jsonl, line 3" in line for line in found[1].describe())


def test_a_line_of_bytes_that_are_not_text_is_left_out_alone(read, write):
    """D7: one bad line of a JSON lines file does not cost the others."""
    content = '{"text": "明月"}\n'.encode() * 3 + b'{"text": "\xff"}\n' + '{"text": "故乡"}\n'.encode()
    path = write("a.jsonl", content)
    with pytest.raises(DataError, match="line 4"):
        read(path)
    found = read(path, skip_bad=True)
    assert texts(found) == ["明月"] * 3 + ["故乡"]
    assert sum(found[1].dropped.values()) == 1


def test_empty_records_are_counted(read, write):
    """D10: a record without text is no document."""
    found = read(write("a.jsonl", '{"text": ""}\n{"text": "a"}\n{"text": " "}'))
    assert texts(found) == ["a"] and sum(found[1].dropped.values()) == 2


def test_all_records_bad_is_an_error(read, write):
    """D7: nothing left is not an empty success."""
    with pytest.raises(DataError, match=r"no text in .*2 × line that is not JSON"):
        read(write("a.jsonl", "{\n{\n"), skip_bad=True)


def test_csv_takes_a_column_with_quotes_and_newlines(read, write):
    content = 'id,text\r\n1,"a, ""b""\r\nc"\r\n2,明月\r\n'
    assert texts(read(write("a.csv", content))) == ['a, "b"\nc', "明月"]
    assert texts(read(write("a.csv.gz", gzip.compress(content.encode("gbk"))), encoding="gbk"))[1] == "明月"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,text\n1,a\n2\n", "line 3: 1 columns where the header has 2"),
        ('id,text\n1,"a" b\n', "line 2: not CSV"),
        ('id,text\n1,a\n2,"never closed\n', "line 3: not CSV"),
    ],
)
def test_a_broken_row_is_an_error_with_its_line(read, write, content, message):
    """D7: the same for CSV."""
    path = write("a.csv", content)
    with pytest.raises(DataError, match=message):
        read(path)
    good = write("b.csv", "id,text\n0,first\n" + content.split("\n", 1)[1])
    assert sum(read(good, skip_bad=True)[1].dropped.values()) == 1


@pytest.mark.parametrize(("name", "content"), [("a.csv", "id,body\n1,x\n"), ("a.tsv", "id\tbody\n1\tx\n")])
def test_a_missing_column_is_named_with_those_found(read, write, name, content):
    """D7: no column of that name."""
    path = write(name, content)
    with pytest.raises(DataError, match="no column 'text'; columns found: 'id', 'body'"):
        read(path)
    assert texts(read(path, field="body")) == ["x"]


def test_tsv_keeps_quotation_marks(read, write):
    content = 'text\tid\n"Yes," he said.\t1\n"Yes."\t2\n"say ""hi"""\t3\n'
    assert texts(read(write("a.tsv", content))) == ['"Yes," he said.', '"Yes."', 'say "hi"']


@given(st.lists(st.text(st.sampled_from('a"\u2028 明\r'), max_size=6), min_size=1))
def test_tsv_never_loses_a_row(rows):
    report = ReadReport()
    lines = ["n\ttext\n", *(f"{n}\t{row}\n" for n, row in enumerate(rows))]
    assert len(list(tsv_records(lines, "a", None, BadRecords(report, skip=False)))) == len(rows)


@given(st.text(st.sampled_from("ab\n\r\u2028\x0b")), st.integers(1, 5))
def test_lines_are_cut_at_newlines_wherever_chunks_end(text, size):
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    found = list(lines_of(chunks))
    assert "".join(found) == text
    assert all("\n" not in line[:-1] for line in found)


def test_parquet_takes_a_column(read, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["床前", "明月", ""], "n": [1, 2, 3]}), path)
    assert texts(read(path)) == ["床前", "明月"]
    with pytest.raises(DataError, match="no column 'body'; columns found: 'text', 'n'"):
        read(path, field="body")
    with pytest.raises(DataError, match="row 1: 'n' is int, not text"):
        read(path, field="n")
    pq.write_table(pa.table({"text": ["床前", None]}), path)
    with pytest.raises(DataError, match="row 2: 'text' is empty"):
        read(path)
    assert texts(read(path, skip_bad=True)) == ["床前"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a complete Parquet file"):
        read(path)


def test_parquet_without_its_extra_says_what_to_install(read, write, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **words):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **words)

    path = write("a.parquet", b"PAR1")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"mingyue\[data\]"):
        read(path)


def test_json_survives_any_text(read, write):
    strange = 'quote " backslash \\ tab \t nul-free \u2028 😀 𠮷'
    assert texts(read(write("a.jsonl", json.dumps({"text": strange})))) == [strange]
    assert texts(read(write("b.jsonl", json.dumps({"text": strange}, ensure_ascii=False)))) == [strange]
