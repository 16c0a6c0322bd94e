"""Reading pairs: what belongs together stays together, and what is left out is counted."""

from __future__ import annotations

import gzip
import io
import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import DataSettings, PairSettings
from mingyue.data import PairReport, read_lines, read_pairs, sources
from mingyue.errors import DataError, SettingsError

INSIDE = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"]


@pytest.fixture
def read(write):
    """Pairs of two texts, written to a.en and a.de, and the report."""

    def run(source, target, *, part="train", data=None, **how):
        report = PairReport()
        files = {"source": [str(write("a.en", source))], "target": [str(write("a.de", target))]}
        if part == "valid":
            files |= {"valid_" + side: names for side, names in files.items()}
        pairs = list(read_pairs(PairSettings(**files, **how), DataSettings(**(data or {})), report, part))
        return [(pair.source, pair.target) for pair in pairs], report

    return run


@pytest.fixture
def records(write):
    """The same of a file of records."""

    def run(name, content, *, data=None, part="train", **how):
        report = PairReport()
        files = {"pairs": [str(write(name, content))]}
        if part == "valid":
            files["valid_pairs"] = files["pairs"]
        found = read_pairs(PairSettings(**files, **how), DataSettings(**(data or {})), report, part)
        return [(pair.source, pair.target) for pair in found], report

    return run


def lines(path, encoding=None, **how):
    return list(read_lines(path, encoding, PairReport(), **how))


@pytest.mark.parametrize("inside", INSIDE)
def test_only_line_feeds_end_a_line(write, inside):
    """No character inside a text shifts the lines after it."""
    path = write("a.txt", f"one{inside}two\nthree{inside}\r\n{inside}four\n")
    assert lines(path) == [f"one{inside}two", f"three{inside}", f"{inside}four"]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\x00\ufeff"), max_size=8)),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_lines_come_back_whatever_ends_them(tmp_path_factory, texts, end, final, mark, packed):
    """CRLF = LF, .gz = plain, with or without a byte-order mark; a line end at the end of a file begins no line."""
    if texts and not texts[-1] and not final:
        texts = [*texts, "x"]  # an empty last line without an end is not there
    content = end.join(texts) + (end if final and texts else "")
    data = ("\ufeff" * mark + content).encode("utf-8")
    path = tmp_path_factory.getbasetemp() / ("lines.txt.gz" if packed else "lines.txt")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert lines(path, "utf-8") == texts


def test_nothing_is_trimmed_and_empty_lines_count(write):
    assert lines(write("a.txt", "\n  a \t\n\n b\n\n")) == ["", "  a \t", "", " b", ""]
    assert lines(write("b.txt", "")) == []
    assert lines(write("c.txt", "\n")) == [""]


def test_lines_of_standard_input(monkeypatch):
    monkeypatch.setattr(sources.sys, "stdin", SimpleNamespace(buffer=io.BytesIO("床前\n明月\n".encode())))
    assert lines("-") == ["床前", "明月"]


def test_lines_in_another_encoding(write):
    text = "床前明月光疑是地上霜举头望明月低头思故乡\n"
    path = write("a.txt", text.encode("gb18030"))
    assert lines(path, "gb18030") == [text[:-1]]
    report = PairReport()
    assert list(read_lines(write("b.txt", (text * 3).encode("utf-16")), None, report)) == [text[:-1]] * 3
    assert report.files == 1 and list(report.encodings) == ["utf-16-le by its byte-order mark"]
    with pytest.raises(SettingsError, match="no encoding 'gb18031'"):
        lines(path, "gb18031")


def test_a_folder_is_not_a_file_of_lines(write, tmp_path):
    write("a/one.txt", "x\n")
    write("a/two.txt", "x\n")
    with pytest.raises(DataError, match=r"is 2 files, and one was expected"):
        lines(tmp_path / "a")
    with pytest.raises(DataError, match="no file, folder or known corpus"):
        lines(tmp_path / "nothing.en")
    write("b/c.parquet", b"PAR1")
    with pytest.raises(DataError, match="not read from Parquet"):
        lines(tmp_path / "b" / "c.parquet")


def test_pairs_are_lines_of_the_same_number(write):
    report = PairReport()
    files = {"source": [str(write("a.en", "one\ntwo\n"))], "target": [str(write("a.de", "eins\r\nzwei"))]}
    pairs = list(read_pairs(PairSettings(**files), DataSettings(), report, "train"))
    assert [(pair.source, pair.target) for pair in pairs] == [("one", "eins"), ("two", "zwei")]
    assert [pair.where for pair in pairs] == [f"{files['source'][0]}:1", f"{files['source'][0]}:2"]
    assert (report.files, report.documents, report.characters, report.bytes, report.dropped) == (2, 2, 14, 14, {})


@pytest.mark.parametrize(
    ("source", "target", "counts", "first", "longer"),
    [
        ("1\n2\n3\n4\n5\n", "1\n2\n3\n", (5, 3), 4, "a.en"),
        ("1\n2\n", "1\n2\n3", (2, 3), 3, "a.de"),
        ("", "1\n", (0, 1), 1, "a.de"),
        ("1\n\n", "1\n", (2, 1), 2, "a.en"),
        ("1\r\n2\r\n3\r\n", "1\u20282\n", (3, 1), 2, "a.en"),
        ("1\n" * 1200, "1\n" * 1201, (1200, 1201), 1201, "a.de"),
    ],
)
def test_files_of_unequal_length_are_refused_with_both_counts_and_the_first_bad_line(
    read, tmp_path, source, target, counts, first, longer
):
    """D6: parallel files with unequal line counts are refused; skip_bad does not change that."""
    expected = (
        f"{tmp_path / 'a.en'} has {counts[0]:,} lines and {tmp_path / 'a.de'} has {counts[1]:,}: "
        f"line {first:,} of {tmp_path / longer} has no partner"
    )
    for part in ("train", "valid"):
        with pytest.raises(DataError) as error:
            read(source, target, part=part, data={"skip_bad": True}, keep_duplicates=True)
        assert error.value.message == expected and error.value.advice


def test_pairs_that_all_go_are_refused_with_their_number_and_the_reasons(read, records):
    """D6: all pairs filtered out."""
    with pytest.raises(DataError, match=r"a\.en, .*a\.de: 4 read, 4 left out \(3 × empty source, 1 × empty target\)"):
        read("\n \nx\n\u3000\n", "a\nb\n\t\n\n")
    with pytest.raises(DataError, match="0 pairs"):
        read("", "")
    with pytest.raises(DataError, match=r"2 read, 2 left out \(1 × line that is not JSON, 1 × empty target\)"):
        records("a.jsonl", '{"source"\n{"source": "a", "target": ""}\n', data={"skip_bad": True})


def test_what_is_left_out_is_counted_and_the_rest_stays_aligned(read, tmp_path):
    pairs, report = read("a\n\nb\na\nc\nd\na\n", "A\nX\n \nA\nC\nd\nB\n")
    assert pairs == [("a", "A"), ("c", "C"), ("d", "d"), ("a", "B")]
    assert report.dropped == {"empty source": 1, "empty target": 1, "duplicate": 1}
    assert report.examples["duplicate"] == f"{tmp_path / 'a.en'}:4"
    assert "4 pairs kept" in report.describe()[0] and "1 × duplicate" in report.describe()[2]
    assert read("a\na\n", "A\nA\n", keep_duplicates=True)[0] == [("a", "A")] * 2
    assert read("a\na\n\n", "A\nA\nB\n", part="valid")[0] == [("a", "A")] * 2  # validation: never as duplicates
    assert read("ab\na\n", "c\nbc\n")[0] == [("ab", "c"), ("a", "bc")]  # the same characters, not the same pair


texts = st.text(st.sampled_from("ab \t床\u2028\x85"), max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(texts, texts)), st.booleans())
def test_alignment_is_kept_whatever_goes(read, pairs, keep):
    """What is kept is what was written, in order, without the empty and the repeated; everything else is counted."""
    expected = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    if not keep:
        expected = list(dict.fromkeys(expected))
    source, target = ("".join(pair[side] + "\n" for pair in pairs) for side in (0, 1))
    if not expected:
        with pytest.raises(DataError, match=f"{len(pairs)} read" if pairs else "0 pairs"):
            read(source, target, keep_duplicates=keep)
        return
    found, report = read(source, target, keep_duplicates=keep)
    assert found == expected
    assert len(found) + sum(report.dropped.values()) == len(pairs)


def test_several_files_follow_each_other(write):
    names = [str(write(name, text)) for name, text in [("a", "1\n"), ("b", "2\n"), ("A", "eins\n"), ("B", "zwei\n")]]
    how = PairSettings(source=names[:2], target=names[2:])
    found = list(read_pairs(how, DataSettings(), PairReport(), "train"))
    assert [(pair.source, pair.target) for pair in found] == [("1", "eins"), ("2", "zwei")]


def test_progress_ends_at_the_size_of_all_files(write):
    seen = []
    how = PairSettings(source=str(write("a", "1\n22\n")), target=str(write("b", "1\n2\n")))
    list(read_pairs(how, DataSettings(), PairReport(), "train", lambda *values: seen.append(values)))
    assert seen[-1] == ("reading", 9, 9)
    assert all(one[1] <= other[1] for one, other in pairwise(seen))


def test_standard_input_serves_one_side_only():
    with pytest.raises(DataError, match="standard input was named more than once"):
        list(read_pairs(PairSettings(source="-", target="-"), DataSettings(), PairReport(), "train"))
    with pytest.raises(DataError, match="no pairs of the valid part were named"):
        list(read_pairs(PairSettings(source="-", target="b"), DataSettings(), PairReport(), "valid"))


def test_bytes_that_do_not_fit_drop_their_pair_alone(read):
    source = b"one\nt\xffo\nthree\n"
    with pytest.raises(DataError, match=r"line 2: byte 5 \(0xff\)"):
        read(source, "1\n2\n3\n", data={"encoding": "utf-8"})
    pairs, report = read(source, "1\n2\n3\n", data={"encoding": "utf-8", "skip_bad": True})
    assert pairs == [("one", "1"), ("three", "3")]
    assert sum(report.dropped.values()) == 1


TWO = [("a", "A"), ("b", "B")]


@pytest.mark.parametrize(
    ("name", "content", "how"),
    [
        ("a.tsv", "source\ttarget\na\tA\nb\tB\n", {}),
        ("a.tsv", "target\tid\tsource\nA\t1\ta\nB\t2\tb\n", {}),
        ("a.tsv", "a\tA\nb\tB\n", {}),
        ("a.txt", "a\tA\tCC-BY\r\nb\tB\tCC-BY\r\n", {}),
        ("a.tsv", "A\tx\ta\nB\tx\tb", {"source_field": "3", "target_field": "1"}),
        ("a.tsv", "\n\na\tA\n\nb\tB\n\n", {}),
        ("a.tsv", "en\tde\na\tA\nb\tB\n", {"source_field": "en", "target_field": "de"}),
        ("a.csv", 'source,target\n"a",A\nb,"B"\n', {}),
        ("a.csv", "a,A\nb,B\n", {}),
        ("a.jsonl", '{"source": "a", "target": "A"}\n\n{"target": "B", "source": "b", "id": 1}\n', {}),
        ("a.ndjson", '{"source": "a", "target": "A"}\n{"source": "b", "target": "B"}', {}),
        (
            "a.jsonl",
            '{"translation": {"en": "a", "de": "A"}}\n{"translation": {"de": "B", "en": "b"}}\n',
            {"source_field": "translation.en", "target_field": "translation.de"},
        ),
        ("a.jsonl", '{"x.y": "a", "t": "A"}\n{"x.y": "b", "t": "B"}', {"source_field": "x.y", "target_field": "t"}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_records_that_hold_both_sides(records, name, content, how, packed):
    data = content.encode()
    given_name, given_data = (name + ".gz", gzip.compress(data)) if packed else (name, data)
    for part in ("train", "valid"):
        assert records(given_name, given_data, part=part, **how)[0] == TWO


def test_a_quotation_mark_in_tsv_is_a_character(records):
    pairs, _ = records("a.tsv", '"a" b\t"A\n"c"\t""\n')
    assert pairs == [('"a" b', '"A'), ('"c"', '""')]


def test_csv_fields_hold_commas_marks_and_lines(records):
    assert records("a.csv", 'source,target\n"a, ""b""","A\nB"\n')[0] == [('a, "b"', "A\nB")]


def test_a_word_that_is_a_name_of_a_side_is_no_header_by_itself(records):
    """A header holds both names; a column number is never looked up as a name."""
    assert records("a.tsv", "source\tQuelle\nb\tB\n")[0] == [("source", "Quelle"), ("b", "B")]
    numbered = {"source_field": "1", "target_field": "2"}
    assert records("b.tsv", "2\t1\n3\t4\n", **numbered)[0] == [("2", "1"), ("3", "4")]


@pytest.mark.parametrize(
    ("name", "content", "how", "message"),
    [
        ("a.tsv", "a\tA\nb B\n", {}, r"a\.tsv, line 2: there is 1 column, and line 1 has 2"),
        ("a.tsv", "a\tA\nb\tB\tC\n", {}, r"a\.tsv, line 2: there are 3 columns, and line 1 has 2"),
        ("a.tsv", "\nabc\nb\tB\n", {}, r"a\.tsv, line 2: column 2 was asked for, and there is 1 column"),
        ("a.tsv", "a\tA\n", {"target_field": "3", "source_field": "1"}, "line 1: column 3 was asked for"),
        ("a.csv", 'a,A\n"b"x,B\n', {}, r"a\.csv, line 2: not CSV"),
        ("a.jsonl", '{"source": "a", "target": "A"}\n{"source": "b"}\n', {}, "line 2: no key 'target'; .*: 'source'"),
        ("a.jsonl", '{"translation": {"en": "a", "de": "A"}}', {}, "found: 'translation.en', 'translation.de'"),
        ("a.jsonl", "{}", {}, "keys found: none"),
        ("a.jsonl", '{"source": "a", "target": 3}', {}, "line 1: 'target' holds int, not text"),
        ("a.jsonl", '["a", "b"]', {}, "line 1: a JSON object was expected, not list"),
        ("a.jsonl", '{"source": "a"', {}, "line 1: not JSON: .* at column"),
        ("a.jsonl", '{"source": "\\ud800", "target": "b"}', {}, "a.jsonl:1: half of a surrogate pair"),
    ],
)
def test_a_broken_record_is_named_or_counted(records, name, content, how, message):
    """The line and what was found there; with skip_bad the record is counted, and the others are read."""
    with pytest.raises(DataError, match=message) as error:
        records(name, content, **how)
    assert "--skip-bad" in str(error.value.advice)
    good = json.dumps({"source": "g", "target": "G"}) if name == "a.jsonl" else "g,G" if name == "a.csv" else "g\tG"
    if not how:
        pairs, report = records(name, f"{good}\n{content.strip()}\n", data={"skip_bad": True})
        assert pairs[0] == ("g", "G")
        assert sum(report.dropped.values()) == 1


def test_names_that_no_column_has_are_refused(records):
    message = r"a\.tsv, line 1: no column 'fr'; columns found: 'en', 'de'"
    with pytest.raises(DataError, match=message) as error:
        records("a.tsv", "en\tde\na\tA\n", data={"skip_bad": True}, source_field="en", target_field="fr")
    assert "numbered from 1" in str(error.value.advice)
    with pytest.raises(SettingsError, match="no column 0"):
        records("a.tsv", "a\tA\n", source_field="0", target_field="1")


def test_hidden_files_of_a_folder_are_no_pairs(write, tmp_path):
    write("p/a.tsv", "\tA\n")
    write("p/.hidden", "x")
    with pytest.raises(DataError, match=r"1 read, 1 left out \(1 × empty source\)"):
        list(read_pairs(PairSettings(pairs=str(tmp_path / "p")), DataSettings(), PairReport(), "train"))


def test_a_table_without_a_header_shows_its_first_pair(records):
    """A header in columns that were named by number would be a pair: the user sees it."""
    pairs, report = records("a.tsv", "en\tde\none\teins\n", source_field="1", target_field="2")
    assert len(pairs) == 2
    assert any("'en' → 'de'" in note for note in report.notes)
    _, report = records("b.tsv", "source\ttarget\none\teins\n")
    assert not report.notes


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"source": ["a"]}, ("source names 1", "target 0")),
        ({"valid_source": ["a", "b"], "valid_target": ["c"]}, ("valid_source names 2", "valid_target 1")),
        ({"source": ["a"], "target": ["b"], "pairs": ["c"]}, ("pairs too",)),
        ({"valid_pairs": ["a"]}, ("no pairs to train on",)),
        ({"pairs": ["a"], "source_field": "x", "target_field": "x"}, ("both 'x'",)),
    ],
)
def test_files_that_do_not_go_together_are_refused(given, names):
    with pytest.raises(SettingsError) as refused:
        PairSettings.read(given, source="the settings")
    assert all(name in refused.value.message for name in names)
