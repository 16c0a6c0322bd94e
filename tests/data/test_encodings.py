"""Bytes to text: nothing is lost silently."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.data import detect, encodings
from mingyue.data.split import split_documents
from mingyue.errors import DataError, SettingsError

POEM = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。\n"


def only(found):
    (document,) = found[0]
    return document.text


@pytest.mark.parametrize("encoding", ["gbk", "gb18030"])
def test_a_gbk_file_is_detected_and_reported(read, write, encoding):
    """D4: a GBK file without any mark is read right, and the report says as what."""
    found = read(write("poem.txt", POEM.encode(encoding)))
    assert only(found) == POEM
    assert found[1].encodings == {"gb18030 (detected)": 1}
    assert any("poem.txt" in line and "gb18030" in line and "--encoding" in line for line in found[1].describe())


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_a_byte_order_mark_names_the_encoding_and_is_no_character(read, write, encoding):
    """D4, D10: UTF-16 and UTF-32 by their mark; the mark is not part of the text."""
    mark = b"" if encoding in ("utf-8-sig", "utf-16", "utf-32") else "\ufeff".encode(encoding)
    found = read(write("poem.txt", mark + POEM.encode(encoding)))
    assert only(found) == POEM
    assert found[1].characters == len(POEM)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_detected(read, write, encoding):
    """D4: zero bytes do not make it binary."""
    text = "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate.\n"
    found = read(write("a.txt", text.encode(encoding)))
    assert only(found) == text
    assert list(found[1].encodings) == [f"{encoding} (detected)"]


def test_an_uncertain_encoding_is_an_error_with_file_line_byte_and_flag(read, write):
    """D4: four characters are too few to guess from."""
    path = write("short.txt", b"abc\n" + "明月几时".encode("gbk"))
    with pytest.raises(DataError) as error:
        read(path)
    message = str(error.value)
    assert "short.txt, line 2: byte 4 (0xc3)" in message
    assert "--encoding gb18030" in message


@pytest.mark.parametrize("bad", [b"\xff\xfe bad ", b"\xed\xa0\x80 bad "])
def test_a_few_wrong_bytes_in_ascii_are_damage_and_no_other_encoding(read, write, bad):
    """D4: cp932 was offered, in which they are characters of private use."""
    lines = b"Hello world, this is a text with some lines.\nAnd another one here.\n" * 40
    with pytest.raises(DataError, match="though the text around it is") as error:
        read(write("a.txt", lines + bad + lines))
    assert "Repair the file" in str(error.value) and "cp932" not in str(error.value)


def test_few_letters_of_latin_1_are_asked_about_and_cp1252_is_named_first(read, write):
    """D4: single-byte encodings differ in few letters; a wrong one would go unseen."""
    path = write("a.txt", "\ndéjà".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 2: byte 2 \(0xe9\)") as error:
        read(path)
    assert "it could be cp1252 or" in str(error.value) and "as cp1252, line 2 is 'déjà'" in str(error.value)
    assert only(read(path, encoding="latin-1")) == "\ndéjà"


LATIN = {
    "French": ("cp1252", "déjà vu\n" * 4),
    "long French": ("latin-1", "Le café était déjà fermé. À bientôt, disait le garçon. Où êtes-vous, ma chère ?\n" * 9),
    "German": ("latin-1", "Die Straße führt über die Brücke; schöne Mädchen hören große Lieder.\n"),
    "Portuguese": ("cp1252", "O coração não é só razão: amanhã será o último dia da estação, avó também virá.\n"),
    "Spanish": ("cp1252", "¿Dónde está el niño? Mañana volverá con su mamá, que canta una canción.\n"),
    "English with curly quotes": ("cp1252", "“It’s late,” she said — “don’t wait…” He didn’t. ‘Why?’\n"),
    "English with loanwords": ("cp1252", "The café was full. A naïve résumé; the fiancée had déjà vu.\n"),
    "Swedish": ("cp1252", "Räven går över ån och äter små gröna bär på ön där båten låg.\n"),
    "Polish": ("cp1250", "Żółta łódź płynie powoli, a wędrowiec śpiewa pieśń o księżycu. Gęś już śpi.\n"),
    "Czech": ("iso8859-2", "Příliš žluťoučký kůň úpěl ďábelské ódy, když měsíc svítil na řeku a město.\n"),
    "Turkish": ("cp1254", "Güneş doğdu, kuşlar ötüyor; çocuklar bahçede ve yaşlı adam gülümsüyor, ışık.\n"),
    "Lithuanian": ("cp1257", "Mėnulis šviečia virš ežero, o žvejys tyliai dainuoja apie šalis, kur ošia vėjas.\n"),
    "French of an old Mac": ("mac-roman", "Le café était déjà fermé. À bientôt, disait le garçon. Où êtes-vous ?\n"),
    "German of DOS": ("cp850", "Die Straße führt über die Brücke; schöne Mädchen hören große Lieder.\n"),
    "Russian": ("koi8-r", "Я помню чудное мгновенье: передо мной явилась ты, как мимолётное виденье.\n" * 3),
    "code with Chinese": ("gb18030", "int main() { // 床前明月光，疑是地上霜\n return 0; }\n" * 9),
}


@pytest.mark.parametrize(("encoding", "text"), LATIN.values(), ids=LATIN)
def test_single_byte_encodings_are_told_apart_by_their_letters(read, write, encoding, text):
    """D4: French was read as Baltic, and German and Portuguese were refused; the judged line is shown."""
    found = read(write("a.txt", text.encode(encoding)))
    assert only(found) == text
    shown = next(line for line in text.split("\n") if not line.isascii())
    note = next(note for note in found[1].notes if "--encoding sets another" in note)
    assert ": line 1 is '" in note and shown[:20].strip() in note


RARE = {"mac_turkish", "cp037", "cp437", "hp_roman8", "cp1006", "ptcp154"}


@given(st.binary(min_size=1, max_size=200).map(lambda data: data + b"\xff"))
def test_rare_encodings_are_never_guessed(data):
    """D4: Latin-1 was offered as mac-turkish."""
    names, _ = detect.plausible(data)
    assert not {name.replace("-", "_") for name in names} & RARE


@pytest.mark.parametrize("name", ["undefined", "punycode", "idna", "base64", "hex", "unicode_escape", "", "a\0b", "é"])
def test_only_encodings_of_text_files_are_taken(read, write, name):
    """D4: --encoding undefined and punycode were accepted, and failed on the way."""
    with pytest.raises(SettingsError, match="there is no encoding") as error:
        read(write("a.txt", POEM), encoding=name)
    assert f"Did you mean {name}?" not in str(error.value)


def test_an_encoding_that_needs_a_mark_is_an_error_without_it(read, write):
    """D4: --encoding utf-16 of a file without its mark raised an error that nothing caught."""
    with pytest.raises(DataError, match=r"line 1: byte 0 \(0x61\) does not fit utf-16 as given"):
        read(write("a.txt", b"ab" * 9), encoding="utf-16")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.txt"])
@pytest.mark.parametrize("junk", [b"\xff", b"\x00", b"caf\xe9"])
@pytest.mark.parametrize("records", [3, 1000])
@pytest.mark.parametrize("encoding", [None, "utf-8"])
def test_skip_bad_leaves_out_the_record_of_a_bad_byte_and_no_more(read, write, name, junk, records, encoding):
    """D7: one bad byte, or a NUL, among 1,000 records of ASCII lost the whole file."""
    form = {"a.jsonl": b'{"text": "%s"}\n', "a.csv": b"%s,1\n", "a.tsv": b"%s\t1\n", "a.txt": b"%s\n"}[name]
    head = {"a.csv": b"text,n\n", "a.tsv": b"text\tn\n"}.get(name, b"")
    lines = [form % b"good" for _ in range(records)]
    path = write(name, head + b"".join([*lines[1:], form % junk, lines[0]]))
    documents, report = read(path, skip_bad=True, separator="line", encoding=encoding)
    assert [document.text for document in documents] == ["good"] * records
    assert list(report.dropped.values()) == [1]
    assert f", line {records + bool(head)}" in next(iter(report.examples.values()))
    with pytest.raises(DataError, match="line"):
        read(path, separator="line")


def test_a_long_damaged_document_is_left_out_whole(read, write, monkeypatch):
    """D7: its first pieces were kept and joined to the next document, and the rest was counted as a file."""
    monkeypatch.setattr(split_documents, "__kwdefaults__", {"piece_characters": 10_000})
    long = b"some line of text\n" * 3000
    write("a.txt", long + b"\xff" + long)
    write("b.txt", "good")
    documents, report = read(skip_bad=True)
    assert [document.text for document in documents] == ["good"]
    assert report.dropped == {"document that does not fit the encoding": 1} and report.characters == 4


@pytest.mark.parametrize("where", [0, 7, 30])
def test_utf_8_with_a_broken_byte_is_damaged_not_another_encoding(read, write, where):
    """D4: one bad byte in UTF-8 must not turn the file into Mojibake of some other encoding."""
    lines = (POEM * 20).encode("utf-8").split(b"\n")
    lines[where] += b"\xff"
    path = write("poem.txt", b"\n".join(lines))
    offset = path.read_bytes().index(b"\xff")
    with pytest.raises(DataError) as error:
        read(path)
    assert f"poem.txt, line {where + 1}: byte {offset} (0xff)" in str(error.value)
    assert "--skip-bad" in str(error.value)


def test_a_character_cut_off_at_the_end_of_a_file_is_an_error(read, write):
    """D4: the last bytes count too."""
    path = write("poem.txt", (POEM * 5).encode("utf-8")[:-2])
    with pytest.raises(DataError, match=f"line 10: byte {len((POEM * 5).encode()) - 4} "):
        read(path)


def test_skip_bad_leaves_out_the_documents_with_bad_bytes_and_counts_them(read, write):
    """D4: the others are whole."""
    path = write("poems.txt", b"\n\n".join([POEM.encode(), b"bad \xff", POEM.encode() + b"\xfe", POEM.encode()]))
    documents, report = read(path, skip_bad=True, separator="blank-line")
    assert [document.text for document in documents] == [POEM.rstrip("\n")] * 2
    assert list(report.dropped.values()) == [2]
    assert "poems.txt, line 5" in next(iter(report.examples.values()))


def test_a_given_encoding_is_used_and_checked(read, write):
    """D4: both when it fits and when not."""
    path = write("poem.txt", POEM.encode("big5", errors="ignore"))
    assert only(read(path, encoding="big5")) == POEM.encode("big5", errors="ignore").decode("big5")
    with pytest.raises(DataError, match=r"poem\.txt, line 1: byte 0 \(0xa7\) does not fit utf-8 as given"):
        read(path, encoding="utf-8")
    with pytest.raises(SettingsError, match="Did you mean gbk"):
        read(path, encoding="gkb")
    with pytest.raises(SettingsError, match="rot13"):
        read(path, encoding="rot13")


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16-le"])
def test_the_place_of_a_fault_is_right_in_any_chunk(read, write, monkeypatch, encoding):
    """D4: also when the fault is far into the file, behind characters cut in two by a chunk."""
    monkeypatch.setattr(encodings, "CHUNK", 7)
    good = (POEM * 3).encode(encoding)
    bad = {"utf-8": b"\xff", "gb18030": b"\xff\xff", "utf-16-le": b"\x00\xdc"}[encoding]
    path = write("a.txt", good + bad + good)
    with pytest.raises(DataError, match=f"line 7: byte {len(good)} "):
        read(path, encoding=encoding)


def test_a_mark_does_not_excuse_bytes_that_do_not_fit(read, write):
    """D4: the advice is not to take back a flag that was never given."""
    with pytest.raises(DataError, match=r"line 2: byte 7 \(0xff\) does not fit utf-8\nRepair the file"):
        read(write("a.txt", codecs.BOM_UTF8 + b"abc\n\xff"))


def test_binary_content_is_refused_when_named(read, write):
    """D4: it is not text in some encoding."""
    with pytest.raises(DataError, match="line 2: byte 4 is NUL"):
        read(write("a.txt", b"abc\n\x00def"))
    with pytest.raises(DataError, match="line 1001: byte 10000 is NUL"):
        read(write("a.txt", b"some text\n" * 1000 + b"\x00" + b"some text\n" * 1000 + b"!"))
    with pytest.raises(DataError, match="PNG image"):
        read(write("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256))))
    with pytest.raises(DataError, match="office document"):
        read(write("a.docx", b"PK\x03\x04" + bytes(range(256))))
    with pytest.raises(DataError):
        read(write("a.bin", bytes(range(256)) * 9))


def test_crlf_and_lf_are_the_same_text_and_a_mark_is_no_symbol(read, write, monkeypatch):
    r"""D10: BOM, \r\n and \n; a lone \r is a character."""
    monkeypatch.setattr(encodings, "CHUNK", 3)
    text = "one\ntwo\n\nthree\rfour\n"
    unix = read(write("a.txt", text))
    windows = read(write("b.txt", codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode("utf-8")))
    assert only(unix) == only(windows) == text
    assert unix[1].characters == windows[1].characters == len(text)


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_back_as_it_was_written(text):
    text = "." + text.replace("\r\n", "\n")
    for encoding in ("utf-8", "gb18030", "utf-16-le"):
        data = text.encode(encoding)
        opener = lambda data=data: __import__("io").BytesIO(data)  # noqa: E731
        found = encodings.find_encoding("a", opener, encoding)
        assert "".join(encodings.read_text("a", opener, found)) == text


def test_empty_and_whitespace_only_files_are_clear_errors(read, write):
    """D10: both are reported as what they are."""
    for name, content in (("empty.txt", ""), ("blank.txt", " \n\t\n"), ("mark.txt", codecs.BOM_UTF8)):
        with pytest.raises(DataError, match=rf"no text in .*{name} .* bytes\).*empty, or only whitespace"):
            read(write(name, content))


def test_reading_does_not_depend_on_the_encoding_of_the_platform(tmp_path):
    """D5: under an ASCII locale with UTF-8 mode off, Chinese is read, prepared, and written the same."""
    (tmp_path / "poems.txt").write_bytes((POEM * 20).encode("utf-8"))
    code = f"""
import sys
from pathlib import Path
from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data import ReadReport, load_corpus, prepare_corpus, read_documents
from mingyue.data.corpora import get_corpus
from mingyue.data.tang import write_text_atomically
folder = Path({str(tmp_path)!a})
(text,) = [d.text for d in read_documents(DataSettings(sources=[str(folder)]), ReadReport())]
write_text_atomically(folder / "out.txt", text)
prepare_corpus(DataSettings(sources=[str(folder / "poems.txt")]), TokenizerSettings(), folder / "prepared")
tokenizer, corpus, report = load_corpus(folder / "prepared")
assert tokenizer.decode(corpus.train.read().tolist()) == text[:corpus.train_characters]
print(ascii(text[:5]), get_corpus("python-docs", folder=folder / "corpora").stat().st_size > 100000)
"""
    env = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii"}
    env["PYTHONCOERCECLOCALE"] = "0"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert done.stdout.decode("ascii").strip() == f"{POEM[:5]!a} True"
    assert (tmp_path / "out.txt").read_bytes() == (POEM * 20).encode("utf-8")
