"""Beam search: the K most likely prefixes of a translation, extended by one token per step (the paper, section 6.1).

The state is tensors of [texts, beams]: no step loops over hypotheses. The K live hypotheses of text b are rows
b·K … b·K + K − 1 of the cache, the most likely first; the K best of those that ended are in a pool.

- A step takes the 2K best continuations of the K live hypotheses. At most K of them end with EOS, so K stay live.
- A hypothesis that ends is scored by log P / lp(length) and joins the pool. One that reaches the length limit is scored
  in the same way and joins as unfinished.
- A text is done when no live hypothesis can still become one of the `n_best`: log P only falls and lp only grows, so
  the highest score that a live one can reach is log P / lp(limit). Stopping early does not change the result.
- Among equal scores, the hypothesis found earlier ranks first, then that of the better beam.
- Beam 1 is greedy: it takes the most likely token, and ends at EOS.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.generation.decoding import Decoder
from mingyue.generation.hypotheses import Hypothesis, SourceBatch, length_penalties
from mingyue.generation.sampling import no_token_error

if TYPE_CHECKING:
    from mingyue.config import TranslateSettings

_STRIPS = 512
_COMPACT_SHARE = 0.25  # of the texts must be done before their rows are removed, which costs about as much as a step


def beam_search(decoder: Decoder, batch: SourceBatch, settings: TranslateSettings) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses for each row of the batch, the best first; fewer only where no more exist.

    Raises `GenerationError` when the model's output is NaN.
    """
    search = _Search(decoder, batch, settings)
    while search.active:
        search.step(search.decoding.step(search.ids_R).log_softmax(dim=-1))
    return search.results


class _Pool:
    """The best ended hypotheses of each text, the best first; −infinity where there are none yet."""

    def __init__(self, n_texts: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.scores_BK = torch.full((n_texts, size), -math.inf, dtype=dtype, device=device)
        self.totals_BK = self.scores_BK.clone()
        self.codes_BK = torch.zeros((n_texts, size), dtype=torch.long, device=device)

    def add(self, totals_BC: Tensor, codes_BC: Tensor, penalty: float) -> None:
        """Add candidates of one length; those with −infinity are ignored."""
        size = self.scores_BK.shape[1]
        scores_BN = torch.cat([self.scores_BK, totals_BC / penalty], dim=1)
        scores_BN, order_BN = scores_BN.sort(dim=1, descending=True, stable=True)
        self.scores_BK, order_BK = scores_BN[:, :size], order_BN[:, :size]
        self.totals_BK = torch.cat([self.totals_BK, totals_BC], dim=1).gather(1, order_BK)
        self.codes_BK = torch.cat([self.codes_BK, codes_BC], dim=1).gather(1, order_BK)

    def keep(self, rows: Tensor) -> None:
        self.scores_BK, self.totals_BK, self.codes_BK = (
            held_BK.index_select(0, rows) for held_BK in (self.scores_BK, self.totals_BK, self.codes_BK)
        )


class _Search:
    """The state of the search for a batch. Row i of every [texts, …] tensor belongs to text `_texts[i]`."""

    def __init__(self, decoder: Decoder, batch: SourceBatch, settings: TranslateSettings) -> None:
        device, n_texts, longest = batch.source_BS.device, len(batch.limits), max(batch.limits)
        self.results: list[list[Hypothesis]] = [[] for _ in range(n_texts)]
        self._batch, self._vocab_size = batch, decoder.vocab_size
        self._n_beams, self._n_best = settings.beam, settings.n_best
        self._width = 1 if settings.beam == 1 else 2 * settings.beam
        self.decoding = decoder.start(batch, 1, longest)
        dtype = torch.float32 if device.type == "mps" else torch.float64  # sums of many; MPS has no fp64
        penalties = length_penalties(longest, settings.length_penalty)
        self._penalties = penalties
        self._length = 0
        self._texts = torch.arange(n_texts, device=device)
        self._limits_B1 = torch.tensor(batch.limits, device=device)[:, None]
        last = [[penalties[limit]] for limit in batch.limits]
        self._last_penalty_B1 = torch.tensor(last, dtype=dtype, device=device)
        # Each text starts with one empty live hypothesis.
        self.ids_R = torch.full((n_texts,), batch.bos_id, device=device)
        self._live_BK = torch.zeros((n_texts, 1), dtype=dtype, device=device)
        self._states_R = torch.zeros(n_texts, dtype=torch.long, device=device)
        self._pool = _Pool(n_texts, self._n_beams, dtype, device)
        # At length t, live hypothesis k of text b is hypothesis `beams[t, b, k]` of length t − 1 and a token.
        self._beams_TBK = torch.zeros((longest + 1, n_texts, self._n_beams), dtype=torch.long, device=device)
        self._tokens_TBK = torch.zeros_like(self._beams_TBK)

    @property
    def active(self) -> bool:
        """Whether any text is not done."""
        return len(self._texts) > 0

    def step(self, logprobs_RV: Tensor) -> None:
        """Extend the live hypotheses by one token, given log P of the next token of each."""
        self._length += 1
        totals_BC, beams_BC, tokens_BC = self._candidates(logprobs_RV)
        ends_BC = tokens_BC == self._batch.eos_id
        at_limit_B1 = self._limits_B1 == self._length if self._length in self._batch.limits else None
        self._collect(totals_BC, beams_BC, tokens_BC, ends_BC if at_limit_B1 is None else ends_BC | at_limit_B1)
        # Those that stay live, in their order: False sorts before True.
        order_BK = ends_BC.byte().sort(dim=1, stable=True).indices[:, : self._n_beams]
        live_BK = totals_BC.masked_fill(ends_BC, -math.inf).gather(1, order_BK)
        best_B1, least_B1 = live_BK[:, :1] / self._last_penalty_B1, self._pool.scores_BK[:, self._n_best - 1, None]
        done_B1 = best_B1 <= least_B1  # false for NaN, which is therefore found at the length limit
        if at_limit_B1 is not None:
            done_B1 = done_B1 | at_limit_B1
        self._advance(live_BK, beams_BC.gather(1, order_BK), tokens_BC.gather(1, order_BK), done_B1)

    def _candidates(self, logprobs_RV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each text, the best first: (log P, the beam continued, its next token)."""
        n_texts, n_live = self._live_BK.shape
        self._batch.mask.remove(logprobs_RV, self._states_R)
        # The best of a text are among the best of their own rows.
        logprobs_RC, tokens_RC = largest(logprobs_RV, self._width)
        n_each = tokens_RC.shape[1]
        totals_BN = (self._live_BK[:, :, None] + logprobs_RC.view(n_texts, n_live, n_each)).flatten(1)
        totals_BN, order_BN = totals_BN.sort(dim=1, descending=True, stable=True)
        order_BC = order_BN[:, : self._width]
        tokens_BC = tokens_RC.reshape(n_texts, -1).gather(1, order_BC)
        return totals_BN[:, : self._width], order_BC // n_each, tokens_BC

    def _collect(self, totals_BC: Tensor, beams_BC: Tensor, tokens_BC: Tensor, ended_BC: Tensor) -> None:
        """Add the hypotheses that end here to the pool. A code holds where each ended: length, beam, last token."""
        if bool(ended_BC.any()):
            codes_BC = (self._length * self._n_beams + beams_BC) * self._vocab_size + tokens_BC
            ended_totals_BC = totals_BC.masked_fill(~ended_BC, -math.inf)
            self._pool.add(ended_totals_BC, codes_BC, self._penalties[self._length])

    def _advance(self, live_BK: Tensor, beams_BK: Tensor, tokens_BK: Tensor, done_B1: Tensor) -> None:
        """Record the live hypotheses and reorder the cache to match. Texts that are done are removed together."""
        n_before, n_live = self._live_BK.shape[1], live_BK.shape[1]
        self._beams_TBK[self._length, self._texts, :n_live] = beams_BK
        self._tokens_TBK[self._length, self._texts, :n_live] = tokens_BK
        rows_BK = beams_BK + torch.arange(0, len(beams_BK) * n_before, n_before, device=beams_BK.device)[:, None]
        done = done_B1[:, 0].tolist()
        n_done = sum(done)
        if n_done == len(done) or n_done >= _COMPACT_SHARE * len(done):
            self._finish([row for row, is_done in enumerate(done) if is_done])
            staying = [row for row, is_done in enumerate(done) if not is_done]
            kept = torch.tensor(staying, dtype=torch.long, device=beams_BK.device)
            live_BK, tokens_BK, rows_BK = (held_BK.index_select(0, kept) for held_BK in (live_BK, tokens_BK, rows_BK))
            self._texts, self._limits_B1 = self._texts[kept], self._limits_B1[kept]
            self._last_penalty_B1 = self._last_penalty_B1[kept]
            self._pool.keep(kept)
            if staying:
                self.decoding.keep_texts(staying)
        elif n_done:  # their rows stay, without effect
            live_BK = live_BK.masked_fill(done_B1, -math.inf)
        self._live_BK, self.ids_R = live_BK, tokens_BK.flatten()
        rows_R = rows_BK.flatten()
        self._states_R = self._batch.mask.after_each(self._states_R[rows_R], tokens_BK.flatten())
        if rows := rows_R.tolist():
            self.decoding.keep_rows(rows)

    def _finish(self, rows: list[int]) -> None:
        """Store the results of texts that are done."""
        for row in rows:
            text = int(self._texts[row])
            scores, totals, codes = (
                held_BK[row, : self._n_best].tolist()
                for held_BK in (self._pool.scores_BK, self._pool.totals_BK, self._pool.codes_BK)
            )
            if not scores[0] > -math.inf:
                raise no_token_error()
            beams, tokens = (held[: self._length, text].tolist() for held in (self._beams_TBK, self._tokens_TBK))
            for score, total, code in zip(scores, totals, codes, strict=True):
                if score > -math.inf:
                    ids = self._ids(code, beams, tokens)
                    self.results[text].append(Hypothesis(ids, total, score, ids[-1] == self._batch.eos_id))

    def _ids(self, code: int, beams: list[list[int]], tokens: list[list[int]]) -> tuple[int, ...]:
        """The tokens of a hypothesis, followed from its end to its beginning."""
        code, token = divmod(code, self._vocab_size)
        length, beam = divmod(code, self._n_beams)
        ids = [token]
        for position in range(length - 1, 0, -1):
            ids.append(tokens[position][beam])
            beam = beams[position][beam]
        return tuple(reversed(ids))


def largest(x_RV: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest values of each row and their indices, [R, n] each, the largest first; all of a shorter row.

    In a long row, the n largest lie in those n of 512 strips whose maxima are the largest: finding maxima is much
    cheaper than sorting, and only n strips are left to sort.
    """
    n_values = x_RV.shape[1]
    if n == 1:
        highest = x_RV.max(dim=1, keepdim=True)
        return highest.values, highest.indices
    if n > _STRIPS // 8 or n_values < 4 * _STRIPS:
        best = x_RV.topk(min(n, n_values), dim=1)
        return best.values, best.indices
    n_whole, n_rest = divmod(n_values, _STRIPS)
    whole_RV = x_RV[:, : n_whole * _STRIPS]
    highest_RS = whole_RV.unflatten(1, (n_whole, _STRIPS)).amax(dim=1)  # strip s: indices s, s + 512, s + 1024 …
    if n_rest:
        highest_RS[:, :n_rest] = torch.maximum(highest_RS[:, :n_rest], x_RV[:, n_whole * _STRIPS :])
    strips_RN = highest_RS.topk(n, dim=1, sorted=False).indices
    offsets = torch.arange(0, n_values, _STRIPS, device=x_RV.device)
    indices_RC = (strips_RN[:, :, None] + offsets).flatten(1)
    outside_RC = indices_RC >= n_values
    values_RC = x_RV.gather(1, indices_RC.masked_fill(outside_RC, 0)).masked_fill(outside_RC, -math.inf)
    best = values_RC.topk(n, dim=1)
    return best.values, indices_RC.gather(1, best.indices)
