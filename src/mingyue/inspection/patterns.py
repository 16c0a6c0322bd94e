"""What a head may be doing: patterns of looking, and how much of its weight a head gives to each on probe texts.

The probes are random tokens of the model's own vocabulary, drawn once and repeated: nothing but position and repetition
tells a head where to look. Tokens of a probe differ, so each has exactly one other occurrence (Olsson et al. 2022,
"In-context Learning and Induction Heads", measure induction on such sequences).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mingyue.errors import GenerationError
from mingyue.inspection.parts import AttentionPart
from mingyue.inspection.subject import Subject
from mingyue.inspection.words import Words
from mingyue.nn import Taps
from mingyue.text import Tokenizer
from mingyue.text.spec import FIRST_LEARNED

Pattern = Literal["previous", "next", "itself", "earlier", "other", "first", "end", "induction", "diagonal", "mixed"]

PATTERN_NAMES: Mapping[Pattern, Words] = {
    "previous": Words("previous token", "前一个词元"),
    "next": Words("next token", "后一个词元"),
    "itself": Words("same token: itself", "同一词元：自身"),
    "earlier": Words("same token: its earlier occurrence", "同一词元：先前那次出现"),
    "other": Words("same token: its other occurrence", "同一词元：另一次出现"),
    "first": Words("first token", "首词元"),
    "end": Words("end mark", "结束标记"),
    "induction": Words("induction: what followed the earlier occurrence", "归纳：先前那次出现之后的词元"),
    "diagonal": Words("alignment: the same place of the source", "对齐：源文的对应位置"),
    "mixed": Words("mixed", "混合"),
}

EARNED = 0.4
"""A label is earned by a score this far above that of uniform attention, on the way from there to 1."""
PROBE_ROWS = 8
MOST_RANDOM_TOKENS = 24
"""Tokens of a random sequence before it is repeated."""
_FEWEST_RANDOM_TOKENS = 3  # with two, what followed the earlier occurrence would be the previous token
_NEIGHBOURS = 1  # places beside the diagonal that still count for it

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """Texts in ids, rows of one length, with what comes next in each."""

    ids_BT: Tensor
    targets_BT: Tensor
    """What comes next at each of the first places, [B, ≤ T]."""
    source_ids_BS: Tensor | None = None
    counted_from: int = 0
    """The first place whose prediction counts for the loss."""
    period: int | None = None
    """Tokens of a random sequence that is repeated; None for texts of people."""

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What the model's forward takes."""
        return (self.ids_BT,) if self.source_ids_BS is None else (self.source_ids_BS, self.ids_BT)


def random_probe(subject: Subject, seed: int) -> Probe:
    """Random sequences, each written twice: of a model of pairs a source and, drawn apart, a target.

    Raises `GenerationError` where context, window or vocabulary leave no room for them.
    """
    config = subject.module.config
    tables = [_usable(subject.tokenizer, config.vocab_size)]
    if subject.source_tokenizer is not None and subject.of_pairs:
        tables.append(
            _usable(subject.source_tokenizer, getattr(config, "source_vocab_size", None) or config.vocab_size)
        )
    window = getattr(config, "window", None) or config.context
    period = min(MOST_RANDOM_TOKENS, (config.context - 1) // 2, window - 1, *map(len, tables))
    if period < _FEWEST_RANDOM_TOKENS:
        raise GenerationError(
            f"this model is too small for probe texts: its context of {config.context} tokens (window {window}) and "
            f"its {min(map(len, tables))} tokens of text leave room for a sequence of {max(period, 0)}, twice; "
            f"it takes {_FEWEST_RANDOM_TOKENS}"
        )
    generator = torch.Generator().manual_seed(seed)
    twice_BT, *sources = (_twice(table, period, generator).to(subject.device) for table in tables)
    starts, ends = (
        torch.full((PROBE_ROWS, 1), mark, device=subject.device) for mark in (subject.tokenizer.bos_id, _end(subject))
    )
    if subject.of_pairs:
        ids_BT, (source_BS,) = torch.cat([starts, twice_BT], dim=1), sources
        return Probe(ids_BT, ids_BT[:, 1:], torch.cat([source_BS, ends], dim=1), period + 1, period)
    ids_BT = torch.cat([starts, twice_BT], dim=1) if subject.starts_with_bos else twice_BT
    # The first token of the second copy cannot be foreseen; what comes after it can, by whoever looks back.
    return Probe(ids_BT, ids_BT[:, 1:], None, period + int(subject.starts_with_bos), period)


def _end(subject: Subject) -> int:
    return (subject.source_tokenizer or subject.tokenizer).eos_id


def _usable(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """Ids of text: learned ones where there are some, else whole characters, else any."""
    spelled = [(index, tokenizer.token_bytes(index)) for index in range(min(vocab_size, tokenizer.vocab_size))]
    readable = {index: piece.decode("utf-8", "replace") for index, piece in spelled if piece}
    text = list(readable)
    whole = [index for index, piece in readable.items() if piece.isprintable() and "\ufffd" not in piece]
    ours = tokenizer.kind in ("char", "bpe")  # whose first ids are single bytes, for what was not learned
    learned = [index for index in whole if ours and index >= FIRST_LEARNED]
    found = next((ids for ids in (learned, whole) if len(ids) >= _FEWEST_RANDOM_TOKENS), text)
    return torch.tensor(found, dtype=torch.long)


def _twice(table: Tensor, period: int, generator: torch.Generator) -> Tensor:
    once_BT = torch.stack([table[torch.randperm(len(table), generator=generator)[:period]] for _ in range(PROBE_ROWS)])
    return torch.cat([once_BT, once_BT], dim=1)


def masks(part: AttentionPart, n_queries: int, n_keys: int, period: int | None) -> dict[Pattern, Tensor]:
    """By pattern mask_TS: the keys of each query that count for it. Empty rows do not count.

    A query with one key only has no choice, and where two patterns mean the same key it speaks for neither: such rows
    are left empty. `period` is that of a repeated sequence, which ends the text but for the end mark of a source.
    """
    found = _cross_masks(n_queries, n_keys) if part.name == "cross" else _self_masks(part, n_queries, period)
    allowed_TS = part.allowed(n_queries, n_keys)
    stacked_PTS = torch.stack(list(found.values())) & allowed_TS & (allowed_TS.sum(-1, keepdim=True) > 1)
    shared_TS = stacked_PTS.sum(0) > 1
    clear_PT = ~(stacked_PTS & shared_TS).any(-1)
    return dict(zip(found, stacked_PTS & clear_PT[..., None], strict=True))


def _self_masks(part: AttentionPart, n_tokens: int, period: int | None) -> dict[Pattern, Tensor]:
    place_T = torch.arange(n_tokens)
    bidirectional = not part.causal
    last = n_tokens - 1 if bidirectional else n_tokens  # where the random tokens end: a source has an end mark
    found: dict[Pattern, Tensor] = {
        "first": _one_hot(torch.where(place_T > 0, 0, -1), n_tokens),
        "previous": _one_hot(place_T - 1, n_tokens),
        "itself": _one_hot(place_T, n_tokens),
    }
    if bidirectional:
        found["next"] = _one_hot(torch.where(place_T + 1 < last, place_T + 1, -1), n_tokens)
        found["end"] = _one_hot(torch.full_like(place_T, last), n_tokens)
    if period is not None:
        begin, again = last - 2 * period, last - period
        second_T, first_T = (place_T >= again) & (place_T < last), (place_T >= begin) & (place_T < again)
        if bidirectional:
            other_T = torch.where(second_T, place_T - period, torch.where(first_T, place_T + period, -1))
            after_T = torch.where((other_T >= 0) & (other_T + 1 < last), other_T + 1, -1)
            found |= {"other": _one_hot(other_T, n_tokens), "induction": _one_hot(after_T, n_tokens)}
        else:
            earlier_T = torch.where(second_T, place_T - period, -1)
            after_T = torch.where(second_T, earlier_T + 1, -1)
            found |= {"earlier": _one_hot(earlier_T, n_tokens), "induction": _one_hot(after_T, n_tokens)}
    return found


def _cross_masks(n_queries: int, n_keys: int) -> dict[Pattern, Tensor]:
    key_S = torch.arange(n_keys)
    diagonal_T = torch.arange(n_queries) * (n_keys - 1) / max(n_queries - 1, 1)
    return {
        "diagonal": (key_S - diagonal_T.round()[:, None]).abs() <= _NEIGHBOURS,
        "first": (key_S == 0).expand(n_queries, -1),
        "end": (key_S == n_keys - 1).expand(n_queries, -1),
    }


def _one_hot(target_T: Tensor, n_keys: int) -> Tensor:
    return target_T[:, None] == torch.arange(n_keys)


@dataclass(frozen=True)
class Scores:
    """How much of its weight each head gives to each of P patterns, with what uniform attention would give."""

    patterns: tuple[Pattern, ...]
    scores_LHP: Floats
    """Mean weight over the queries that count; NaN where none does."""
    uniform_P: Floats
    thresholds_P: Floats
    """uniform + `EARNED` · (1 − uniform)."""

    @property
    def labels_LH(self) -> tuple[tuple[Pattern, ...], ...]:  # noqa: N802
        """The pattern that is furthest above uniform, if it is above its threshold; else "mixed"."""
        return tuple(
            tuple(self.patterns[best] if earned else "mixed" for best, earned in zip(best_H, earned_H, strict=True))
            for best_H, earned_H in zip(self.best_LH, self.excess_LHP.max(-1) >= EARNED, strict=True)
        )

    @property
    def excess_LHP(self) -> Floats:  # noqa: N802
        """How far a score is from uniform (0) to all of the weight (1); −1 where it was not measured."""
        room_P = np.maximum(1 - self.uniform_P, 1e-9)
        return np.nan_to_num((self.scores_LHP - self.uniform_P) / room_P, nan=-1.0)

    @property
    def best_LH(self) -> NDArray[np.int64]:  # noqa: N802
        """The index of the pattern that is furthest above uniform."""
        return self.excess_LHP.argmax(-1)


@torch.inference_mode()
def score_patterns(subject: Subject, part: AttentionPart, probes: Iterable[Probe]) -> Scores:
    """The scores of all heads of a part on all probes together; every query that counts weighs the same."""
    total_PLH, uniform_P, count_P = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    patterns: Sequence[Pattern] = ()
    for probe in probes:
        places = [part.place(layer, "weights") for layer in range(part.n_layers)]
        taps = Taps(places)
        subject.module(*probe.arguments, taps=taps)
        weights_LBHTS = torch.stack([taps.values[place].cpu().double() for place in places])
        n_queries, n_keys = weights_LBHTS.shape[-2:]
        found = masks(part, n_queries, n_keys, probe.period)
        patterns, mask_PTS = tuple(found), torch.stack(list(found.values())).double()
        counts_PT = mask_PTS.any(-1).double()
        total_PLH = total_PLH + torch.einsum("lbhts,pts->plh", weights_LBHTS, mask_PTS)
        share_PT = mask_PTS.sum(-1) / part.allowed(n_queries, n_keys).sum(-1)
        rows = weights_LBHTS.shape[1]
        uniform_P = uniform_P + rows * share_PT.sum(-1)
        count_P = count_P + rows * counts_PT.sum(-1)
    uniform_P = (uniform_P / count_P).numpy()
    scores_LHP = (total_PLH / count_P[:, None, None]).permute(1, 2, 0).numpy()
    return Scores(tuple(patterns), scores_LHP, uniform_P, uniform_P + EARNED * (1 - uniform_P))
