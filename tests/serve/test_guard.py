"""Who may ask, in which form, how much at once; and what a server outside of its limits says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import httpx
import pytest

from mingyue.cli.main import main
from mingyue.config import ServeSettings
from mingyue.errors import DataError, SettingsError
from mingyue.serve import Catalog, Server

BODY = {"model": "plain", "prompt": "明月", "max_tokens": 2, "seed": 1}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def locked(serving):
    """A server with a key, one more name, one allowed origin, and small limits."""
    limits = {"max_body_bytes": 2000, "max_tokens": 500, "max_texts": 4}
    with serving(
        "plain",
        "zh-en",
        api_key="secret",
        allowed_host=("models.example.org",),
        cors_origin=("https://page.example",),
        **limits,
    ) as found:
        yield found


@pytest.fixture
def get(locked):
    def send(path, headers=None, method="GET", **given):
        headers = {"Authorization": "Bearer secret", **(headers or {})}
        headers = {name: value for name, value in headers.items() if value is not None}
        return httpx.request(method, locked.url + path, headers=headers, timeout=30, **given)

    return send


def code_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", PATH),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing"),
        ("POST", "/api/score"),
    ],
)
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "Basic secret", "secret", "Bearer sécret"])
def test_without_the_key_nothing_is_answered(get, method, path, given):
    answer = get(path, {"Authorization": given.encode() if given else None}, method)
    assert code_of(answer) == (401, "invalid_api_key") and answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_needs_no_key(get):
    assert get("/health", {"Authorization": None}).json() == {"status": "ok"}
    assert get("/v1/models").status_code == 200
    answer = get("/health", {"Authorization": None}, "HEAD")
    assert answer.status_code == 200 and answer.content == b""


def test_translation_takes_the_key_of_its_form_too(get):
    body = {"q": "明月", "source": "zh", "target": "en"}
    without = {"Authorization": None}
    assert code_of(get("/translate", without, "POST", json=body)) == (401, "invalid_api_key")
    assert code_of(get("/translate", without, "POST", json={**body, "api_key": "wrong"})) == (401, "invalid_api_key")
    for given in ({"json": {**body, "api_key": "secret"}}, {"data": {**body, "api_key": "secret"}}):
        assert get("/translate", without, "POST", **given).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "", "localhost.evil.example", "[::1", "192.168.0.1"]
)
def test_a_name_that_was_not_given_is_refused(get, host):
    """A page can point its own name at this machine after it was loaded (DNS rebinding)."""
    assert code_of(get("/health", {"Host": host})) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "[::1]:9", "models.example.org", "LOCALHOST", "a.localhost"]
)
def test_names_of_this_machine_and_given_ones_are_known(get, host):
    assert get("/health", {"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "https://page.example.evil", "file://"]
)
def test_other_pages_may_not_ask(get, origin):
    answer = get(PATH, {"Origin": origin}, "POST", json=BODY)
    assert code_of(answer) == (403, "origin_not_allowed") and "access-control-allow-origin" not in answer.headers


def test_own_pages_and_allowed_ones_may_ask(get, locked):
    own = get(PATH, {"Origin": locked.url}, "POST", json=BODY)
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    allowed = get(PATH, {"Origin": "https://page.example"}, "POST", json=BODY)
    assert (
        allowed.headers["access-control-allow-origin"] == "https://page.example" and "Origin" in allowed.headers["vary"]
    )
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST", "Authorization": None}
    before = get(PATH, asked, "OPTIONS")
    assert before.status_code == 204 and "Authorization" in before.headers["access-control-allow-headers"]
    assert get(PATH, {**asked, "Origin": "https://evil.example"}, "OPTIONS").status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_cannot_even_read_blindly(get, site):
    assert code_of(get("/v1/models", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})) == (
        403,
        "origin_not_allowed",
    )
    assert get("/v1/models", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_only_json_is_read(get, kind):
    """What a page can send without being asked for its origin first is not taken."""
    answer = get(PATH, {"Content-Type": kind}, "POST", content=json.dumps(BODY))
    assert code_of(answer) == (415, "unsupported_media_type")


def test_the_size_of_a_body_is_limited(get):
    large = {**BODY, "prompt": "a" * 3000}
    assert code_of(get(PATH, None, "POST", json=large)) == (413, "request_too_large")
    pieces = (json.dumps(large)[at : at + 500].encode() for at in range(0, 3000, 500))
    answer = get(PATH, {"Content-Type": "application/json"}, "POST", content=pieces)
    assert code_of(answer) == (413, "request_too_large")


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "5", "null", '"x"', '{"prompt": NaN}', "[" * 900 + "]" * 900, "\ufeff{}", b"\xff\xfe"]
)
def test_a_body_that_is_no_request_is_refused(get, body):
    answer = get(PATH, {"Content-Type": "application/json"}, "POST", content=body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_other_addresses_and_methods(get):
    plain = {"Content-Type": "text/plain"}
    assert code_of(get("/v1/nothing", plain, "POST", content="x")) == (404, "not_found")
    assert code_of(get("/v1/models", plain, "POST", content="x")) == (405, "method_not_allowed")
    assert code_of(get("/v1/nothing")) == (404, "not_found")
    assert code_of(get("/v1/models/nothing")) == (404, "model_not_found")
    assert code_of(get("/v1/models/..%2Fplain")) == (404, "not_found")
    answer = get(PATH, None, "GET")
    assert code_of(answer) == (405, "method_not_allowed") and answer.headers["allow"] == "POST"
    assert get("/docs").status_code == 404 and get("/v1/models/").status_code == 404


def test_limits_of_this_server_are_named(get):
    over = get(PATH, None, "POST", json={**BODY, "max_tokens": 501, "sliding": True})
    assert code_of(over) == (400, "too_many_tokens") and "500" in over.json()["error"]["message"]
    assert code_of(get(PATH, None, "POST", json={**BODY, "n": 5})) == (400, "too_many_texts")
    assert code_of(get(PATH, None, "POST", json={**BODY, "prompt": ["a", "b", "c"], "n": 2})) == (400, "too_many_texts")


def test_no_answer_names_the_software_or_can_be_sniffed(get):
    headers = get("/v1/models").headers
    assert "server" not in headers and headers["x-content-type-options"] == "nosniff"


def long_request(url: str, stream: bool = True) -> socket.socket:
    """A connection that has asked for a long text, and reads nothing."""
    body = json.dumps({**BODY, "max_tokens": 4000, "sliding": True, "ignore_eos": True, "stream": stream}).encode()
    host, port = url.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)), timeout=20)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    found.sendall(head.encode() + body)
    return found


def test_more_requests_than_the_limit_are_asked_to_come_again(serving):
    with serving("plain", max_requests=2) as server, long_request(server.url) as one, long_request(server.url) as two:
        assert one.recv(20).startswith(b"HTTP/1.1 200") and two.recv(20).startswith(b"HTTP/1.1 200")
        answer = httpx.post(server.url + PATH, json=BODY, timeout=20)
        assert code_of(answer) == (429, "rate_limit_exceeded") and int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert httpx.get(server.url + "/health").status_code == 200


def within(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_full_queue_asks_to_come_again_and_keeps_no_part_of_a_request(serving, server):
    service = next(server.backend.catalog.generators()).service
    with long_request(server.url) as one:
        assert one.recv(20).startswith(b"HTTP/1.1 200")
        row = service.cache_bytes_used
    with serving("plain", cache_gib=1.5 * row / 2**30, max_waiting=2) as small:  # one row, and a queue of two
        service = next(small.backend.catalog.generators()).service
        with long_request(small.url) as one:
            assert one.recv(20).startswith(b"HTTP/1.1 200") and service.running == 1
            answer = httpx.post(small.url + PATH, json={**BODY, "n": 50}, timeout=20)
            assert code_of(answer) == (429, "rate_limit_exceeded") and "retry-after" in answer.headers
            assert within(lambda: service.waiting == 0) and service.running == 1


def test_connections_that_ask_nothing_are_closed(serving, monkeypatch):
    monkeypatch.setattr("mingyue.serve.server._FIRST_SECONDS", 0.2)
    monkeypatch.setattr("mingyue.serve.server._SPARE_CONNECTIONS", 1)
    with serving("plain", max_requests=1) as server:
        port = int(server.url.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(5)]
        idle[0].sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        for one in idle:
            with one, contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        assert httpx.get(server.url + "/health").status_code == 200


def test_an_empty_key_is_refused():
    with pytest.raises(SettingsError, match="api_key"):
        ServeSettings.read({"api_key": ""}, source="the command line")


def test_a_folder_without_results_is_refused_at_the_start(tmp_path):
    with pytest.raises(DataError, match="no results"):
        Server(Catalog({}), ServeSettings(port=0, claims=str(tmp_path)))


def test_two_folders_of_one_name_are_refused(folders, tmp_path):
    twin = tmp_path / "plain"
    twin.symlink_to(folders["plain"])
    settings = ServeSettings(port=0)
    with pytest.raises(SettingsError, match="two models"):
        Catalog.open([folders["plain"], folders["plain"]], settings)


def test_a_port_in_use_is_reported(folders):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        catalog = Catalog({})
        with pytest.raises(SettingsError, match=f"port {port}"):
            Server(catalog, ServeSettings(port=port))


def test_an_address_of_another_machine_is_not_taken_for_a_port_in_use(folders):
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1") as caught:
        Server(Catalog({}), ServeSettings(host="192.0.2.1", port=0))
    assert "--host" in caught.value.advice and "--port" not in caught.value.advice


def test_what_does_not_fit_the_context_is_named(server):
    def asked(path=PATH, **body):
        answer = httpx.post(server.url + path, json=body, timeout=20)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        return error["param"], error["message"]

    assert asked(prompt="明", max_tokens=64) == (
        "max_tokens",
        "This model's maximum context length is 64 tokens. Tokens of the prompt: 1, to be generated: 64. "
        "With `sliding: true` generation continues beyond the context.",
    )
    assert asked(prompt="明" * 70, max_tokens=64)[0] == asked(prompt="明" * 70)[0] == "prompt"
    chat = {"path": CHAT, "model": "talks"}
    assert asked(**chat, messages=[USER], max_completion_tokens=64)[0] == "max_completion_tokens"
    assert asked(**chat, messages=[{**USER, "content": "明" * 70}])[0] == "messages"


def test_the_help_lists_the_choices_of_every_option(capsys):
    assert main(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "torch or onnxruntime" in text and "fp32, int8" in text


def test_a_listening_server_is_reached_from_this_machine_only(server):
    host, _, port = server.url.removeprefix("http://").partition(":")
    assert host == "127.0.0.1"
    others = {one[4][0] for one in socket.getaddrinfo(socket.gethostname(), int(port), socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        if not other.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((other, int(port)), timeout=2).close()


def test_threads_end_with_the_server(serving):
    before = threading.active_count()
    with serving("plain") as server:
        httpx.post(server.url + PATH, json=BODY, timeout=20)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "明月"}


@pytest.mark.parametrize(
    ("path", "field", "value", "message"),
    [
        (PATH, "prompt", [1, 2, "x"], "a list of texts, a list of ids"),
        (PATH, "prompt", [], "no list is empty"),
        (PATH, "prompt", {}, "it is a text"),
        (PATH, "stop", "", "it is a text of 1 to 1,000 characters, or a list of at most 64 of them"),
        (PATH, "stop", ["a"] * 65, "at most 64"),
        (PATH, "stop", [""], "at most 64"),
        (PATH, "suffix", "x", "this server does not do it"),
        (PATH, "prompt_logprobs", 1, "this server does not do it"),
        (CHAT, "store", True, "this server does not do it"),
        (CHAT, "tools", [{}], "this server does not do it"),
        (CHAT, "tool_choice", "required", "this server does not do it"),
        (CHAT, "response_format", {"type": "json_object"}, "text only"),
        (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url"}]}], "`content` is a text"),
        (CHAT, "messages", [], "at least 1"),
        ("/v1/embeddings", "input", ["a", ""], "none of them is empty"),
        ("/translate", "q", [], "not empty"),
        ("/translate", "format", "html", "no HTML"),
        (PATH, "model", "", "at least 1"),
        (PATH, "logit_bias", {"x": 1}, ""),
        (PATH, "logit_bias", [], ""),
    ],
)
def test_a_wrong_value_is_explained_in_both_languages(server, path, field, value, message):
    needed = {PATH: {"prompt": "明月"}, CHAT: {"messages": [USER], "model": "talks"}}
    needed["/translate"] = {"q": "明月", "source": "zh", "target": "en"}
    body = {**needed.get(path, {}), field: value}
    english, chinese = (
        httpx.post(server.url + path, json=body, headers={"Accept-Language": one}, timeout=20) for one in ("en", "zh")
    )
    found, other = english.json()["error"], chinese.json()["error"]
    assert english.status_code == 400 and found["param"] == other["param"] == field and message in found["message"]
    assert found["code"] == "invalid_value" and " / " not in found["message"]
    assert "should" not in other["message"] and any("\u4e00" <= one <= "\u9fff" for one in other["message"])


@pytest.mark.parametrize("body", ["[]", "5", "null", '"x"'])
@pytest.mark.parametrize("path", [PATH, "/translate"])
def test_a_body_that_is_no_object_is_said_to_be_none(server, path, body):
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(server.url + path, content=body, headers=headers, timeout=20).json()["error"]
    assert answer["message"] == "the body must be a JSON object" and answer["code"] == "invalid_body"


@pytest.mark.parametrize("path", [PATH, "/translate"])
def test_what_is_no_json_is_placed_without_english_in_chinese(server, path):
    headers = {"Content-Type": "application/json"}
    given = [{**headers, "Accept-Language": one} for one in ("en", "zh")]
    english, chinese = (
        httpx.post(server.url + path, content='{"prompt": x}', headers=one, timeout=20).json()["error"]["message"]
        for one in given
    )
    assert english.startswith("the body is not JSON: ") and ("(character 12)" in english or "column 12" in english)
    assert chinese.startswith("请求体不是 JSON") and "xpect" not in chinese
