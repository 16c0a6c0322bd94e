"""The choice of the next token.

The steps, each applied to the result of the one before:

1. repetition penalty, presence and frequency penalty, then logit bias, on the logits;
2. removal of tokens that are never generated (PAD, BOS, ids without a token; EOS before `min_new_tokens` and with
   `ignore_eos`), and of those that would break UTF-8 (`generation.allowed`);
3. temperature; at 0 the most likely token is taken and the following steps are skipped;
4. top-k;
5. top-p, of the remaining distribution, normalised again;
6. min-p;
7. one uniform number picks a token from the cumulative distribution, in the order of ids.

The number is a pure function of (seed, prompt, sample, position), and each row is computed as if it were alone, so the
rest of the batch changes no draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation.sequence import GeneratedSequence
from mingyue.runtime import derive_seed
from mingyue.words import tr

_MIN_TEMPERATURE = 1e-100  # lower ones would overflow fp64; the most likely token has probability 1 long before
_NUCLEUS_FIRST_TRY = 256  # candidates of the first attempt; more only if their probabilities do not reach top_p

Logits = npt.NDArray[np.floating[Any]]
Float64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Choice:
    """A token, and log P (natural) under the model itself: before any of the steps above, at temperature 1."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens and their log P, the likeliest first, as many as were asked for."""


def choose(
    logits_RV: npt.NDArray[np.float32], sequences: Sequence[GeneratedSequence]
) -> list[Choice | GenerationError]:
    """The next token of each sequence, by its own settings. Overwrites `logits_RV`.

    A row that leaves no token to choose (it is NaN, or −infinity throughout) gets an error in place of a choice.
    """
    logprobs = [
        None if sequence.request.top_logprobs is None else log_softmax(logits_V)
        for logits_V, sequence in zip(logits_RV, sequences, strict=True)
    ]
    for logits_V, sequence in zip(logits_RV, sequences, strict=True):
        _adjust(logits_V, sequence)
    choices: dict[int, Choice] = {}
    for rows in _alike(sequences):
        settings = sequences[rows[0]].request.settings
        drawn = [] if settings.temperature == 0.0 else [_uniform_of(sequences[row]) for row in rows]
        group_RV = logits_RV if len(rows) == len(sequences) else logits_RV[rows]
        for row, token in zip(rows, choose_tokens(group_RV, settings, drawn), strict=True):
            logprobs_V, n_top = logprobs[row], sequences[row].request.top_logprobs
            if token is None:
                continue
            if logprobs_V is None or n_top is None:
                choices[row] = Choice(token)
            else:
                choices[row] = Choice(token, float(logprobs_V[token]), top_tokens(logprobs_V, n_top))
    return [choices.get(row) or no_token_error() for row in range(len(sequences))]


def _alike(sequences: Sequence[GeneratedSequence]) -> list[list[int]]:
    """Rows grouped by the settings of steps 3 to 6, so that a step of numpy serves many of them."""
    groups: dict[object, list[int]] = {}
    for row, sequence in enumerate(sequences):
        asked = sequence.request.settings
        groups.setdefault((asked.temperature, asked.top_k, asked.top_p, asked.min_p), []).append(row)
    return list(groups.values())


def _uniform_of(sequence: GeneratedSequence) -> float:
    return uniform(sequence.request.settings.seed, *sequence.place)


def _adjust(logits_V: npt.NDArray[np.float32], sequence: GeneratedSequence) -> None:
    """Steps 1 and 2, in place."""
    settings = sequence.request.settings
    if sequence.seen is not None:
        logits_V[:] = penalise(logits_V, sequence.seen, settings.repetition_penalty)
    if sequence.counts is not None:
        counts_V = sequence.counts
        logits_V -= settings.presence_penalty * (counts_V > 0) + settings.frequency_penalty * counts_V
    for token, bias in sequence.request.logit_bias.items():
        logits_V[token] += bias
    sequence.allowed.remove(logits_V[None], [sequence.state])
    too_early = settings.ignore_eos or sequence.n_generated < settings.min_new_tokens
    if too_early and sequence.eos_id < len(logits_V):
        logits_V[sequence.eos_id] = -np.inf


def choose_tokens(logits_RV: Logits, settings: GenerateSettings, uniforms: Sequence[float]) -> list[int | None]:
    """Steps 3 to 7: a token for each row, or None where none can be chosen.

    `uniforms`: the number of each row (see `uniform`); not read at temperature 0.
    """
    each_R = np.arange(len(logits_RV))
    if settings.temperature == 0.0:
        tokens_R = logits_RV.argmax(axis=-1)  # of NaN, where there is one
        possible_R = logits_RV[each_R, tokens_R] > -np.inf
    else:
        possible_R = logits_RV.max(axis=-1) > -np.inf  # False for NaN
        if not possible_R.all():
            logits_RV = np.where(possible_R[:, None], logits_RV, 0.0)
        ids_RK, probabilities_RK = _candidates(logits_RV, settings)
        _, drawn_R = draw(probabilities_RK, np.array(uniforms))
        tokens_R = drawn_R if ids_RK is None else ids_RK[each_R, drawn_R]
    return [token if possible else None for token, possible in zip(tokens_R.tolist(), possible_R.tolist(), strict=True)]


def no_token_error() -> GenerationError:
    """The error for logits that leave no token to choose."""
    return GenerationError(
        tr("the model's logits leave no token to choose: they are NaN or −infinity"),
        advice=tr("Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint."),
    )


def uniform(seed: int, prompt: int, sample: int, position: int) -> float:
    """The number in [0, 1), a multiple of 2⁻⁴⁸, that picks this token of this sample of this prompt."""
    return (derive_seed(seed, "token", prompt, sample, position) >> 15) / 2**48


def log_softmax(logits_V: Logits) -> Float64:
    """log P of every token, natural, in fp64: [..., V]."""
    shifted = logits_V.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def top_tokens(logprobs_V: Float64, n_top: int) -> tuple[tuple[int, float], ...]:
    """The `n_top` likeliest tokens and their log P, the likeliest first; of equal ones the lower id first."""
    n_top = min(n_top, len(logprobs_V))
    if n_top == 0:
        return ()
    found = np.argpartition(-logprobs_V, n_top - 1)[:n_top]
    order = np.lexsort((found, -logprobs_V[found]))
    return tuple((int(token), float(logprobs_V[token])) for token in found[order])


def penalise(logits: npt.NDArray[np.float32], seen: npt.NDArray[np.bool_], penalty: float) -> npt.NDArray[np.float32]:
    """Lower the logits of tokens already seen, whatever their sign (Keskar et al. 2019, section 4.1)."""
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits).astype(logits.dtype)


def distribution(logits_RV: Logits, settings: GenerateSettings) -> Float64:
    """Steps 3 to 6 at a temperature above 0: probabilities_RV in fp64 that sum to 1; removed tokens have exactly 0.

    Of tokens with equal logits at the limit of top-k, only as many are kept as k allows.
    """
    ids_RK, probabilities_RK = _candidates(logits_RV, settings)
    if ids_RK is None:
        return probabilities_RK
    probabilities_RV = np.zeros(logits_RV.shape)
    np.put_along_axis(probabilities_RV, ids_RK, probabilities_RK, axis=-1)
    return probabilities_RV


def _candidates(logits_RV: Logits, settings: GenerateSettings) -> tuple[Ids | None, Float64]:
    """Steps 3 to 6: the ids that top-k leaves, ascending (None: all), and the probability of each in fp64."""
    ids_RK: Ids | None = None
    if 0 < settings.top_k < logits_RV.shape[-1]:
        k = settings.top_k
        ids_RK = np.sort(np.argpartition(logits_RV, -k, axis=-1)[:, -k:], axis=-1)
        logits_RV = logits_RV[np.arange(len(logits_RV))[:, None], ids_RK]
    scaled_RK = logits_RV.astype(np.float64) / max(settings.temperature, _MIN_TEMPERATURE)
    probabilities_RK = np.exp(scaled_RK - scaled_RK.max(axis=-1, keepdims=True))
    probabilities_RK /= probabilities_RK.sum(axis=-1, keepdims=True)
    if settings.top_p < 1.0:
        probabilities_RK = np.stack([_nucleus(row_K, settings.top_p) for row_K in probabilities_RK])
    if settings.min_p > 0.0:
        least_R1 = settings.min_p * probabilities_RK.max(axis=-1, keepdims=True)
        probabilities_RK[probabilities_RK < least_R1] = 0.0
    return ids_RK, probabilities_RK / probabilities_RK.sum(axis=-1, keepdims=True)


def _nucleus(probabilities_K: Float64, top_p: float) -> Float64:
    """Keep a token if the more likely ones together do not reach `top_p`. Sorts as few candidates as possible."""
    n_candidates = min(_NUCLEUS_FIRST_TRY, len(probabilities_K))
    while True:
        best = np.argpartition(-probabilities_K, n_candidates - 1)[:n_candidates]
        best = best[np.lexsort((best, -probabilities_K[best]))]
        reached = probabilities_K[best].cumsum()
        if n_candidates == len(probabilities_K) or reached[-1] >= top_p:
            break
        n_candidates = min(8 * n_candidates, len(probabilities_K))
    kept = best[np.concatenate([[0.0], reached[:-1]]) < top_p]
    left_K = np.zeros_like(probabilities_K)
    left_K[kept] = probabilities_K[kept]
    return left_K


def draw(probabilities_RK: Float64, uniforms_R: Float64) -> tuple[Float64, Ids]:
    """Inverse cumulative distribution at each row's number: (probability_R, index_R), never one with probability 0."""
    cumulative_RK = probabilities_RK.cumsum(axis=-1)
    targets_R1 = uniforms_R[:, None] * cumulative_RK[:, -1:]
    index_R = ((cumulative_RK > targets_R1) & (probabilities_RK > 0)).argmax(axis=-1)  # the first
    return probabilities_RK[np.arange(len(index_R)), index_R], index_R
