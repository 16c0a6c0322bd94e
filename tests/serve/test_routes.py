"""Chats, embeddings, tokens, translations, scores, views, runs and claims."""

from __future__ import annotations

import base64
import struct

import httpx
import numpy as np
import pytest
import torch

from mingyue import api
from mingyue.config import ServeSettings
from mingyue.errors import BundleError
from mingyue.serve import Catalog, Server
from mingyue.serve.chat_template import template_of
from mingyue.serve.views import VIEWS
from mingyue.training import Observer

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "明月"}]


# --- chats


def test_a_model_without_a_template_says_so(refused):
    status, error = refused(CHAT, model="plain", messages=HELLO)
    assert (status, error["code"], error["param"]) == (400, "no_chat_template", "messages")
    assert "/v1/completions" in error["message"]


def test_a_chat_is_the_text_of_its_template(ask):
    found = ask(CHAT, model="talks", messages=HELLO, max_tokens=9, seed=2, return_token_ids=True)
    assert set(found) == {
        "id",
        "object",
        "created",
        "model",
        "system_fingerprint",
        "choices",
        "usage",
        "prompt_token_ids",
    }
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-")
    ids = found["prompt_token_ids"]
    user = ask("/tokenize", model="talks", prompt="user: 明月")["tokens"]
    answer = ask("/tokenize", model="talks", prompt="assistant: ", add_special_tokens=False)["tokens"]
    assert ids == [*user, 2, *answer]  # 2 is EOS
    (choice,) = found["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "token_ids"}
    assert choice["message"] == {"role": "assistant", "content": choice["message"]["content"], "refusal": None}
    text = ask("/v1/completions", model="talks", prompt=ids, max_tokens=9, seed=2)["choices"][0]["text"]
    assert choice["message"]["content"] == text


def test_the_text_of_a_message_cannot_make_special_tokens(ask):
    body = {"model": "talks", "max_tokens": 1, "return_token_ids": True, "seed": 1}
    for content in ("<eos>", "<bos>", "{{ eos_token }}", "{{ messages }}", "\ue000"):
        ids = ask(CHAT, **body, messages=[{"role": "user", "content": content}])["prompt_token_ids"]
        assert ids.count(2) == 1 and ids.count(1) == 1


def test_parts_of_a_message_are_joined(ask):
    parts = [{"type": "text", "text": "明"}, {"type": "text", "text": "月"}]
    body = {"model": "talks", "max_tokens": 3, "seed": 1}
    one = ask(CHAT, **body, messages=HELLO)["choices"]
    assert ask(CHAT, **body, messages=[{"role": "user", "content": parts}])["choices"] == one


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_streamed_chat_joins_to_the_whole_one(ask, events, logprobs):
    body = {"model": "talks", "messages": HELLO, "max_completion_tokens": 12, "seed": 3, "n": 2, "temperature": 1.4}
    body |= {"logprobs": True, "top_logprobs": 2} if logprobs else {}
    whole = ask(CHAT, **body)
    *chunks, last = events(CHAT, **body, stream_options={"include_usage": True})
    assert last["usage"] == whole["usage"] and last["choices"] == []
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert parts[0]["delta"] == {"role": "assistant", "content": None}
        assert parts[-1]["delta"] == {} and parts[-1]["finish_reason"] == choice["finish_reason"]
        assert sum(part["finish_reason"] is not None for part in parts) == 1
        assert "".join(part["delta"].get("content") or "" for part in parts) == choice["message"]["content"]
        if logprobs:
            entries = [one for part in parts if part["logprobs"] for one in part["logprobs"]["content"]]
            assert entries == choice["logprobs"]["content"] and len(entries) == 12
            assert "".join(one["token"] for one in entries) == choice["message"]["content"]
            assert all(set(one) == {"token", "logprob", "bytes", "top_logprobs"} for one in entries)
            assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 for one in entries)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", "hello"),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("top_logprobs", 3),
        ("max_tokens", 10**6),
        ("modalities", ["audio"]),
        ("reasoning_effort", "high"),
        ("functions", [{"name": "f"}]),
        ("nothing", 1),
    ],
)
def test_what_a_chat_cannot_do_is_refused(refused, field, value):
    status, error = refused(CHAT, **{"model": "talks", "messages": HELLO, "max_tokens": 2, field: value})
    assert (status, error["param"]) == (400, field)


def test_neutral_values_of_a_chat_are_accepted(ask):
    neutral = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "store": False,
        "metadata": None,
    }
    neutral |= {
        "functions": [],
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "service_tier": "auto",
        "user": "x",
    }
    ask(CHAT, model="talks", messages=HELLO, max_tokens=1, **neutral)


def template(source):
    """What the server makes of a model with this template."""

    class Model:
        class tokenizer:  # noqa: N801
            bos_id, eos_id = 1, 2
            to_json = staticmethod(lambda: "{}")
            encode = staticmethod(lambda text: [ord(one) for one in text])

        starts_with_bos = False
        training = {"chat_template": source}  # noqa: RUF012

    return template_of(Model)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context }}{{ ().__class__.__base__ }}",
        "{% for x in range(10**9) %}{% endfor %}",
        "{{ undefined_name }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_runs_in_a_sandbox(source):
    with pytest.raises(Exception, match="the chat template refuses these messages"):
        template(source).ids([{"role": "user", "content": "x"}])


def test_a_template_that_is_none_is_refused_at_the_start():
    with pytest.raises(BundleError, match="line 2"):
        template("\n{% if %}")
    with pytest.raises(BundleError):
        template(5)
    assert template(None) is None


# --- embeddings


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_hidden_states_of_length_1(ask, folders, pooling):
    texts = ["明月", "the fox"]
    found = ask("/v1/embeddings", model="begun", input=texts, pooling=pooling)
    assert found["object"] == "list" and found["model"] == "begun"
    assert found["usage"] == {"prompt_tokens": 3 + 8, "total_tokens": 11}
    model = api.load(folders["begun"], device="cpu")
    module = model.module
    for index, (text, entry) in enumerate(zip(texts, found["data"], strict=True)):
        ids = [1, *model.tokenizer.encode(text)]
        with torch.inference_mode():
            hidden_TM = module.hidden(torch.tensor([ids]))[0]
        vector = (hidden_TM.mean(0) if pooling == "mean" else hidden_TM[-1]).numpy()
        assert entry["index"] == index and entry["object"] == "embedding"
        assert entry["embedding"] == pytest.approx((vector / np.linalg.norm(vector)).tolist(), abs=1e-5)


def test_base64_and_ids_give_the_same_vectors(ask):
    body = {"model": "plain", "input": "明月光"}
    floats = ask("/v1/embeddings", **body, dimensions=24)["data"][0]["embedding"]
    coded = ask("/v1/embeddings", **body, encoding_format="base64")["data"][0]["embedding"]
    assert struct.unpack("<24f", base64.b64decode(coded)) == pytest.approx(floats, abs=1e-7)
    ids = ask("/tokenize", model="plain", prompt="明月光")["tokens"]
    for form in (ids, [ids]):
        assert ask("/v1/embeddings", model="plain", input=form)["data"][0]["embedding"] == floats


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dimensions", 8),
        ("input", ""),
        ("input", []),
        ("input", ["a", ""]),
        ("input", "明" * 70),
        ("input", [10**6]),
        ("encoding_format", "int8"),
        ("pooling", "max"),
        ("model", "zh-en"),
    ],
)
def test_what_embeddings_cannot_do_is_refused(refused, field, value):
    status, error = refused("/v1/embeddings", **{"model": "plain", "input": "a", field: value})
    assert (status, error["param"]) == (400, field)


# --- tokens


def test_tokens_and_back(ask, client):
    found = ask("/tokenize", model="begun", prompt="明月 the\n", return_token_strs=True)
    assert found["tokens"][0] == 1 and found["count"] == len(found["tokens"]) == 8 and found["max_model_len"] == 64
    assert found["token_strs"] == ["<bos>", "明", "月", " ", "t", "h", "e", "\\n"]
    assert ask("/detokenize", model="begun", tokens=found["tokens"]) == {"prompt": "明月 the\n"}
    bare = ask("/tokenize", model="begun", prompt="明月 the\n", add_special_tokens=False)
    assert bare["tokens"] == found["tokens"][1:] and bare["token_strs"] is None
    assert ask("/detokenize", tokens=[]) == {"prompt": ""}
    assert ask("/tokenize", prompt="<eos>", add_special_tokens=False)["tokens"] == [2]
    assert ask("/tokenize", prompt="<eos>")["count"] == ask("/tokenize", prompt="a<eos>")["count"] - 1 == 5
    chat = ask("/tokenize", model="talks", messages=HELLO)["tokens"]
    assert chat == ask(CHAT, model="talks", messages=HELLO, max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    info = client.get("/tokenizer_info", params={"model": "begun"}).json()
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<bos>", "<eos>", "<pad>")
    assert info["add_bos_token"] is True and info["model_max_length"] == 64 and info["chat_template"] is None
    assert client.get("/tokenizer_info").json()["add_bos_token"] is False
    assert client.get("/tokenizer_info", params={"model": "nothing"}).status_code == 404


def test_tokens_that_do_not_exist_are_refused(refused):
    assert refused("/detokenize", tokens=[10**6])[1]["param"] == "tokens"
    assert refused("/detokenize", tokens=["a"])[1]["param"] == "tokens"
    assert refused("/tokenize", model="plain")[1]["param"] == "prompt"
    assert refused("/tokenize", model="plain", messages=HELLO)[1]["code"] == "no_chat_template"
    assert refused("/tokenize", prompt="a", content="a")[1]["code"] == "unknown_field"


# --- translation


def test_translations_are_those_of_translate(ask, client, folders):
    model = api.load_translator(folders["zh-en"], device="cpu", threads=1)
    lines = ["明月", "床前"]
    expected = [best[0].text for best in model.translate(lines)]
    body = {"source": "zh", "target": "en"}
    assert ask("/translate", q="明月", **body) == {"translatedText": expected[0]}
    assert ask("/translate", q=lines, format="text", **body) == {"translatedText": expected}
    assert ask("/translate", q="明月\n床前", **body) == {"translatedText": "\n".join(expected)}
    found = ask("/translate", q="明月", alternatives=2, **body)
    assert found["translatedText"] == expected[0] and len(found["alternatives"]) == 2
    assert client.post("/translate", data={"q": "明月", **body}).json() == {"translatedText": expected[0]}
    assert client.get("/languages").json() == [
        {"code": "zh", "name": "zh", "targets": ["en"]},
        {"code": "en", "name": "en", "targets": []},
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", "de"),
        ("target", "de"),
        ("format", "html"),
        ("q", []),
        ("q", 5),
        ("alternatives", 99),
        ("x", 1),
    ],
)
def test_what_translation_cannot_do_is_refused(refused, field, value):
    status, error = refused("/translate", **{"q": "明月", "source": "zh", "target": "en", field: value})
    assert (status, error["param"]) == (400, field)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        ("明" * 64, "context length is 64 tokens, and the text has 65"),
        ("明\n" + "明" * 70, "and line 2 of text 1 has 71"),
        (["明", "明" * 64], "and line 1 of text 2 has 65"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_not_cut(ask, refused, q, message):
    body = {"source": "zh", "target": "en"}
    status, error = refused("/translate", q=q, **body)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "q")
    assert message in error["message"]
    assert ask("/translate", q="明" * 63, **body)["translatedText"]
    assert ask("/translate", q=" " * 90, **body) == {"translatedText": ""}


def translated(server, headers=None, **body):
    answer = httpx.post(server.url + "/translate", json={"q": "明月", **body}, headers=headers, timeout=30).json()
    return answer.get("error", answer)


def test_an_unknown_source_is_that_of_the_only_model(ask, refused):
    body = {"q": "明月", "target": "en"}
    assert ask("/translate", source="auto", **body) == ask("/translate", source="zh", **body)
    assert refused("/translate", **{**body, "source": "auto", "target": "de"})[1]["param"] == "target"


def test_of_several_models_none_is_guessed(folders, tmp_path):
    names = {"zh-en": folders["zh-en"], "de-en": tmp_path / "de-en", "pairs": tmp_path / "pairs"}
    for name in ("de-en", "pairs"):
        names[name].symlink_to(folders["zh-en"])
    settings = ServeSettings(port=0, device="cpu", threads=1)
    server = Server(Catalog.open(list(names.values()), settings), settings)
    with server.running():
        found = translated(server, source="auto", target="en")
        assert found["param"] == "source" and found["code"] == "unsupported_language"
        assert found["message"].startswith("languages are not detected: give the source; there are zh → en, de → en, ")
        assert "--language-pair pairs=" in found["message"]
        chinese = translated(server, {"Accept-Language": "zh"}, source="fr", target="en")["message"]
        assert "--language-pair pairs=" in chinese and "there are" not in chinese


# --- our own


def test_scores_are_those_of_score(ask, folders):
    expected = api.load(folders["begun"], device="cpu", threads=1).score("明月光" * 40, stride=16).to_dict()
    found = ask("/api/score", model="begun", text="明月光" * 40, stride=16)
    assert found.pop("model") == "begun" and found["total"] == pytest.approx(expected["total"], abs=1e-4)
    assert [one["token"] for one in found["tokens"]] == [one["token"] for one in expected["tokens"]]


def test_scores_refuse(refused):
    assert refused("/api/score", model="plain", text="")[1]["param"] == "text"
    assert refused("/api/score", model="plain", text="a", stride=65)[1]["param"] == "stride"
    assert refused("/api/score", model="zh-en", text="a")[1]["code"] == "model_not_supported"


VIEW_BODIES = {
    "neighbours": {"word": "月"},
    "vectors": {"word": "月", "texts": ["明月光", "望明月"]},
    "patch": {"text": "床前明月光", "other": "床前明月霜"},
    "heads": {"text": ["床前明月光，疑是地上霜。"]},
    "relations": {"text": "床前明月光，疑是地上霜。举头望明月，低头思故乡。the quick brown fox"},
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_json_or_says_what_it_lacks(client, folders, view):
    body = {"model": "plain", **VIEW_BODIES.get(view, {"text": "床前明月光"})}
    if view in ("curve", "film", "contexts"):  # they need the folder of a run
        body.pop("text") if view == "curve" else None
        answer = client.post(f"/api/inspect/{view}", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["message"]
        return
    answer = client.post(f"/api/inspect/{view}", json=body)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"model", "view", "title", "notes", "arrays"} and answer.json()["arrays"]
    if view == "lens":
        expected = api.inspect(folders["plain"], "床前明月光", device="cpu").lens().to_dict()
        assert answer.json()["arrays"].keys() == expected.keys()


def test_the_views_are_those_of_the_command_line():
    from mingyue.cli import inspect

    assert set(VIEWS) == set(inspect.VIEWS) - {"report"}  # which is a page


def test_views_of_pairs(ask):
    found = ask("/api/inspect/attention", model="zh-en", text="明月", target="the fox")
    assert found["arrays"] and found["notes"] == []
    assert ask("/api/inspect/lens", model="zh-en", source="明月")["notes"]  # the target is the model's own


def test_views_refuse_what_they_do_not_take(refused):
    for body in ({"text": "a", "corpus": "/etc/passwd"}, {"text": "a", "file": ["/etc/passwd"]}):
        status, error = refused("/api/inspect/contexts", model="plain", **body)
        assert (status, error["code"]) == (400, "unknown_field")
    assert refused("/api/inspect/lens", model="plain")[1]["param"] == "text"
    assert refused("/api/inspect/neighbours", model="plain")[1]["param"] == "word"
    assert refused("/api/inspect/lens", model="plain", text="a", target="b")[1]["param"] == "target"
    assert refused("/api/inspect/head", model="plain", text="ab", layer=99)[0] == 400
    assert refused("/api/inspect/report", model="plain", text="a")[0] == 404
    assert refused("/api/inspect/lens", model="plain", text="明" * 99)[0] == 400


def test_runs_are_those_of_the_given_folders(client, serving, folders, tmp_path):
    known = client.get("/api/runs").json()
    assert [one["model"] for one in known] == ["plain", "begun", "talks", "zh-en"]
    assert not any(one["is_run"] for one in known)
    answer = client.get("/api/runs/plain/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    assert client.get("/api/runs/..%2F..%2Fetc/metrics").status_code == 404


def test_claims_in_words(client):
    known = client.get("/api/claims").json()
    assert len(known) > 20 and all(one["result"] is None for one in known)
    one = client.get("/api/claims/variance").json()
    assert one["prediction"]["zh"] and one["labels"] and one["result"] is None
    assert client.get("/api/claims/nothing").status_code == 404


def test_results_of_claims_come_from_the_given_folder(serving, tmp_path):
    from mingyue.claims.claim import Trial
    from mingyue.claims.run import run_claim

    run_claim("variance", Trial("small")).save(tmp_path / "variance.json")
    with serving("plain", claims=str(tmp_path)) as server:
        full = httpx.get(server.url + "/api/claims/variance", timeout=20).json()["result"]
        known = {one["name"]: one["result"] for one in httpx.get(server.url + "/api/claims", timeout=20).json()}
    assert full["verdict"] and full["numbers"] and known["variance"]["verdict"] == full["verdict"]
    assert known["saturation"] is None


# --- monitoring


def test_models_health_version_and_metrics(client, ask):
    cards = client.get("/v1/models").json()
    assert cards["object"] == "list" and [one["id"] for one in cards["data"]] == ["plain", "begun", "talks", "zh-en"]
    one = client.get("/v1/models/begun").json()
    assert one == cards["data"][1] and one["object"] == "model" and one["max_model_len"] == 64
    assert client.get("/health").json() == {"status": "ok"} and set(client.get("/version").json()) == {"version"}
    ask("/v1/completions", model="plain", prompt="明月", max_tokens=5, seed=1)
    text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['mingyue_completion_tokens_total{model="plain"}']) >= 5
    assert float(lines['mingyue_requests_total{path="/v1/completions",status="200"}']) >= 1
    assert float(lines['mingyue_texts_running{model="plain"}']) == 0
    assert float(lines['mingyue_cache_used_bytes{model="plain"}']) == 0


# --- a run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A short run on a text, watched."""
    place = tmp_path_factory.mktemp("run")
    (place / "poems.txt").write_text("床前明月光，疑是地上霜。举头望明月，低头思故乡。\n" * 60, encoding="utf-8")
    sizes = {
        "steps": 4,
        "depth": 1,
        "d_model": 16,
        "context": 16,
        "batch_tokens": 64,
        "tokenizer": "char",
        "threads": 1,
    }
    api.train(str(place / "poems.txt"), out=str(place / "poems"), watch="床前明月光", observer=Observer(), **sizes)
    return place / "poems"


def test_a_run_with_its_log_curves_and_views(run_folder, folders, tmp_path):
    settings = ServeSettings(port=0, threads=1, device="cpu", cache_gib=0.05)
    server = Server(Catalog.open([run_folder], settings), settings)
    with server.running() as url, httpx.Client(base_url=url, timeout=60) as client:
        (run,) = client.get("/api/runs").json()
        assert run["model"] == "poems" and run["is_run"] and run["ended"] and run["step"] == 4
        events = client.get("/api/runs/poems/metrics").json()
        assert len(events) == run["events"] and events[-1]["event"] == "end"
        assert client.get("/api/runs/poems/metrics", params={"after": len(events) - 1}).json() == events[-1:]
        assert client.get("/api/runs/poems/metrics", params={"after": 10**6}).json() == []
        assert client.get("/api/runs/poems/metrics", params={"after": -1}).status_code == 400
        curves = client.get("/api/runs/poems/curves").json()
        assert curves["name"] == "poems" and curves["training_loss"]["steps_N"]
        for view, body in (("curve", {}), ("film", {}), ("contexts", {"text": "床前明月", "tokens": 500})):
            answer = client.post(f"/api/inspect/{view}", json=body)
            assert answer.status_code == 200 and answer.json()["arrays"], answer.text
        older = client.post("/api/inspect/lens", json={"text": "床前", "step": 0})
        assert older.status_code in (200, 400)
        text = client.get("/api/runs").text + client.get("/openapi.json").text + client.get("/v1/models").text
        assert str(run_folder.parent) not in text


def test_the_name_of_a_run_is_that_of_its_folder_or_of_a_link(run_folder, tmp_path):
    link = tmp_path / "moon"
    link.symlink_to(run_folder)
    settings = ServeSettings(port=0, threads=1, device="cpu", cache_gib=0.05)
    catalog = Catalog.open([run_folder / "model", link], settings)
    try:
        assert list(catalog.models) == ["poems", "moon"]
    finally:
        catalog.close(0.0)
