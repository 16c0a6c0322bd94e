"""How the next token is chosen.

Each step sees what the one before it left:

1. repetition penalty, on the logits;
2. tokens that are never written are removed (PAD, BOS, ids that spell nothing; the end mark before `min_new_tokens`);
3. temperature; at 0 the likeliest token is taken and the rest does not apply;
4. top-k;
5. top-p, of the distribution that is left, summed to 1 again;
6. min-p;
7. one uniform number picks a token from the cumulative distribution, in the order of ids.

The number is a pure function of (seed, prompt, sample, position): who else is in the batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation.writing import Writing
from mingyue.runtime import derive_seed

_LEAST_TEMPERATURE = 1e-100  # below it, quotients would leave fp64; the likeliest token long has it all
_NUCLEUS_FIRST_TRY = 256  # tokens looked at before a nucleus is searched in more of the vocabulary


@dataclass(frozen=True)
class Choice:
    """A token, and log P (natural) that the model itself gives it: before any of the steps above, at temperature 1."""

    token: int
    logprob: float | None = None


class Sampler:
    """Chooses the next token of each of several texts, as `settings` say."""

    def __init__(
        self, settings: GenerateSettings, *, never: Collection[int], end: int, device: torch.device, logprobs: bool
    ) -> None:
        self.settings = settings
        self.logprobs = logprobs
        self._never = torch.tensor(sorted(never), dtype=torch.long, device=device)
        self._end = end

    def choose(self, logits_RV: Tensor, texts: Sequence[Writing]) -> list[Choice]:
        """One choice for each row of `logits_RV`, which it may overwrite. Raises `GenerationError` if they are NaN."""
        settings = self.settings
        logits_RV = logits_RV.float()
        model_RV = logits_RV.log_softmax(dim=-1) if self.logprobs else None
        if settings.repetition_penalty != 1.0:
            seen_RV = torch.stack([text.seen for text in texts if text.seen is not None])
            logits_RV = penalise(logits_RV, seen_RV, settings.repetition_penalty)
        logits_RV.index_fill_(1, self._never, float("-inf"))
        if settings.min_new_tokens and self._end < logits_RV.shape[-1]:
            for row, text in enumerate(texts):
                if text.n_written < settings.min_new_tokens:
                    logits_RV[row, self._end] = float("-inf")
        if settings.temperature == 0.0:
            highest_R, tokens_R = logits_RV.max(dim=-1)
        else:
            uniforms = [uniform(settings.seed, text.prompt_index, text.sample, text.n_written) for text in texts]
            probabilities_RV = distribution(logits_RV, settings)
            highest_R, tokens_R = draw(probabilities_RV, torch.tensor(uniforms, dtype=torch.float64))
        if not all(highest > float("-inf") for highest in highest_R.tolist()):
            raise GenerationError(
                "the model's logits leave no token to choose: they are NaN or −infinity",
                advice="Its weights are damaged, or it was saved after training diverged: use an earlier checkpoint.",
            )
        if model_RV is None:
            return [Choice(token) for token in tokens_R.tolist()]
        logprobs_R = model_RV.gather(1, tokens_R[:, None].to(model_RV.device))[:, 0]
        return [Choice(*both) for both in zip(tokens_R.tolist(), logprobs_R.tolist(), strict=True)]


def uniform(seed: int, prompt: int, sample: int, position: int) -> float:
    """The number in [0, 1), in steps of 2⁻⁴⁸, that decides this token of this sample of this prompt."""
    return (derive_seed(seed, "token", prompt, sample, position) >> 15) / 2**48


def penalise(logits_RV: Tensor, seen_RV: Tensor, penalty: float) -> Tensor:
    """Logits of tokens already seen, made less likely whatever their sign (Keskar et al. 2019, section 4.1)."""
    return torch.where(seen_RV, torch.where(logits_RV > 0, logits_RV / penalty, logits_RV * penalty), logits_RV)


def distribution(logits_RV: Tensor, settings: GenerateSettings) -> Tensor:
    """Steps 3 to 6 at a temperature above 0: probabilities_RV in fp64 that sum to 1; what was removed has exactly 0.

    Of tokens that tie at the border of top-k, as many stay as make k.
    """
    if logits_RV.device.type == "mps":  # has no fp64
        logits_RV = logits_RV.cpu()
    logits_RV = logits_RV.double() / max(settings.temperature, _LEAST_TEMPERATURE)
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
    """Keep a token if those likelier than it do not reach `top_p` together. Sorts no more than it must."""
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
    """The inverse cumulative distribution at each row's number: (probability_R, token_R), never a removed token."""
    possible_RV = probabilities_RV > 0
    cumulative_RV = probabilities_RV.cumsum(dim=-1).masked_fill(~possible_RV, -1.0)
    targets_R1 = uniforms_R[:, None].to(cumulative_RV) * cumulative_RV.amax(dim=-1, keepdim=True)
    tokens_R = (cumulative_RV > targets_R1).int().argmax(dim=-1)  # the first of the greatest
    return probabilities_RV.gather(1, tokens_R[:, None])[:, 0], tokens_R
