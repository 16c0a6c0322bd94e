"""Readers that go away, stall or lag, and what becomes of a request when the server is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from mingyue.config import ServeSettings
from mingyue.serve import Catalog
from mingyue.serve.backend import Backend, ClientGoneError
from mingyue.serve.errors import ApiError
from mingyue.serve.mailbox import Channel, Mailbox

PATH = "/v1/completions"
LONG = {"model": "plain", "prompt": "明月", "max_tokens": 4000, "sliding": True, "ignore_eos": True, "seed": 1}


@pytest.fixture
def alone(serving):
    with serving("plain", stall_seconds=0.5) as found:
        yield found


def connect(url: str, **body) -> socket.socket:
    """A connection that has sent a request."""
    found = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
    send(found, body)
    return found


def send(connection: socket.socket, body) -> None:
    content = json.dumps({**LONG, **body}).encode()
    lines = (
        f"POST {PATH} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    )
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)


def service_of(server):
    return next(server.backend.catalog.generators()).service


def wait(condition, seconds: float = 5.0) -> float:
    """How long it takes until the condition holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never came"
        time.sleep(0.005)
    return time.monotonic() - began


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 8])
def test_a_client_that_goes_away_frees_its_rows_within_a_second(alone, stream, n):
    """Complaint of other servers: generation goes on after the client left, most of all where nothing is streamed."""
    service = service_of(alone)
    with connect(alone.url, stream=stream, n=n):
        wait(lambda: service.running == n)
    assert wait(lambda: service.running == service.waiting == 0) < 1.0
    assert service.cache_bytes_used == 0 and wait(lambda: alone.backend.in_progress == 0) < 1.0


def test_a_client_that_goes_away_leaves_the_others_alone(alone, folders):
    """Complaint of other servers: one client's leaving ends the text of another."""
    from mingyue import api

    body = {**LONG, "max_tokens": 300, "seed": 5}
    found = {}

    def read() -> None:
        with httpx.stream("POST", alone.url + PATH, json={**body, "stream": True}, timeout=60) as answer:
            lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
        found["text"] = "".join(line["choices"][0]["text"] for line in lines)

    reader = threading.Thread(target=read)
    reader.start()
    for stream in (True, False, True):
        with connect(alone.url, stream=stream, n=3):
            time.sleep(0.05)
    reader.join()
    (expected,) = api.load(folders["plain"], device="cpu", threads=1).generate(
        ["明月"], max_new_tokens=300, seed=5, ignore_eos=True, temperature=1.0
    )
    assert found["text"] == expected.text


def test_a_reader_that_takes_nothing_is_disconnected(alone):
    service, host = service_of(alone), ("127.0.0.1", int(alone.url.rpartition(":")[2]))
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(host)
    send(reader, {"n": 32, "logprobs": 20, "stream": True})
    wait(lambda: service.running > 0)
    wait(lambda: service.running == 0 and alone.backend.in_progress == 0, 20)
    text = httpx.get(alone.url + "/metrics").text
    assert 'mingyue_abandoned_total{reason="stalled"} 1.0' in text
    reader.close()


def test_a_mailbox_keeps_the_order_and_its_limit():
    async def main() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        channel, full = Channel(mailbox, 100_000), Channel(mailbox, 3)

        def send() -> None:
            for number in range(5000):
                channel.receiver(number)(ValueError(str(number)))

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        letters = []
        while len(letters) < 15_000:
            letters += await channel.take()
        for thread in threads:
            thread.join()
        assert sorted(index for index, _ in letters) == sorted([*range(5000)] * 3)
        for number in range(9):
            full.deliver(number, ValueError())
        (only,) = await full.take()
        assert "3 tokens behind" in str(only[1])
        full.deliver(1, ValueError())

    asyncio.run(main())


class Reader:
    """A client that goes away after a moment."""

    async def receive(self):
        await asyncio.sleep(0.05)
        return {"type": "http.disconnect"}


def test_a_call_whose_client_is_gone_ends_and_frees_the_worker():
    ended = threading.Event()

    def endless(progress):
        try:
            while True:
                progress(0, 1)
                time.sleep(0.001)
        finally:
            ended.set()

    async def main() -> None:
        backend = Backend(Catalog({}), ServeSettings(max_calls=2))
        with pytest.raises(ClientGoneError):
            await backend.call(Reader(), endless)
        assert await asyncio.to_thread(ended.wait, 5)
        for _ in range(3):  # the worker is free, and so is the queue
            with contextlib.suppress(ClientGoneError):
                assert await backend.call(Reader(), lambda _: 5) == 5
        slow = [asyncio.ensure_future(backend.call(Reader(), lambda _: time.sleep(0.2))) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(ApiError, match="2 calls wait"):
            await backend.call(Reader(), lambda _: 5)
        await asyncio.gather(*slow, return_exceptions=True)
        backend.close(0.0)

    asyncio.run(main())


@pytest.fixture
def process(folders):
    """`mingyue serve` as a process of its own: (process, address)."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "mingyue", "serve", str(folders["plain"]), "--port", "0", "--threads", "1"]
        found = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "LC_ALL": "C"},
        )
        started.append(found)
        line = found.stdout.readline()
        assert line.startswith("Serving plain at http://127.0.0.1:"), found.stderr.read()
        return found, line.split()[3].rstrip(".")

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_sigterm_completes_what_was_admitted_and_refuses_the_rest(process):
    server, url = process()
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        body = {**LONG, "max_tokens": 1500, "seed": number, "stream": number % 2 == 0}
        answer = httpx.post(url + PATH, json=body, timeout=60)
        whole = "[DONE]" in answer.text if number % 2 == 0 else answer.json()["choices"][0]["finish_reason"] == "length"
        answers[number] = answer.status_code if whole else 0

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    wait(lambda: "requests_in_progress 7.0" in httpx.get(url + "/metrics").text, 20)  # this one counts too
    server.send_signal(signal.SIGTERM)
    wait(lambda: httpx.get(url + "/health").status_code == 503)
    assert httpx.get(url + "/health").json() == {"status": "draining"}
    late = httpx.post(url + PATH, json=LONG)
    assert (
        late.status_code == 503
        and int(late.headers["retry-after"]) > 0
        and late.json()["error"]["code"] == "unavailable"
    )
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(6), 200)
    assert server.wait(20) == 0


def test_the_time_to_drain_ends(process):
    server, url = process("--drain-seconds", "0.3", "--max-tokens", "1000000")
    with connect(url, max_tokens=1_000_000, stream=True) as reader:
        assert reader.recv(15).startswith(b"HTTP/1.1 200")
        server.send_signal(signal.SIGINT)
        rest = b""
        while piece := reader.recv(1 << 16):
            rest += piece
        assert b"the server is stopping" in rest[-400:]  # the reader learns why its text ends
        assert server.wait(20) == 0
        assert "Requests in progress: 1." in server.stderr.read()


STOPPED = {"message": "the server is stopping", "type": "server_error", "param": None, "code": "unavailable"}


@pytest.mark.parametrize("hurried", [False, True])
def test_when_the_time_is_over_every_call_is_told_and_the_process_ends(process, hurried):
    """A score, a body that never came whole, and a stream, at the end of the time or at a second Ctrl-C."""
    server, url = process("--drain-seconds", "60" if hurried else "0.3", "--max-tokens", "1000000")
    answers = []

    def score() -> None:
        answers.append(httpx.post(url + "/api/score", json={"text": "明月光" * 300_000, "stride": 1}, timeout=60))

    head = (
        b"POST /api/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    thread = threading.Thread(target=score)
    with (
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as slow,
        connect(url, max_tokens=1_000_000, stream=True) as reader,
    ):
        slow.sendall(head)
        thread.start()
        wait(lambda: "requests_in_progress 4.0" in httpx.get(url + "/metrics").text, 20)
        began = time.monotonic()
        server.send_signal(signal.SIGINT)
        if hurried:
            time.sleep(0.3)
            server.send_signal(signal.SIGINT)
        rest = b""
        while piece := reader.recv(1 << 16):
            rest += piece
        assert b'data: {"error":' in rest[-400:] and b"the server is stopping" in rest[-400:]
        partly = slow.recv(1 << 16)
        assert partly.startswith(b"HTTP/1.1 503") and b'"code":"unavailable"' in partly
    thread.join()
    assert [(one.status_code, one.json()["error"]) for one in answers] == [(503, STOPPED)]
    assert int(answers[0].headers["retry-after"]) > 0
    assert server.wait(20) == 0 and time.monotonic() - began < 5
    assert "Traceback" not in server.stderr.read()


def test_a_computation_that_cannot_be_stopped_does_not_hold_the_server():
    async def main() -> None:
        backend, free = Backend(Catalog({}), ServeSettings()), threading.Event()
        call = asyncio.ensure_future(backend.call(Reader(), lambda _: free.wait(20)))
        with pytest.raises(ClientGoneError):
            await call
        assert not backend.is_idle_within(0.05)
        free.set()
        assert backend.is_idle_within(5)
        backend.close(0.0)

    asyncio.run(main())


def test_a_score_whose_client_is_gone_lets_other_calls_through(serving):
    with serving("plain") as server:
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(server.url + "/api/score", json={"text": "明月光" * 300_000, "stride": 1}, timeout=1.5)
        began = time.monotonic()
        assert httpx.post(server.url + "/api/score", json={"text": "明月"}, timeout=30).status_code == 200
        assert time.monotonic() - began < 5


def test_an_empty_key_in_the_environment_is_refused_as_an_empty_option_is(folders):
    command = [sys.executable, "-m", "mingyue", "serve", str(folders["plain"]), "--port", "0"]
    given = [([], {"MINGYUE_API_KEY": ""}, "MINGYUE_API_KEY is set, but empty"), (["--api-key", ""], {}, "api-key")]
    for options, environment, message in given:
        found = subprocess.run(
            [*command, *options],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "LC_ALL": "C", **environment},
            timeout=60,
            check=False,
        )
        assert found.returncode == 2 and message in found.stderr and "Serving" not in found.stdout


SLEEPER = """
import sys, time
from mingyue import api
from mingyue.cli.main import main
api.Model.score = lambda *_, **given: time.sleep(60)
sys.exit(main(["serve", *sys.argv[1:]]))
"""


def test_a_call_that_cannot_be_stopped_does_not_hold_the_process(folders):
    command = [sys.executable, "-c", SLEEPER, str(folders["plain"]), "--port", "0", "--drain-seconds", "0.2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    with subprocess.Popen(command, **pipes, env={**os.environ, "LC_ALL": "C"}) as server:
        try:
            url = server.stdout.readline().split()[3].rstrip(".")
            answers = []
            thread = threading.Thread(
                target=lambda: answers.append(httpx.post(url + "/api/score", json={"text": "明"}, timeout=30))
            )
            thread.start()
            wait(lambda: "requests_in_progress 2.0" in httpx.get(url + "/metrics").text, 20)
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            thread.join()
            assert answers[0].status_code == 503 and answers[0].json()["error"] == STOPPED
            assert server.wait(20) == 0 and time.monotonic() - began < 5
            assert "Traceback" not in server.stderr.read()
        finally:
            server.kill()
