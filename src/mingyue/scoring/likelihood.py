"""Log-likelihood of a text under a model: log P(x_t | x_1 … x_{t−1}) of every token, and the sum.

A text longer than the context is read in windows that move by a stride. Each token is scored once, in the first window
that contains it, so that all tokens after the first window have at least context − stride tokens before them. A smaller
stride costs more forward passes and gives each token more context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.errors import GenerationError
from mingyue.generation.evaluating import evaluating
from mingyue.generation.sampling import log_softmax
from mingyue.reprs import facts_html
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.generation import Backend
    from mingyue.models import DecoderOnly
    from mingyue.text import Tokenizer

_MAX_TOKENS = 1 << 13  # per forward pass (at least one window)
_MAX_TOKENS_BETWEEN = 1 << 11  # the same where progress is reported
_PIECE = 256  # tokens that a back end reads at once
_MAX_LOGITS = 1 << 24  # computed at once: 64 MB


@dataclass(frozen=True)
class TokenScore:
    """One token of a scored text."""

    token: int
    text: str
    """Readable form: spaces and partial characters made visible."""
    logprob: float | None
    """log P (natural) given all tokens before it; None for a first token with nothing before it."""


@dataclass(frozen=True, repr=False)
class Score:
    """A scored text. Without BOS before it, the first token has no probability and is not counted."""

    tokens: list[TokenScore]
    total: float
    """Σ log P (natural). EOS is not included: it is the probability that a text begins with this one."""
    scored: int
    """Number of tokens counted."""
    scored_bytes: int
    """UTF-8 bytes of these tokens."""
    context: int
    """Tokens in a window."""
    stride: int
    """Tokens by which the window moves over a longer text."""
    windows: int
    """Number of windows."""

    @property
    def nats_per_token(self) -> float:
        """−total / scored; NaN when no token was scored."""
        return -self.total / self.scored if self.scored else math.nan

    @property
    def perplexity(self) -> float:
        """e to the nats per token."""
        return math.exp(min(self.nats_per_token, 700.0)) if self.scored else math.nan

    @property
    def bits_per_byte(self) -> float:
        """−total in bits / scored_bytes: comparable between tokenizers."""
        return -self.total / math.log(2) / self.scored_bytes if self.scored_bytes else math.nan

    def __repr__(self) -> str:
        return (
            f"<mingyue.Score: {self.nats_per_token:.3f} nats per token, perplexity {self.perplexity:.2f}, "
            f"{self.bits_per_byte:.3f} bits per byte, tokens scored: {self.scored:,}>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the numbers of the whole text."""
        numbers = {
            "nats per token": f"{self.nats_per_token:.4f}",
            "perplexity": f"{self.perplexity:.4g}",
            "bits per byte": f"{self.bits_per_byte:.4f}",
            "tokens scored": f"{self.scored:,}",
        }
        return facts_html("Score", numbers)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; NaN becomes None."""
        values = {name: getattr(self, name) for name in ("nats_per_token", "perplexity", "bits_per_byte")}
        return {**asdict(self), **{name: None if math.isnan(value) else value for name, value in values.items()}}


def score(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    text: str,
    *,
    starts_with_bos: bool,
    stride: int | None = None,
    backend: Backend | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Score a text. `stride` is from 1 to the context (default: half of it). `backend` computes it, if one is given.

    `progress` receives the number of windows done and of all windows; what it raises ends the computation.

    With `starts_with_bos`, BOS precedes the text and the first token is scored too; without, the first token is only
    read. Raises `GenerationError` for an empty text, a stride out of range, ids outside the vocabulary, or a model
    whose output is NaN.
    """
    context = model.config.context
    stride = max(1, context // 2) if stride is None else stride
    ids = tokenizer.encode(text)
    if not ids:
        raise GenerationError(tr("there is nothing to score: the text is empty"))
    inputs = [tokenizer.bos_id, *ids] if starts_with_bos else ids
    logprobs = token_logprobs(model, inputs, stride=stride, backend=backend, progress=progress)
    per_token = logprobs if starts_with_bos else [None, *logprobs]
    n_bytes = len(text.encode("utf-8")) - (0 if starts_with_bos else len(tokenizer.token_bytes(ids[0])))
    return Score(
        tokens=[TokenScore(one, tokenizer.token_text(one), value) for one, value in zip(ids, per_token, strict=True)],
        total=math.fsum(logprobs),
        scored=len(logprobs),
        scored_bytes=n_bytes,
        context=context,
        stride=stride,
        windows=len(window_starts(len(logprobs), context, stride)),
    )


def window_starts(n_targets: int, context: int, stride: int) -> list[tuple[int, int]]:
    """(start, first target counted) of each window over targets 0 … n_targets − 1; every target is counted once.

    Target t is the token after input t. A window at `start` reads inputs start … start + context − 1; the last one is
    moved back so that it ends on the last target.
    """
    length = min(context, n_targets)
    starts: list[tuple[int, int]] = []
    done = 0
    while done < n_targets:
        end = min(done + stride, n_targets) if done else length
        starts.append((end - length, done))
        done = end
    return starts


def token_logprobs(
    model: DecoderOnly,
    ids: Sequence[int],
    *,
    stride: int | None = None,
    backend: Backend | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """log P (natural) of each of `ids` but the first, given those before it, in windows as in `score`.

    Computed in evaluation mode; the mode of the model stays as it is. Raises `GenerationError` as `score` does.
    """
    context = model.config.context
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise GenerationError(
            tr("stride {stride} is not from 1 to {context}, the context of this model", stride, context)
        )
    if max(ids) >= model.config.vocab_size:
        raise GenerationError(
            tr(
                "the text has token {ids}, but the model knows only tokens 0 to {vocab_size}",
                max(ids),
                model.config.vocab_size - 1,
            ),
            advice=tr("The tokenizer does not belong to this model."),
        )
    starts = window_starts(len(ids) - 1, context, stride)
    found: list[float] = []
    if backend is not None:
        for done, start in enumerate(starts, start=1):
            found += _score_window(backend, ids, start)
            if progress is not None:
                progress(done, len(starts))
        return _checked(found)
    n_rows = max(1, (_MAX_TOKENS if progress is None else _MAX_TOKENS_BETWEEN) // min(context, len(ids)))
    ids_T = torch.tensor(ids, device=model.embedding.weight.device)
    parts: list[Tensor] = []
    with evaluating(model), torch.inference_mode():
        for at in range(0, len(starts), n_rows):
            parts.append(_score_windows(model, ids_T, starts[at : at + n_rows]))
            if progress is not None:
                progress(min(at + n_rows, len(starts)), len(starts))
    return _checked([value for part in parts for value in part.tolist()])


def _checked(logprobs: list[float]) -> list[float]:
    if any(math.isnan(value) for value in logprobs):
        raise GenerationError(
            tr("the model's output is NaN"),
            advice=tr("Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint."),
        )
    return logprobs


def _score_window(backend: Backend, ids: Sequence[int], start: tuple[int, int]) -> list[float]:
    """log P of the new targets of one window."""
    first_input, first_target = start
    length = min(backend.context, len(ids) - 1)
    backend.reserve(1, length)
    found: list[float] = []
    for at in range(0, length, _PIECE):
        piece = ids[first_input + at : first_input + min(at + _PIECE, length)]
        last_target = first_input + at + len(piece)  # target t is the token after input t
        logits_TV = backend.read(0, at, piece, logits=last_target > first_target)
        if logits_TV is not None:
            logprobs_TV = log_softmax(logits_TV)
            for offset in range(max(0, first_target - first_input - at), len(piece)):
                found.append(float(logprobs_TV[offset, ids[first_input + at + offset + 1]]))
    return found


def _score_windows(model: DecoderOnly, ids_T: Tensor, starts: Sequence[tuple[int, int]]) -> Tensor:
    """log P of the new targets of some windows, in order; logits are computed for these only, and in pieces."""
    length = min(model.config.context, len(ids_T) - 1)
    hidden_BTM = model.hidden(torch.stack([ids_T[start : start + length] for start, _ in starts]))
    hidden_NM = torch.cat([hidden_BTM[row, first - start :] for row, (start, first) in enumerate(starts)])
    targets_N = torch.cat([ids_T[first + 1 : start + length + 1] for start, first in starts])
    n_piece = max(1, _MAX_LOGITS // model.config.vocab_size)
    pieces = zip(hidden_NM.split(n_piece), targets_N.split(n_piece), strict=True)
    return torch.cat(
        [-F.cross_entropy(model.output(hidden).float(), target, reduction="none") for hidden, target in pieces]
    )
