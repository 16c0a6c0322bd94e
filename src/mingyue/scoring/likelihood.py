"""How likely a model finds a text: log P(x_t | x_1 … x_{t−1}) of every token, and their sum.

A text longer than the context is read in windows that move by a stride: each token is scored once, in the first window
that reaches it, so that all but the first window's tokens have at least context − stride tokens before them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.errors import GenerationError
from mingyue.models import DecoderOnly
from mingyue.text import Tokenizer

_LOGITS = 1 << 25  # at most so many at once


@dataclass(frozen=True)
class TokenScore:
    """One token of a scored text."""

    token: int
    text: str
    """For people: spaces and half characters made visible."""
    logprob: float | None
    """log P given everything before it, natural; None for a first token with nothing before it."""


@dataclass(frozen=True)
class Score:
    """A scored text. Without a start mark before it, its first token has no probability and is not counted."""

    tokens: list[TokenScore]
    total: float
    """Σ log P, natural."""
    scored: int
    """Tokens that were counted."""
    scored_bytes: int
    """Their UTF-8 bytes."""
    context: int
    """Tokens that the model sees at once."""
    stride: int
    """Tokens by which the window moves over a longer text."""
    windows: int
    """Windows that were read."""

    @property
    def nats_per_token(self) -> float:
        """−total over the scored tokens; not a number when there are none."""
        return -self.total / self.scored if self.scored else math.nan

    @property
    def perplexity(self) -> float:
        """e to the nats per token."""
        return math.exp(min(self.nats_per_token, 700.0)) if self.scored else math.nan

    @property
    def bits_per_byte(self) -> float:
        """−total in bits over the bytes: comparable between tokenizers."""
        return -self.total / math.log(2) / self.scored_bytes if self.scored_bytes else math.nan

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not a number becomes None."""
        values = {name: getattr(self, name) for name in ("nats_per_token", "perplexity", "bits_per_byte")}
        return {**asdict(self), **{name: None if math.isnan(value) else value for name, value in values.items()}}


def score(
    model: DecoderOnly, tokenizer: Tokenizer, text: str, *, starts_with_bos: bool, stride: int | None = None
) -> Score:
    """Score a text. `stride` is from 1 to the context (default: half of it).

    With `starts_with_bos` the start mark stands before the text and the first token is scored after it; without, the
    first token is only read. Raises `GenerationError` for an empty text, a stride out of range, or ids that the model
    does not know.
    """
    context = model.config.context
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise GenerationError(f"stride {stride} is not from 1 to {context}, the context of this model")
    ids = tokenizer.encode(text)
    if not ids:
        raise GenerationError("there is nothing to score: the text is empty")
    if max(ids) >= model.config.vocab_size:
        raise GenerationError(
            f"the text has token {max(ids)}, but the model knows only tokens 0 to {model.config.vocab_size - 1}",
            advice="The tokenizer does not belong to this model.",
        )
    read = [tokenizer.bos_id, *ids] if starts_with_bos else ids
    logprobs, windows = _logprobs(model, torch.tensor(read), context, stride)
    known = logprobs if starts_with_bos else [None, *logprobs]
    tokens = [TokenScore(one, tokenizer.token_text(one), value) for one, value in zip(ids, known, strict=True)]
    counted = ids if starts_with_bos else ids[1:]
    n_bytes = sum(len(tokenizer.token_bytes(one)) for one in counted)
    return Score(tokens, math.fsum(logprobs), len(logprobs), n_bytes, context, stride, windows)


def window_starts(n_targets: int, context: int, stride: int) -> list[tuple[int, int]]:
    """(start, first target counted) of each window over targets 0 … n_targets − 1; every target is counted once.

    Target t is what follows input t. A window at `start` reads inputs start … start + context − 1; the last one is
    moved back so that it ends on the last target.
    """
    length = min(context, n_targets)
    starts: list[tuple[int, int]] = []
    done = 0
    while done < n_targets:
        start = min(done + min(stride, n_targets - done) - length if done else 0, n_targets - length)
        starts.append((start, done))
        done = start + length
    return starts


@torch.inference_mode()
def _logprobs(model: DecoderOnly, ids: Tensor, context: int, stride: int) -> tuple[list[float], int]:
    """log P of ids 1 … N−1, and the number of windows read."""
    starts = window_starts(len(ids) - 1, context, stride)
    length = min(context, len(ids) - 1)
    rows = max(1, _LOGITS // max(1, length * model.config.vocab_size))
    device = model.embedding.weight.device
    found: list[float] = []
    for at in range(0, len(starts), rows):
        some = starts[at : at + rows]
        windows_BT = torch.stack([ids[start : start + length + 1] for start, _ in some]).to(device)
        logits_BTV = model(windows_BT[:, :-1])
        nats_BT = F.cross_entropy(logits_BTV.transpose(1, 2).float(), windows_BT[:, 1:], reduction="none").cpu()
        for row, (start, first) in enumerate(some):
            found += (-nats_BT[row, first - start :]).tolist()
    return found, len(starts)
