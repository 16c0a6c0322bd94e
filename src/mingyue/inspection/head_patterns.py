"""Attention patterns, and the share of its attention weight that a head has on each, on probe texts.

A random sequence of tokens from the model's vocabulary, repeated once, has no structure but position and repetition
(Olsson et al. 2022, "In-context Learning and Induction Heads", measure induction this way). On real text, which the
model was trained on, a head may follow patterns that it does not follow on noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mingyue.errors import GenerationError
from mingyue.inspection.parts import AttentionPart
from mingyue.inspection.subject import Subject
from mingyue.nn import Taps
from mingyue.text import Tokenizer
from mingyue.text.spec import FIRST_LEARNED
from mingyue.words import Words, tr

Pattern = Literal[
    "previous", "next", "itself", "earlier", "other", "first", "end", "induction", "diagonal", "mixed",
    "back2", "back3", "back4", "back5", "back6", "back7", "back8",
]  # fmt: skip
BACK: Mapping[Pattern, int] = {
    "back2": 2, "back3": 3, "back4": 4, "back5": 5, "back6": 6, "back7": 7, "back8": 8,
}  # fmt: skip
"""Fixed distances: heads learn them where lines have a fixed length, as in verse."""

PATTERN_NAMES: Mapping[Pattern, Words] = {
    "previous": tr("previous token"),
    "next": tr("next token"),
    "itself": tr("same token: itself"),
    "earlier": tr("same token: its earlier occurrence"),
    "other": tr("same token: its other occurrence"),
    "first": tr("first token"),
    "end": tr("EOS token"),
    "induction": tr("induction: what followed the earlier occurrence"),
    "diagonal": tr("alignment: the corresponding position of the source"),
    "mixed": tr("mixed"),
    **{name: tr("{steps} tokens back", steps) for name, steps in BACK.items()},
}

EARNED = 0.4
"""A label needs a score this far above that of uniform attention, as a share of the distance to 1."""
FEWEST_QUERIES = 8
"""Fewest queries on which a pattern is measured."""
PROBE_ROWS = 8
MOST_RANDOM_TOKENS = 24
"""Tokens of a random sequence before it is repeated."""
_FEWEST_RANDOM_TOKENS = 3  # with two, what followed the earlier occurrence would be the previous token
_NEIGHBOURS = 1  # positions next to the diagonal that count as on it

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """Ids of texts of equal length, with the next token at each position."""

    ids_BT: Tensor
    targets_BT: Tensor
    """The next token at each of the first positions, [B, ≤ T]."""
    source_ids_BS: Tensor | None = None
    counted_from: int = 0
    """The first position whose prediction counts for the loss."""

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """Arguments of the model's forward pass."""
        return (self.ids_BT,) if self.source_ids_BS is None else (self.source_ids_BS, self.ids_BT)

    def sides(self, part: AttentionPart) -> tuple[Tensor, Tensor]:
        """The ids of queries and of keys, (queries_BT, keys_BS)."""
        source_BS = self.ids_BT if self.source_ids_BS is None else self.source_ids_BS
        return {"encoder": (source_BS, source_BS), "cross": (self.ids_BT, source_BS)}.get(
            part.name, (self.ids_BT, self.ids_BT)
        )


def random_probe(subject: Subject, seed: int, rows: int = PROBE_ROWS) -> Probe:
    """`rows` random sequences, each repeated once; for an encoder-decoder model a source and an independent target.

    Raises `GenerationError` if context, window or vocabulary are too small for them.
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
            tr(
                "this model is too small for probe texts: its context of {context} tokens (window "
                "{window}) and its {tables} tokens of text allow a repeated sequence of {period}; at "
                "least {fewest_random_tokens} are needed",
                config.context,
                window,
                min(map(len, tables)),
                max(period, 0),
                _FEWEST_RANDOM_TOKENS,
            )
        )
    generator = torch.Generator().manual_seed(seed)
    twice_BT, *sources = (_twice(table, period, generator, rows).to(subject.device) for table in tables)
    starts, ends = (
        torch.full((rows, 1), index, device=subject.device) for index in (subject.tokenizer.bos_id, _end(subject))
    )
    if subject.of_pairs:
        ids_BT, (source_BS,) = torch.cat([starts, twice_BT], dim=1), sources
        return Probe(ids_BT, ids_BT[:, 1:], torch.cat([source_BS, ends], dim=1), period + 1)
    ids_BT = torch.cat([starts, twice_BT], dim=1) if subject.starts_with_bos else twice_BT
    # The first token of the second copy cannot be predicted; those after it can, by attending to the first copy.
    return Probe(ids_BT, ids_BT[:, 1:], None, period + int(subject.starts_with_bos))


def _end(subject: Subject) -> int:
    return (subject.source_tokenizer or subject.tokenizer).eos_id


def _usable(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """Ids of text: learned ones if there are any, else whole characters, else all."""
    spelled = [(index, tokenizer.token_bytes(index)) for index in range(min(vocab_size, tokenizer.vocab_size))]
    readable = {index: piece.decode("utf-8", "replace") for index, piece in spelled if piece}
    text = list(readable)
    whole = [index for index, piece in readable.items() if piece.isprintable() and "\ufffd" not in piece]
    ours = tokenizer.kind in ("char", "bpe")  # their first ids are single bytes (byte fallback)
    learned = [index for index in whole if ours and index >= FIRST_LEARNED]
    found = next((ids for ids in (learned, whole) if len(ids) >= _FEWEST_RANDOM_TOKENS), text)
    return torch.tensor(found, dtype=torch.long)


def _twice(table: Tensor, period: int, generator: torch.Generator, rows: int) -> Tensor:
    once_BT = torch.stack([table[torch.randperm(len(table), generator=generator)[:period]] for _ in range(rows)])
    return torch.cat([once_BT, once_BT], dim=1)


def masks(part: AttentionPart, queries_BT: Tensor, keys_BS: Tensor) -> dict[Pattern, Tensor]:
    """mask_BTS of each pattern: the keys of each query that count for it, from the ids on both sides.

    Rows are empty for a query with a single key, and for a query with a key that counts for two patterns.
    """
    n_rows, n_queries = queries_BT.shape
    n_keys = keys_BS.shape[1]
    found = _cross_masks(n_queries, n_keys) if part.name == "cross" else _self_masks(part, keys_BS)
    allowed_TS = part.allowed(n_queries, n_keys)
    stacked_PBTS = torch.stack([mask.expand(n_rows, -1, -1) for mask in found.values()])
    stacked_PBTS = stacked_PBTS & allowed_TS & (allowed_TS.sum(-1, keepdim=True) > 1)
    shared_BTS = stacked_PBTS.sum(0) > 1
    clear_PBT = ~(stacked_PBTS & shared_BTS).any(-1)
    return dict(zip(found, stacked_PBTS & clear_PBT[..., None], strict=True))


def _self_masks(part: AttentionPart, ids_BT: Tensor) -> dict[Pattern, Tensor]:
    n_tokens = ids_BT.shape[1]
    step_TS = torch.arange(n_tokens) - torch.arange(n_tokens)[:, None]  # from the query to the key
    key_S = torch.arange(n_tokens)
    same_BTS = (ids_BT[:, :, None] == ids_BT[:, None]) & (step_TS != 0)
    after_BTS = F.pad(same_BTS[:, :, :-1], (1, 0))  # the key follows an occurrence
    found: dict[Pattern, Tensor] = {
        "first": (key_S == 0).expand(n_tokens, -1),
        "previous": step_TS == -1,
        "itself": step_TS == 0,
    }
    if part.causal:
        # A fixed distance counts only where the key belongs to no other pattern.
        free_BTS = ~same_BTS & ~after_BTS & (key_S > 0)
        back: dict[Pattern, Tensor] = {name: free_BTS & (step_TS == -steps) for name, steps in BACK.items()}
        return {**found, **back, "earlier": same_BTS, "induction": after_BTS}
    is_end_S = key_S == n_tokens - 1
    found |= {"next": (step_TS == 1) & ~is_end_S, "end": is_end_S.expand(n_tokens, -1)}
    return {**found, "other": same_BTS, "induction": after_BTS & ~is_end_S}


def _cross_masks(n_queries: int, n_keys: int) -> dict[Pattern, Tensor]:
    key_S = torch.arange(n_keys)
    diagonal_T = torch.arange(n_queries) * (n_keys - 1) / max(n_queries - 1, 1)
    return {
        "diagonal": (key_S - diagonal_T.round()[:, None]).abs() <= _NEIGHBOURS,
        "first": (key_S == 0).expand(n_queries, -1),
        "end": (key_S == n_keys - 1).expand(n_queries, -1),
    }


@dataclass(frozen=True)
class Scores:
    """The share of its weight that each head gives to each of P patterns, and that of uniform attention."""

    patterns: tuple[Pattern, ...]
    scores_LHP: Floats
    """Mean weight over the queries that count; NaN where fewer than `FEWEST_QUERIES` do."""
    uniform_P: Floats
    thresholds_P: Floats
    """uniform + `EARNED` · (1 − uniform)."""

    @property
    def excess_LHP(self) -> Floats:  # noqa: N802
        """The score on the scale from uniform attention (0) to all of the weight (1); −1 where it was not measured."""
        return np.nan_to_num((self.scores_LHP - self.uniform_P) / np.maximum(1 - self.uniform_P, 1e-9), nan=-1.0)


@torch.inference_mode()
def score_patterns(subject: Subject, part: AttentionPart, probes: Iterable[Probe]) -> Scores:
    """The scores of all heads of a part on all probes together, a mean over the queries that count."""
    names = [part.tap(layer, "weights") for layer in range(part.n_layers)]
    total_PLH, uniform_P, count_P = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    patterns: tuple[Pattern, ...] = ()
    for probe in probes:
        taps = Taps(names)
        subject.module(*probe.arguments, taps=taps)
        weights_LBHTS = torch.stack([taps.values[name].cpu().double() for name in names])
        found = masks(part, *(ids.cpu() for ids in probe.sides(part)))
        patterns, mask_PBTS = tuple(found), torch.stack(list(found.values())).double()
        total_PLH = total_PLH + torch.einsum("lbhts,pbts->plh", weights_LBHTS, mask_PBTS)
        keys_T = part.allowed(*mask_PBTS.shape[2:]).sum(-1)
        uniform_P = uniform_P + (mask_PBTS.sum(-1) / keys_T).sum((1, 2))
        count_P = count_P + mask_PBTS.any(-1).sum((1, 2))
    count_P = torch.where(count_P < FEWEST_QUERIES, torch.nan, count_P.double())
    uniform_P = (uniform_P / count_P).numpy()
    scores_LHP = (total_PLH / count_P[:, None, None]).permute(1, 2, 0).numpy()
    return Scores(patterns, scores_LHP, uniform_P, uniform_P + EARNED * (1 - uniform_P))
