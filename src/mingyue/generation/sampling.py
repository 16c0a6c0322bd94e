"""The choice of the next token.

The steps, each applied to the result of the one before:

1. repetition penalty, on the logits;
2. removal of tokens that are never generated (PAD, BOS, ids without a token; EOS before `min_new_tokens`), and of
   those that would break UTF-8 (`generation.allowed`);
3. temperature; at 0 the most likely token is taken and the following steps are skipped;
4. top-k;
5. top-p, of the remaining distribution, normalised again;
6. min-p;
7. one uniform number picks a token from the cumulative distribution, in the order of ids.

The number is a pure function of (seed, prompt, sample, position), so the rest of the batch changes no draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.sequence import GeneratedSequence
from mingyue.runtime import derive_seed
from mingyue.words import tr

_MIN_TEMPERATURE = 1e-100  # lower ones would overflow fp64; the most likely token has probability 1 long before
_NUCLEUS_FIRST_TRY = 256  # candidates of the first attempt; more only if their probabilities do not reach top_p


@dataclass(frozen=True)
class Choice:
    """A token, and its log P (natural) under the model itself: before any of the steps above, at temperature 1."""

    token: int
    logprob: float | None = None


class Sampler:
    """Chooses the next token of each of several sequences according to `settings`."""

    def __init__(self, settings: GenerateSettings, allowed: AllowedTokens, *, eos_id: int, logprobs: bool) -> None:
        self.settings = settings
        self.logprobs = logprobs
        self._allowed = allowed
        self._eos_id = eos_id

    def choose(self, logits_RV: Tensor, sequences: Sequence[GeneratedSequence]) -> list[Choice]:
        """One choice for each row of `logits_RV`, which it may overwrite. Raises `GenerationError` if they are NaN."""
        settings = self.settings
        logits_RV = logits_RV.float()
        model_RV = logits_RV.log_softmax(dim=-1) if self.logprobs else None
        if settings.repetition_penalty != 1.0:
            seen_RV = torch.stack([sequence.seen for sequence in sequences if sequence.seen is not None])
            logits_RV = penalise(logits_RV, seen_RV, settings.repetition_penalty)
        states_R = torch.tensor([sequence.state for sequence in sequences], device=logits_RV.device)
        self._allowed.remove(logits_RV, states_R)
        if settings.min_new_tokens and self._eos_id < logits_RV.shape[-1]:
            for row, sequence in enumerate(sequences):
                if sequence.n_generated < settings.min_new_tokens:
                    logits_RV[row, self._eos_id] = float("-inf")
        tokens_R = choose_tokens(
            logits_RV, settings, ((one.prompt_index, one.sample, one.n_generated) for one in sequences)
        )
        if model_RV is None:
            return [Choice(token) for token in tokens_R.tolist()]
        logprobs_R = model_RV.gather(1, tokens_R[:, None].to(model_RV.device))[:, 0]
        return [Choice(*both) for both in zip(tokens_R.tolist(), logprobs_R.tolist(), strict=True)]


def choose_tokens(logits_RV: Tensor, settings: GenerateSettings, places: Iterable[tuple[int, int, int]]) -> Tensor:
    """Steps 3 to 7: tokens_R. `places` holds (prompt, sample, position) for each row.

    Raises `GenerationError` for a row that is NaN, or −infinity throughout.
    """
    if settings.temperature == 0.0:
        highest_R, tokens_R = logits_RV.max(dim=-1)
    else:
        uniforms = [uniform(settings.seed, *place) for place in places]
        highest_R, tokens_R = draw(distribution(logits_RV, settings), torch.tensor(uniforms, dtype=torch.float64))
    if not all(highest > float("-inf") for highest in highest_R.tolist()):
        raise no_token_error()
    return tokens_R


def no_token_error() -> GenerationError:
    """The error for logits that leave no token to choose."""
    return GenerationError(
        tr("the model's logits leave no token to choose: they are NaN or −infinity"),
        advice=tr("Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint."),
    )


def uniform(seed: int, prompt: int, sample: int, position: int) -> float:
    """The number in [0, 1), a multiple of 2⁻⁴⁸, that picks this token of this sample of this prompt."""
    return (derive_seed(seed, "token", prompt, sample, position) >> 15) / 2**48


def penalise(logits_RV: Tensor, seen_RV: Tensor, penalty: float) -> Tensor:
    """Lower the logits of tokens already seen, whatever their sign (Keskar et al. 2019, section 4.1)."""
    return torch.where(seen_RV, torch.where(logits_RV > 0, logits_RV / penalty, logits_RV * penalty), logits_RV)


def distribution(logits_RV: Tensor, settings: GenerateSettings) -> Tensor:
    """Steps 3 to 6 at a temperature above 0: probabilities_RV in fp64 that sum to 1; removed tokens have exactly 0.

    Of tokens with equal logits at the limit of top-k, only as many are kept as k allows.
    """
    if logits_RV.device.type == "mps":  # has no fp64
        logits_RV = logits_RV.cpu()
    logits_RV = logits_RV.double() / max(settings.temperature, _MIN_TEMPERATURE)
    if 0 < settings.top_k < logits_RV.shape[-1]:
        kept = logits_RV.topk(settings.top_k)
        logits_RV = torch.full_like(logits_RV, float("-inf")).scatter(-1, kept.indices, kept.values)
    probabilities_RV = logits_RV.softmax(dim=-1)
    if settings.top_p < 1.0:
        probabilities_RV = _nucleus(probabilities_RV, settings.top_p)
    if settings.min_p > 0.0:
        least_R1 = settings.min_p * probabilities_RV.amax(dim=-1, keepdim=True)
        probabilities_RV = probabilities_RV.masked_fill(probabilities_RV < least_R1, 0.0)
    return probabilities_RV / probabilities_RV.sum(dim=-1, keepdim=True)


def _nucleus(probabilities_RV: Tensor, top_p: float) -> Tensor:
    """Keep a token if the more likely ones together do not reach `top_p`. Sorts as few candidates as possible."""
    n_candidates = min(_NUCLEUS_FIRST_TRY, probabilities_RV.shape[-1])
    while True:
        best = probabilities_RV.topk(n_candidates)
        reached_RK = best.values.cumsum(dim=-1)
        if n_candidates == probabilities_RV.shape[-1] or bool((reached_RK[:, -1] >= top_p).all()):
            break
        n_candidates = min(8 * n_candidates, probabilities_RV.shape[-1])
    before_RK = torch.nn.functional.pad(reached_RK, (1, -1))
    kept_RK = best.values.masked_fill(before_RK >= top_p, 0.0)
    return torch.zeros_like(probabilities_RV).scatter(-1, best.indices, kept_RK)


def draw(probabilities_RV: Tensor, uniforms_R: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse cumulative distribution at each row's number: (probability_R, token_R), never a removed token."""
    possible_RV = probabilities_RV > 0
    cumulative_RV = probabilities_RV.cumsum(dim=-1).masked_fill(~possible_RV, -1.0)
    targets_R1 = uniforms_R[:, None].to(cumulative_RV) * cumulative_RV.amax(dim=-1, keepdim=True)
    tokens_R = (cumulative_RV > targets_R1).int().argmax(dim=-1)  # the first of the greatest
    return probabilities_RV.gather(1, tokens_R[:, None])[:, 0], tokens_R
