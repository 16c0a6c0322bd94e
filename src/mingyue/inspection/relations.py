"""The head that follows a relation most, looked for on one half of a text and measured on the other.

Relations that hold in any text: to the token before, to punctuation, and to places of lines and their ends, as in
verse. A head that is best among many looks better than it is, so that it is measured on windows that did not choose
it, beside uniform attention and beside the best head of an untrained model, which is chosen in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mingyue.charts import BarChart, Chart
from mingyue.errors import GenerationError
from mingyue.inspection.command import FILE, SEED, STEP, TEXT, Command
from mingyue.inspection.labels import decimals
from mingyue.inspection.parts import AttentionPart, attention_parts
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.tokens import token_string
from mingyue.inspection.view import View
from mingyue.models import build_model
from mingyue.nn import Taps
from mingyue.words import Language, TextTable, Words, tr

Relation = Literal["previous", "punctuation", "line start", "line above", "line end"]
RELATION_NAMES: Mapping[Relation, Words] = {
    "previous": tr("previous token"),
    "punctuation": tr("last punctuation or line end"),
    "line start": tr("first token of the line"),
    "line above": tr("same place in the line before"),
    "line end": tr("line ends, before a line end (rhyme)"),
}
_SHORT: Mapping[Relation, Words] = {
    "previous": tr("previous"),
    "punctuation": tr("punctuation"),
    "line start": tr("line start"),
    "line above": tr("line above"),
    "line end": tr("rhyme"),
}
"""Names below the bars."""
MOST_WINDOWS = 64
FEWEST_QUERIES = 8
"""Fewest queries of a half on which a relation is measured."""
_WINDOW = 96
"""Most tokens of a window: a few lines, so that a text has many windows."""
_FEWEST_WINDOWS = 4
_BREAKS = frozenset("\n\r,.;:!?，。；：！？、…")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """The head that follows a relation most."""

    relation: Relation
    layer: int
    head: int
    weight: float
    """Its mean weight on the tokens of the relation, on the half that did not choose it."""
    low: float
    high: float
    """95 % interval over the windows of that half."""
    uniform: float
    """The same of uniform attention."""
    untrained: float
    """The same of the best head of an untrained model, which is chosen in the same way."""
    queries: int

    @property
    def follows(self) -> bool:
        """Whether the interval is above both controls."""
        return self.low > max(self.uniform, self.untrained)


@dataclass(frozen=True)
class RelationsView(View):
    """The best head of each relation."""

    title = tr("Heads by relation")

    found: tuple[Found, ...]
    windows: int

    def charts(self, language: Language = "en") -> list[Chart]:
        """The weight of the best head of each relation beside both controls."""
        kinds = (("best", tr("best head")), ("uniform", tr("uniform")),
                 ("untrained", tr("untrained")))  # fmt: skip
        rows = [
            {
                "relation": f"{_SHORT[one.relation].of(language)} ({one.layer}.{one.head})",
                "kind": name.of(language),
                "weight": value,
                "low": one.low if kind == "best" else value,
                "high": one.high if kind == "best" else value,
            }
            for one in self.found
            for (kind, name), value in zip(kinds, (one.weight, one.uniform, one.untrained), strict=True)
        ]
        chart = BarChart(
            self.title.of(language), rows, x="relation", y="weight", series="kind", low="low", high="high",
            x_title=tr("relation (layer.head)").of(language),
            y_title=tr("share of the weight").of(language), note=self._note(language),
        )  # fmt: skip
        return [chart]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A row for each relation: its best head, the weight with its interval, both controls."""
        names = [tr("relation"), tr("layer"), tr("head"), tr("weight"),
                 tr("95%"), tr("uniform"), tr("untrained"),
                 tr("queries"), tr("follows")]  # fmt: skip
        yes = tr("yes"), tr("no")
        rows = [
            [
                RELATION_NAMES[one.relation].of(language), str(one.layer), str(one.head), decimals(one.weight, 2),
                f"{decimals(one.low, 2)}–{decimals(one.high, 2)}", decimals(one.uniform, 2),
                decimals(one.untrained, 2), f"{one.queries:,}", yes[not one.follows].of(language),
            ]
            for one in self.found
        ]  # fmt: skip
        columns = [name.of(language) for name in names]
        return [TextTable(self.title.of(language), columns, rows, right=columns[1:-1], note=self._note(language))]

    def to_dict(self) -> dict[str, Any]:
        """The rows by the names of `Found`."""
        return {"windows": self.windows, "found": [{**vars(one), "follows": one.follows} for one in self.found]}

    def _note(self, language: Language) -> str:
        return tr(
            "The text was read in {windows} windows. Each head was chosen on every other window "
            "and measured on the rest: the share of its weight on the tokens of the relation, "
            "for the queries that have any. A head follows a relation if its interval is above "
            "uniform attention and above the best head of an untrained model.",
            self.windows,
        ).of(language)


def relations_view(subject: Subject, reading: Reading, *, seed: int = 0) -> RelationsView:
    """The best head of each relation in a text of any length. `seed` is that of the untrained model.

    Raises `GenerationError` for an encoder-decoder model, and for a text that is too short to be divided.
    """
    if subject.of_pairs:
        raise GenerationError(
            tr("the search for relations reads one text, and an encoder-decoder model reads two"),
            advice=tr("Use the view heads."),
        )
    (part,) = attention_parts(subject)
    windows = _windows(subject, reading)
    masks = [_masks(subject, part, ids_T) for ids_T in windows]
    shares_WPLH = _shares(subject, part, windows, masks)
    untrained = replace(subject, module=build_model(subject.module.config, seed=seed).to(subject.device).eval())
    control_WPLH = _shares(untrained, part, windows, masks)
    counts_WP = np.array([[int(mask_TS.any(-1).sum()) for mask_TS in found] for found in masks])
    keys_T = [part.allowed(len(ids_T), len(ids_T)).sum(-1) for ids_T in windows]
    uniform_WP = np.array(
        [
            [float((mask_TS.sum(-1) / own_T).sum()) for mask_TS in found]
            for found, own_T in zip(masks, keys_T, strict=True)
        ]
    )
    rows: list[Found] = []
    for number, relation in enumerate(RELATION_NAMES):
        counts_W = counts_WP[:, number]
        if min(counts_W[0::2].sum(), counts_W[1::2].sum()) < FEWEST_QUERIES:
            continue
        layer, head = _best(shares_WPLH[:, number], counts_W)
        weight, low, high = _mean(shares_WPLH[1::2, number, layer, head], counts_W[1::2])
        control = _best(control_WPLH[:, number], counts_W)
        untrained_weight = _mean(control_WPLH[1::2, number, control[0], control[1]], counts_W[1::2])[0]
        uniform = float(uniform_WP[1::2, number].sum() / counts_W[1::2].sum())
        rows.append(
            Found(relation, layer, head, weight, low, high, uniform, untrained_weight, int(counts_W[1::2].sum()))
        )
    return RelationsView(tuple(rows), len(windows))


def _windows(subject: Subject, reading: Reading) -> list[Tensor]:
    """ids_T of windows of equal length, without overlap; BOS begins each where the model reads it."""
    bos = int(subject.starts_with_bos)
    ids_T = reading.ids_T[bos:]
    size = min(_WINDOW, subject.module.config.context - bos, len(ids_T) // _FEWEST_WINDOWS)
    if size < FEWEST_QUERIES:
        raise GenerationError(
            tr(
                "the text has {n_ids_t} tokens; to choose heads on one half and measure them on the "
                "other, at least {fewest_windows} are needed",
                len(ids_T),
                _FEWEST_WINDOWS * FEWEST_QUERIES,
            ),
            advice=tr("Give a longer text, such as a held-out file with --file."),
        )
    cut = ids_T[: size * min(MOST_WINDOWS, len(ids_T) // size)].split(size)
    return [torch.cat([reading.ids_T[:bos], own_T]) for own_T in cut]


def _masks(subject: Subject, part: AttentionPart, ids_T: Tensor) -> list[Tensor]:
    """mask_TS of each relation: the keys of each query that count for it. Queries with a single key are left out."""
    size = len(ids_T)
    breaks = [set(token_string(subject.tokenizer, int(index)) or "") for index in ids_T]
    is_break = [bool(found) and bool(found & _BREAKS) and not any(char.isalnum() for char in found) for found in breaks]
    first = int(subject.starts_with_bos)
    # A window may begin within a line, so that its first token is no start.
    starts = [at for at in range(first + 1, size) if is_break[at - 1] and not is_break[at]]
    ends = [at - 1 for at in range(first + 1, size) if is_break[at] and not is_break[at - 1]]
    masks = {relation: torch.zeros(size, size, dtype=torch.bool) for relation in RELATION_NAMES}
    for query in range(first + 1, size):
        masks["previous"][query, query - 1] = query > first
        # A token that is the previous one too would count for both relations.
        last = max((at for at in range(first, query) if is_break[at]), default=query)
        masks["punctuation"][query, last] = last < query - 1
        before = [start for start in starts if start <= query]
        if is_break[query] or not before:
            continue
        masks["line start"][query, before[-1]] = before[-1] < query - 1
        if len(before) > 1:
            above = before[-2] + query - before[-1]
            masks["line above"][query, above] = above < before[-1] and not is_break[above]
        if query + 1 in ends:
            masks["line end"][query, [end for end in ends if end < before[-1]]] = True
    allowed_TS = part.allowed(size, size)
    return [mask_TS & allowed_TS & (allowed_TS.sum(-1, keepdim=True) > 1) for mask_TS in masks.values()]


@torch.inference_mode()
def _shares(
    subject: Subject, part: AttentionPart, windows: Sequence[Tensor], masks: Sequence[Sequence[Tensor]]
) -> Floats:
    """[windows, relations, L, H]: the weight on the keys of a relation, summed over its queries."""
    names = [part.tap(layer, "weights") for layer in range(part.n_layers)]
    found = []
    for ids_T, own in zip(windows, masks, strict=True):
        taps = Taps(names)
        subject.module(ids_T[None], taps=taps)
        weights_LHTS = torch.stack([taps.values[name][0].cpu().double() for name in names])
        found.append(torch.einsum("lhts,pts->plh", weights_LHTS, torch.stack(list(own)).double()))
    return torch.stack(found).numpy()


def _best(shares_WLH: Floats, counts_W: NDArray[np.int64]) -> tuple[int, int]:
    """The head with the largest weight on every other window, from the first on."""
    mean_LH = shares_WLH[0::2].sum(0) / max(1, int(counts_W[0::2].sum()))
    layer, head = np.unravel_index(int(mean_LH.argmax()), mean_LH.shape)
    return int(layer), int(head)


def _mean(shares_W: Floats, counts_W: NDArray[np.int64]) -> tuple[float, float, float]:
    """The mean over queries, with a 95 % interval over windows (of a ratio of sums)."""
    mean = float(shares_W.sum() / counts_W.sum())
    n_windows = int((counts_W > 0).sum())
    if n_windows < 2:
        return mean, 0.0, 1.0
    residual = float(((shares_W - mean * counts_W) ** 2).sum()) * n_windows / (n_windows - 1)
    half = 1.96 * math.sqrt(residual) / float(counts_W.sum())
    return mean, max(0.0, mean - half), min(1.0, mean + half)


COMMAND = Command(relations_view, options=(TEXT, FILE, STEP, SEED), any_length=True)
