"""Clients of others do their jobs: openai, langchain-openai, llm, libretranslatepy."""

from __future__ import annotations

import asyncio

import pytest

openai = pytest.importorskip("openai")

PROMPT = "床前明月"


@pytest.fixture
def official(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


def test_openai_completes_streams_and_embeds(official):
    assert [one.id for one in official.models.list()] == ["plain", "begun", "talks", "zh-en"]
    assert official.models.retrieve("begun").owned_by == "mingyue"
    body = {"model": "begun", "prompt": PROMPT, "max_tokens": 8, "seed": 1, "temperature": 0.9}
    whole = official.completions.create(**body, logprobs=2, echo=True)
    assert whole.usage.completion_tokens == 8 and whole.choices[0].text.startswith(PROMPT)
    assert whole.choices[0].logprobs.token_logprobs[0] is None
    assert len(whole.choices[0].logprobs.tokens) == 4 + 8
    stream = official.completions.create(**body, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert PROMPT + "".join(one.choices[0].text for one in chunks if one.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 8
    vectors = official.embeddings.create(model="plain", input=["明月", "fox"])  # base64 on the wire
    assert len(vectors.data) == 2 and len(vectors.data[0].embedding) == 24
    assert sum(value**2 for value in vectors.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_openai_chats(official):
    body = {"model": "talks", "messages": [{"role": "user", "content": "明月"}], "max_tokens": 6, "seed": 1}
    whole = official.chat.completions.create(**body, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert "".join(one.token for one in whole.choices[0].logprobs.content) == text
    with official.chat.completions.create(**body, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


def test_openai_raises_its_own_errors(official, server):
    with pytest.raises(openai.NotFoundError) as missing:
        official.models.retrieve("nothing")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        official.completions.create(model="plain", prompt=PROMPT, max_tokens=1000)
    assert long.value.code == "context_length_exceeded" and long.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as chat:
        official.chat.completions.create(model="plain", messages=[{"role": "user", "content": "a"}])
    assert chat.value.code == "no_chat_template"


def test_openai_with_a_key(serving):
    with serving("plain", api_key="secret") as server:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong").models.list()
        assert openai.OpenAI(base_url=server.url + "/v1", api_key="secret").models.list().data


def test_openai_many_at_once(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=60) as found:
            body = {"model": "plain", "prompt": PROMPT, "max_tokens": 20}
            return await asyncio.gather(*(found.completions.create(**body, seed=seed % 4) for seed in range(24)))

    texts = [one.choices[0].text for one in asyncio.run(main())]
    assert all(texts[seed] == texts[seed % 4] for seed in range(24))


def test_langchain(server):
    pytest.importorskip("langchain_openai")
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

    given = {"base_url": server.url + "/v1", "api_key": "none", "max_retries": 0}
    plain = OpenAI(model="begun", max_tokens=8, seed=1, **given)
    text = plain.invoke(PROMPT)
    assert text and "".join(plain.stream(PROMPT)) == text
    assert plain.batch([PROMPT, PROMPT])[0] == text
    chat = ChatOpenAI(model="talks", max_tokens=6, seed=1, **given)
    answer = chat.invoke("明月")
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("明月")) == answer.content
    vectors = OpenAIEmbeddings(model="plain", check_embedding_ctx_length=False, **given).embed_documents(
        ["明月", "fox"]
    )
    assert [len(one) for one in vectors] == [24, 24]


def test_llm(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    pytest.importorskip("llm")
    from llm.default_plugins.openai_models import Chat, Completion

    plain = Completion("begun", model_name="begun", api_base=server.url + "/v1")
    plain.key = "none"
    text = plain.prompt(PROMPT, stream=False, max_tokens=8, seed=1).text()
    assert text and "".join(plain.prompt(PROMPT, stream=True, max_tokens=8, seed=1)) == text
    chat = Chat("talks", model_name="talks", api_base=server.url + "/v1")
    chat.key = "none"
    answer = chat.prompt("明月", stream=False, max_tokens=6, seed=1).text()
    assert answer and "".join(chat.prompt("明月", stream=True, max_tokens=6, seed=1)) == answer


def test_libretranslatepy(server, serving):
    pytest.importorskip("libretranslatepy")
    from urllib.error import HTTPError

    from libretranslatepy import LibreTranslateAPI

    found = LibreTranslateAPI(server.url)
    assert [one["code"] for one in found.languages()] == ["zh", "en"]
    text = found.translate("明月", "zh", "en")
    assert isinstance(text, str) and text
    with pytest.raises(HTTPError):
        found.translate("moon", "de", "en")
    with serving("zh-en", api_key="secret") as locked:
        assert LibreTranslateAPI(locked.url, "secret").translate("明月", "zh", "en") == text
