"""What answers hold, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Responses = dict[int | str, dict[str, Any]]


class Answer(BaseModel):
    """Base of the answers: an answer has no other fields than those described."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class ErrorDetail(Answer):
    """What was wrong with a request."""

    message: str
    type: str
    param: str | None
    """The field that is wrong."""
    code: str | None


class ErrorBody(Answer):
    """Every error."""

    error: ErrorDetail


class Usage(Answer):
    """Numbers of tokens."""

    prompt_tokens: int
    """Tokens of all prompts, each counted once, a BOS token included."""
    completion_tokens: int
    """Tokens of all texts, an EOS token included."""
    total_tokens: int


class LegacyLogprobs(Answer):
    """One entry for each token."""

    text_offset: list[int]
    """Characters of the choice before the token."""
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Answer):
    """One text."""

    index: int
    """Number of the prompt × n + number of the sample."""
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(Answer):
    """Texts that continue prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(Answer):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the text, and the likeliest ones there."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """One entry for each token."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(Answer):
    """A message of the model."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(Answer):
    """One message."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None


class ChatCompletion(Answer):
    """Messages that continue a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None


class EmbeddingUsage(Answer):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Answer):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """Numbers, or the base64 form of little-endian fp32 numbers."""


class Embeddings(Answer):
    """The vectors of texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelCard(Answer):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    """Tokens of its context."""
    architecture: Literal["decoder-only", "encoder-decoder"]
    parameters: int


class ModelList(Answer):
    """Every model."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(Answer):
    """The ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Answer):
    """The text of ids."""

    prompt: str


class TokenizerInfo(Answer):
    """What a client needs to know of a tokenizer to prepare prompts for it."""

    tokenizer_class: str
    kind: str
    vocab_size: int
    bos_token: str
    eos_token: str
    pad_token: str
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    add_bos_token: bool
    """Whether a BOS token precedes a prompt that is given as text."""
    model_max_length: int
    chat_template: str | None


class Health(Answer):
    """Whether the server takes requests."""

    status: Literal["ok", "draining"]


class Version(Answer):
    """The version of Mingyue."""

    version: str


class Translations(Answer):
    """A translation, or a list of them where `q` is a list."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None


class Language(Answer):
    """A language that can be translated."""

    code: str
    name: str
    targets: list[str]


def answers(shape: Any, *, status: int = 200) -> Responses:  # noqa: ANN401  (a type)
    """The answers of a route: `shape` as JSON, or an error."""
    return {status: {"model": shape, "description": "The answer."}, **ERRORS}


def streamed(shape: type[Answer]) -> Responses:
    """The same for a route that can stream."""
    found = answers(shape)
    found[200]["content"] = {"text/event-stream": {"schema": _EVENT}}
    return found


_EVENT = {
    "type": "object",
    "description": "One event: JSON with a piece of the answer; the last one is [DONE].",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
ERRORS: Responses = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be answered as it is."},
    "5XX": {"model": ErrorBody, "description": "The server is stopping (503), or has failed."},
}
