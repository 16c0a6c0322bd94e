"""The bodies of /v1/completions and /v1/chat/completions.

Standard fields of the OpenAI API, what other servers added and people use, and our own `sliding`, `allow_unseen` and
`valid_utf8`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mingyue.serve.neutral import (
    Body,
    OnlyDefaultTier,
    OnlyEmptyList,
    OnlyEmptyText,
    OnlyFalse,
    OnlyNoTool,
    OnlyNull,
    Takes,
)
from mingyue.words import tr

MAX_STOPS, MAX_STOP_LENGTH = 64, 1000
MAX_TOP = 20
"""Largest number of likeliest tokens with their log-probabilities."""
DEFAULT_TOKENS = 16

Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
Ids = Annotated[list[Id], Field(min_length=1)]
_PROMPT_TAKES = Takes(tr("it is a text, a list of texts, a list of ids, or a list of lists of ids; no list is empty"))
Prompt = Annotated[
    str | Annotated[list[str], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)], _PROMPT_TAKES
]
"""A text, several texts, the ids of a text, the ids of several texts."""
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Stops = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)],
    Takes(
        tr(
            "it is a text of 1 to {length:,} characters, or a list of at most {n} of them",
            MAX_STOP_LENGTH,
            MAX_STOPS,
        )
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
BiasId = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Limit = Annotated[int, Field(ge=0, le=10**9)]


class StreamOptions(Body):
    """What a stream holds besides the text."""

    include_usage: bool = False
    """Whether a last chunk holds the numbers of tokens."""
    continuous_usage_stats: OnlyFalse = None
    include_obfuscation: OnlyFalse = None


class Sampling(Body):
    """The fields that completions and chats share."""

    model: Name | None = None
    """Name of the model, as in /v1/models; null = the first that continues texts."""
    n: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Number of texts for each prompt; null = 1."""
    temperature: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    """Divisor of the logits; 0 = always the likeliest token; null = 1."""
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Nucleus sampling: the likeliest tokens whose probabilities sum to this; null = 1 = off."""
    top_k: Annotated[int, Field(ge=-1, le=10**9)] | None = None
    """Number of likeliest tokens to sample from; null, 0 and -1 = all."""
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """Smallest probability of a token, as a share of that of the likeliest one; null = 0."""
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] | None = None
    """Penalty on tokens of prompt and text: positive logits divided by it, negative multiplied; null = 1."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    """Subtracted from the logits of tokens that the text has; null = 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    """Subtracted from the logit of a token for each time that the text has it; null = 0."""
    logit_bias: dict[BiasId, Bias] | None = None
    """Added to the logits, by id."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """Seed: the same request with the same seed gives the same texts; null = another one each time."""
    stop: Stops | None = None
    """Strings that end the text; they are not part of it."""
    stream: bool | None = None
    """Whether the text is sent while it is generated, as server-sent events."""
    stream_options: StreamOptions | None = None
    min_tokens: Limit | None = None
    """Number of tokens before which nothing ends the text; null = 0."""
    ignore_eos: bool | None = None
    """Whether the EOS token is never generated, so that only `stop` and the length end the text."""
    return_token_ids: bool | None = None
    """Whether the answer has the ids of prompt and text too."""
    sliding: bool | None = None
    """Whether a text may become longer than the context: generation then continues from its last half."""
    allow_unseen: bool | None = None
    """Whether tokens that do not occur in the training text are generated too."""
    valid_utf8: bool | None = None
    """Whether only valid UTF-8 is generated; null = true."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    """A name of the user for the caller's own records; it has no effect on the answer."""

    def stops(self) -> tuple[str, ...]:
        """The strings that end the text."""
        given = self.stop
        return () if given is None else (given,) if isinstance(given, str) else tuple(given)

    @property
    def usage_in_stream(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(Sampling):
    """A request for texts that continue prompts."""

    prompt: Prompt
    """A text, several, or the same as lists of token ids, which are read as they are, without a BOS token added."""
    max_tokens: Limit | None = None
    """Largest number of generated tokens; null = 16, or as many as the context holds."""
    echo: bool | None = None
    """Whether the answer repeats the prompt before its text."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    """Number of likeliest tokens whose log-probabilities are given for each position; 0 = of the chosen one alone."""
    truncate_prompt_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Number of tokens to which a longer prompt is cut; its last ones are kept."""
    best_of: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Accepted where it equals n: the server generates no texts that it does not return."""
    suffix: OnlyEmptyText = None
    prompt_logprobs: OnlyNull = None
    """Not supported; `echo` with `logprobs` gives them."""


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[str | list[TextPart], Takes(tr("`content` is a text, or a list of parts of the type text"))]
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: OnlyEmptyList = None
    refusal: OnlyEmptyText = None

    def text(self) -> str:
        """Its text, whatever form it was sent in."""
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


class TextFormat(Body):
    """The form of an answer: text."""

    type: Annotated[Literal["text"], Takes(tr("the server answers in text only"))]


class ChatBody(Sampling):
    """A request for the next message of a conversation."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_tokens: Limit | None = None
    """Largest number of generated tokens; null = as many as the context holds."""
    max_completion_tokens: Limit | None = None
    """The same under its newer name."""
    logprobs: bool | None = None
    """Whether the log-probability of each token is given."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    """Number of likeliest tokens that are given for each position; needs logprobs."""
    response_format: TextFormat | None = None
    tools: OnlyEmptyList = None
    functions: OnlyEmptyList = None
    tool_choice: OnlyNoTool = None
    function_call: OnlyNoTool = None
    parallel_tool_calls: bool | None = None
    """Without tools it asks for nothing."""
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    store: OnlyFalse = None
    service_tier: OnlyDefaultTier = None
    audio: OnlyNull = None
    metadata: OnlyNull = None
    prediction: OnlyNull = None
    reasoning_effort: OnlyNull = None
    verbosity: OnlyNull = None
    web_search_options: OnlyNull = None
