"""/v1/completions: shapes, log-probabilities, streams, and what is refused."""

from __future__ import annotations

import math

import pytest

from mingyue import api

PATH = "/v1/completions"
PROMPT = "床前明月"


def offline(folders, name, prompts, **given):
    return api.load(folders[name], device="cpu", threads=1).generate(prompts, **given)


def test_an_answer_has_exactly_the_fields_of_the_openai_api(ask):
    found = ask(PATH, model="plain", prompt=PROMPT, max_tokens=5, seed=1)
    assert set(found) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert found["id"].startswith("cmpl-") and found["object"] == "text_completion" and found["model"] == "plain"
    assert isinstance(found["created"], int) and isinstance(found["system_fingerprint"], str)
    (choice,) = found["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    assert choice["index"] == 0 and choice["logprobs"] is None and choice["finish_reason"] in ("length", "stop")
    assert found["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}


@pytest.mark.parametrize("name", ["plain", "begun"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_generate_by_prompt_and_sample(ask, folders, name, temperature):
    prompts = [PROMPT, "the ", ""]
    found = ask(PATH, model=name, prompt=prompts, n=2, max_tokens=20, seed=5, temperature=temperature)
    expected = offline(folders, name, prompts, samples=2, max_new_tokens=20, seed=5, temperature=temperature)
    assert [choice["index"] for choice in found["choices"]] == list(range(6))
    assert [choice["text"] for choice in found["choices"]] == [one.text for one in expected]


def test_the_four_forms_of_a_prompt(ask):
    ids = ask("/tokenize", model="plain", prompt=PROMPT)["tokens"]
    forms = (PROMPT, [PROMPT], ids, [ids])
    found = [ask(PATH, model="plain", prompt=form, max_tokens=8, seed=3)["choices"][0]["text"] for form in forms]
    assert len(set(found)) == 1


def test_bos_precedes_a_text_and_not_ids(ask):
    ids = ask("/tokenize", model="begun", prompt=PROMPT)["tokens"]
    as_text = ask(PATH, model="begun", prompt=PROMPT, max_tokens=8, seed=3)
    as_ids = ask(PATH, model="begun", prompt=ids, max_tokens=8, seed=3)
    assert len(ids) == 5 and as_text["usage"]["prompt_tokens"] == 5
    assert as_text["choices"] == as_ids["choices"]
    assert ask(PATH, model="begun", prompt=ids[1:], max_tokens=8, seed=3)["usage"]["prompt_tokens"] == 4


def test_a_seed_repeats_a_text_and_no_seed_does_not(ask):
    def texts(**given):
        return {ask(PATH, model="plain", prompt=PROMPT, max_tokens=30, **given)["choices"][0]["text"] for _ in range(3)}

    assert len(texts(seed=7)) == 1 and len(texts()) > 1


def test_stop_texts_end_a_text_and_are_not_in_it(ask):
    whole = ask(PATH, model="plain", prompt=PROMPT, max_tokens=40, seed=1, ignore_eos=True)["choices"][0]["text"]
    stop = whole[10:12]
    for given in (stop, [stop], ["no such text", stop]):
        (choice,) = ask(PATH, model="plain", prompt=PROMPT, max_tokens=40, seed=1, ignore_eos=True, stop=given)[
            "choices"
        ]
        assert choice["text"] == whole[: whole.index(stop)] and choice["finish_reason"] == "stop"


def test_bias_and_penalties_change_the_text(ask):
    def text(**given):
        return ask(PATH, model="plain", prompt=PROMPT, max_tokens=12, temperature=0, ignore_eos=True, **given)

    letter = ask("/tokenize", model="plain", prompt="月")["tokens"][0]
    assert text(logit_bias={str(letter): 100})["choices"][0]["text"] == "月" * 12
    biased = {"logit_bias": {str(letter): 50.0}}
    assert set(text(**biased)["choices"][0]["text"]) == {"月"}
    assert text(logit_bias={str(letter): -100})["choices"][0]["text"].count("月") == 0
    plain = text()["choices"][0]["text"]
    for given in ({"repetition_penalty": 50.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert len(set(text(**given)["choices"][0]["text"])) >= len(set(plain))


@pytest.mark.parametrize("name", ["plain", "begun"])
def test_echo_and_logprobs_give_the_prompt_too(ask, folders, name):
    """Complaint of other servers: a scoring client gets no log-probabilities of the prompt, and reports chance."""
    (choice,) = ask(PATH, model=name, prompt=PROMPT, max_tokens=3, seed=1, echo=True, logprobs=2)["choices"]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert {len(values) for values in logprobs.values()} == {4 + 3}
    assert choice["text"].startswith(PROMPT) and logprobs["tokens"][:4] == list(PROMPT)
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    if name == "begun":  # whose tokens are characters
        assert "".join(logprobs["tokens"]) == choice["text"] and logprobs["text_offset"] == list(range(7))
    scores = [one.logprob for one in api.load(folders[name], device="cpu").score(PROMPT).tokens]
    assert logprobs["token_logprobs"][1:4] == pytest.approx(scores[1:], abs=1e-4)
    for own, value, top in zip(
        logprobs["tokens"][1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert top[own] == value and 2 <= len(top) <= 3 and max(top.values()) >= value


def test_echo_without_new_tokens_scores_a_text(ask):
    ids = ask("/tokenize", model="begun", prompt=PROMPT)["tokens"]
    found = ask(PATH, model="begun", prompt=ids, max_tokens=0, echo=True, logprobs=0)
    (choice,) = found["choices"]
    assert found["usage"]["completion_tokens"] == 0 and choice["text"] == PROMPT
    assert choice["logprobs"]["tokens"] == ["<bos>", *PROMPT]
    assert all(len(top) == 1 for top in choice["logprobs"]["top_logprobs"][1:])
    assert ask(PATH, model="begun", prompt=PROMPT, max_tokens=0, echo=True)["choices"][0]["text"] == PROMPT
    assert ask(PATH, model="begun", prompt=PROMPT, max_tokens=0)["choices"][0]["text"] == ""


def test_zero_logprobs_give_the_chosen_token_alone(ask):
    (choice,) = ask(PATH, model="plain", prompt=PROMPT, max_tokens=4, seed=2, logprobs=0)["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1] * 4
    assert all(math.isfinite(value) for value in choice["logprobs"]["token_logprobs"])
    assert choice["logprobs"]["text_offset"][0] == 0


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("stop", [None, ["月", "qu", "a"]])
def test_a_stream_joins_to_the_answer_that_is_not_streamed(ask, events, echo, logprobs, stop):
    body = {"model": "begun", "prompt": [PROMPT, "The"], "n": 2, "max_tokens": 12, "seed": 4, "temperature": 1.5}
    body |= {"echo": echo, "logprobs": logprobs, "stop": stop, "return_token_ids": True}
    whole, chunks = ask(PATH, **body), events(PATH, **body, stream_options={"include_usage": True})
    assert len({chunk["id"] for chunk in chunks}) == 1 and {chunk["object"] for chunk in chunks} == {"text_completion"}
    *texts, last = chunks
    assert last["choices"] == [] and last["usage"] == whole["usage"] and all(one["usage"] is None for one in texts)
    for choice in whole["choices"]:
        parts = [part for chunk in texts for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        assert parts[-1]["finish_reason"] is not None
        assert [one for part in parts for one in part["token_ids"]] == choice["token_ids"]
        assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        for key in choice["logprobs"] or ():
            assert [one for part in parts if part["logprobs"] for one in part["logprobs"][key]] == choice["logprobs"][
                key
            ]
        assert logprobs is not None or all(part["logprobs"] is None for part in parts)


def test_usage_is_in_a_stream_only_where_it_is_asked_for(events):
    body = {"model": "plain", "prompt": PROMPT, "max_tokens": 3, "seed": 1}
    assert all("usage" not in chunk for chunk in events(PATH, **body))
    assert all("usage" not in chunk for chunk in events(PATH, **body, stream_options={"include_usage": False}))


def test_half_a_character_is_never_sent(ask, events):
    ids = ask("/tokenize", model="plain", prompt=PROMPT)["tokens"]
    first = min(ids) - 1  # the bytes precede the letters
    body = {"model": "plain", "prompt": [*ids, first], "max_tokens": 30, "seed": 9, "temperature": 2.0}
    body |= {"valid_utf8": True, "ignore_eos": True, "logprobs": 0}
    whole = ask(PATH, **body)["choices"][0]
    chunks = events(PATH, **body)
    assert "".join(part["text"] for chunk in chunks for part in chunk["choices"]) == whole["text"]
    assert "\ufffd" not in whole["text"]


def test_neutral_values_are_accepted(ask):
    neutral = {"best_of": 1, "logit_bias": {}, "suffix": None, "user": "someone", "echo": False, "stop": None, "n": 1}
    neutral |= {"presence_penalty": 0, "frequency_penalty": 0.0, "top_p": 1, "logprobs": None, "stream": False}
    neutral |= {"stream_options": None, "prompt_logprobs": None, "top_k": -1, "min_p": 0, "temperature": None}
    ask(PATH, model="plain", prompt=PROMPT, max_tokens=2, **neutral)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("best_of", 3, "unsupported_value"),
        ("suffix", "the end", "invalid_value"),
        ("prompt_logprobs", 1, "invalid_value"),
        ("logprobs", 21, "invalid_value"),
        ("logprobs", True, "invalid_value"),
        ("max_tokens", -1, "invalid_value"),
        ("max_tokens", "5", "invalid_value"),
        ("max_tokens", 10**6, "too_many_tokens"),
        ("max_tokens", 61, "context_length_exceeded"),
        ("temperature", -0.1, "invalid_value"),
        ("temperature", 1e99, "invalid_value"),
        ("top_p", 0, "invalid_value"),
        ("top_p", -1, "invalid_value"),
        ("n", 0, "invalid_value"),
        ("n", 129, "too_many_texts"),
        ("stop", "", "invalid_value"),
        ("stop", ["a", ""], "invalid_value"),
        ("seed", -1, "invalid_value"),
        ("logit_bias", {"x": 1}, "invalid_value"),
        ("logit_bias", {"99999": 1}, "invalid_value"),
        ("logit_bias", {"5": 101}, "invalid_value"),
        ("presence_penalty", 2.5, "invalid_value"),
        ("min_tokens", 10, "invalid_value"),
        ("prompt", [], "invalid_value"),
        ("prompt", [[]], "invalid_value"),
        ("prompt", ["a", 5], "invalid_value"),
        ("prompt", [10**6], "invalid_value"),
        ("prompt", [-1], "invalid_value"),
        ("prompt", None, "invalid_value"),
        ("prompt", "\ud800", "invalid_value"),
        ("stream_options", {"include_usage": True}, "invalid_value"),
        ("use_beam_search", True, "unknown_field"),
        ("model", "zh-en", "model_not_supported"),
        ("model", "../plain", "model_not_found"),
        ("model", 5, "invalid_value"),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_name_of_the_field(refused, field, value, code):
    body = {"model": "plain", "prompt": PROMPT, "max_tokens": 5, "stream": field != "stream_options" and None}
    status, error = refused(PATH, **{**body, field: value})
    assert (status, error["code"]) == (404 if code == "model_not_found" else 400, code)
    assert error["param"] == field
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_what_a_stream_cannot_do_is_refused_by_its_status(client):
    """Complaint of other servers: an error arrives with status 200, inside the stream."""
    answer = client.post(PATH, json={"model": "plain", "prompt": PROMPT, "max_tokens": 61, "stream": True})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


def test_the_context_is_a_limit_unless_sliding_is_asked_for(ask, refused, folders):
    body = {"model": "plain", "prompt": PROMPT, "temperature": 0, "ignore_eos": True}
    _, error = refused(PATH, **body, max_tokens=100)
    assert "64" in error["message"] and "4 tokens" in error["message"] and "100" in error["message"]
    assert ask(PATH, **body, max_tokens=60)["usage"]["completion_tokens"] == 60
    (choice,) = ask(PATH, **body, max_tokens=100, sliding=True)["choices"]
    (expected,) = offline(folders, "plain", [PROMPT], max_new_tokens=100, temperature=0, ignore_eos=True)
    assert choice["text"] == expected.text
    long = "明月" * 40
    assert refused(PATH, model="plain", prompt=long)[1]["code"] == "context_length_exceeded"
    assert (
        refused(PATH, model="plain", prompt=long, sliding=True, echo=True, logprobs=1)[1]["code"]
        == "context_length_exceeded"
    )
    ask(PATH, model="plain", prompt=long, sliding=True, max_tokens=3)


def test_without_a_number_16_tokens_are_generated_or_as_many_as_fit(ask):
    body = {"model": "plain", "ignore_eos": True, "seed": 1}
    assert ask(PATH, **body, prompt=PROMPT)["usage"]["completion_tokens"] == 16
    assert ask(PATH, **body, prompt="明" * 60)["usage"]["completion_tokens"] == 4


def test_a_prompt_is_cut_where_that_is_asked_for(ask):
    body = {"prompt": PROMPT * 3, "max_tokens": 4, "seed": 1, "truncate_prompt_tokens": 3, "return_token_ids": True}
    plain, begun = ask(PATH, model="plain", **body), ask(PATH, model="begun", **body)
    ids = ask("/tokenize", model="plain", prompt=PROMPT)["tokens"]
    assert plain["choices"][0]["prompt_token_ids"] == ids[-3:]
    assert begun["choices"][0]["prompt_token_ids"] == [1, *ids[-2:]]


def test_a_request_after_a_refused_one_is_answered(ask, refused):
    """Complaint of other servers: one bad request ends the engine."""
    refused(PATH, model="plain", prompt=PROMPT, temperature=999999e300, max_tokens=2)
    ask(PATH, model="plain", prompt=PROMPT, temperature=999999, max_tokens=2)
    ask(PATH, model="plain", prompt=PROMPT, top_p=1e-300, top_k=1, max_tokens=2)
    assert ask(PATH, model="plain", prompt=PROMPT, max_tokens=2)["choices"]


def test_messages_are_in_the_language_of_the_client(client):
    answer = client.post(PATH, json={"prompt": PROMPT, "best_of": 4}, headers={"accept-language": "zh-CN,zh;q=0.9"})
    assert any("\u4e00" <= letter <= "\u9fff" for letter in answer.json()["error"]["message"])
