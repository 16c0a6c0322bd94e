"""Fetching: checked, resumed, renamed only when whole; from a folder or an address, here 127.0.0.1."""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mingyue.data import fetch
from mingyue.errors import DataError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a.bin": CONTENT}
        self.ranges = []
        self.break_after = []
        self.ignore_range = False

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and not self.server.ignore_range else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = self.server.break_after.pop(0) if self.server.break_after else len(content)
        self.wfile.write(content[start:stop])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "_PAUSE", 0.0)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "a.bin"


def get(place, target, progress=None):
    return fetch.fetch_file(str(place), target, fetch.sha256_check(SHA256), progress)


def test_a_file_comes_from_an_address(server, target):
    seen = []
    assert get(f"{server.address}/a.bin", target, lambda *step: seen.append(step)) == target
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("fetching", len(CONTENT), len(CONTENT))
    assert [path.name for path in target.parent.iterdir()] == ["a.bin"]


def test_a_file_comes_from_a_folder(tmp_path, target):
    (tmp_path / "mirror.bin").write_bytes(CONTENT)
    assert get(tmp_path / "mirror.bin", target).read_bytes() == CONTENT


def test_a_broken_transfer_goes_on_from_where_it_was(server, target):
    server.break_after = [300_000, 700_000]
    get(f"{server.address}/a.bin", target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=700000-"]


def test_what_an_earlier_call_brought_is_kept_for_the_next(server, target):
    server.break_after = [1000, 2000, 3000]
    with pytest.raises(DataError, match=r"cannot be fetched(.|\n)*continues from there"):
        get(f"{server.address}/a.bin", target)
    assert not target.exists()
    assert (target.parent / ".a.bin.mingyue-part").read_bytes() == CONTENT[:3000]
    get(f"{server.address}/a.bin", target)
    assert target.read_bytes() == CONTENT and server.ranges[-1] == "bytes=3000-"


def test_a_server_that_knows_no_ranges_sends_the_whole_again(server, target):
    server.ignore_range = True
    target.parent.mkdir()
    (target.parent / ".a.bin.mingyue-part").write_bytes(b"other" * 10)
    assert get(f"{server.address}/a.bin", target).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [CONTENT, b"x" * 5000, b"x" * len(CONTENT), CONTENT + b"more"])
def test_whatever_an_older_part_holds_the_file_is_right(server, target, left):
    target.parent.mkdir()
    (target.parent / ".a.bin.mingyue-part").write_bytes(left)
    assert get(f"{server.address}/a.bin", target).read_bytes() == CONTENT


def test_a_corrupted_file_is_refused_with_both_checksums(server, target, tmp_path):
    bad = CONTENT[:-1] + b"\x00"
    server.files["/a.bin"] = bad
    (tmp_path / "a.bin").write_bytes(bad)
    for place in (f"{server.address}/a.bin", tmp_path / "a.bin"):
        with pytest.raises(DataError) as error:
            get(place, target)
        assert SHA256 in str(error.value) and hashlib.sha256(bad).hexdigest() in str(error.value)
        assert not list(target.parent.iterdir())


def test_a_file_that_is_not_there_is_reported(server, target, tmp_path):
    with pytest.raises(DataError, match=r"no such file \(404\)"):
        get(f"{server.address}/b.bin", target)
    with pytest.raises(DataError, match="there is no file"):
        get(tmp_path / "none.bin", target)


def test_no_network_is_reported_with_what_to_do(target, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "_PAUSE", 0.0)
    with pytest.raises(DataError, match="MINGYUE_DATA_MIRROR"):
        get("http://127.0.0.1:9/a.bin", target)


def test_a_packed_file_is_checked_by_its_content(tmp_path):
    for level in (1, 9):
        path = tmp_path / f"{level}.gz"
        path.write_bytes(gzip.compress(CONTENT, level))
        assert fetch.sha256_check(SHA256, unpack=True)(path) is None
    path.write_bytes(path.read_bytes()[:-20])
    assert "damaged" in fetch.sha256_check(SHA256, unpack=True)(path)


@pytest.mark.parametrize(
    ("platform", "variables", "end"),
    [
        ("linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/mingyue/data"),
        ("linux", {}, "/home/li/.cache/mingyue/data"),
        ("darwin", {}, "/home/li/Library/Caches/mingyue/data"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/mingyue/data"),
        ("linux", {"MINGYUE_DATA": "/mine"}, "/mine"),
    ],
)
def test_the_folder_of_corpora_is_that_of_the_platform(monkeypatch, platform, variables, end):
    for name in ("MINGYUE_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(fetch.Path, "home", classmethod(lambda cls: cls("/home/li")))
    assert fetch.data_folder().as_posix() == end
