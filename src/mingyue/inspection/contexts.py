"""Nearest contexts (Hoover et al. 2020, exBERT): where the training text has the vectors most similar to one vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mingyue.charts import BarChart, Chart, TextMark, WordGrid
from mingyue.config import Count, Positive
from mingyue.errors import NothingToShowError, SettingsError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.choices import chosen_position
from mingyue.inspection.command import ONE_TEXT, SEED, Command, Inspected, Option, Progress, TrainingSample
from mingyue.inspection.labels import layer_label
from mingyue.inspection.subject import Subject
from mingyue.inspection.tokens import token_label
from mingyue.inspection.view import View
from mingyue.models import EncoderDecoder
from mingyue.nn import Taps
from mingyue.words import Language, TextTable, Words, tr

BEFORE, AFTER = 8, 4
"""Tokens shown around a position."""
MOST_DRAWN = 40
"""Contexts in a picture; the table has all."""
_PAIRS = 1000
"""Random pairs of positions whose similarity is the control."""
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Surroundings:
    """A token with those around it, as labels."""

    before: tuple[str, ...]
    token: str
    after: tuple[str, ...]

    def cells(self) -> list[str]:
        """`BEFORE` tokens, the token, `AFTER` tokens; empty where there are none."""
        before = [""] * (BEFORE - len(self.before)) + list(self.before)
        return [*before, self.token, *self.after, *[""] * (AFTER - len(self.after))]


@dataclass(frozen=True, eq=False)
class ContextsView(View):
    """The K positions of a sample of text whose vectors are nearest to one vector, by cosine."""

    title: ClassVar[Words] = tr("Nearest contexts")  # pyrefly: ignore[bad-override]
    position: int
    layer: int
    query: Surroundings
    nearest: tuple[Surroundings, ...]
    cosines_K: NDArray[np.float64]
    random_P: NDArray[np.float64]
    """Cosines of random pairs of positions: the control."""
    mean: float
    """Mean cosine of the vector to all positions that were read."""
    n_positions: int
    """Positions that were read."""
    total: int
    """Tokens of the text that the sample was drawn from."""
    text: Words
    """What this text is called."""

    def charts(self, language: Language = "en") -> list[Chart]:
        """The contexts one above the other, and their cosines beside those of random pairs."""
        columns = [str(offset) if offset < 1 else f"+{offset}" for offset in range(-BEFORE, AFTER + 1)]
        rows = [(tr("this text").of(language), self.query, 1.0)]
        drawn_K = self.cosines_K[:MOST_DRAWN].tolist()
        rows += [
            (str(rank), one, cosine)
            for rank, (one, cosine) in enumerate(zip(self.nearest, drawn_K, strict=False), start=1)
        ]
        grid = WordGrid(
            self._heading(language),
            [
                [
                    TextMark(text, cosine if column == BEFORE else None, [f"{cosine:.3f}"] if column == BEFORE else ())
                    for column, text in enumerate(one.cells())
                ]
                for _, one, cosine in rows
            ],
            row_labels=[label for label, _, _ in rows],
            column_labels=columns,
            low=0.0,
            high=1.0,
            legend=tr("cosine").of(language),
            note=self._note(language),
        )
        low, high = self._random_range()
        bars = BarChart(
            tr("Cosine of each context, and of random pairs").of(language),
            [{"rank": str(rank), "cosine": cosine} for rank, cosine in enumerate(drawn_K, start=1)],
            x="rank",
            y="cosine",
            x_title=tr("rank").of(language),
            y_title=tr("cosine").of(language),
            rules=[
                (high, tr("99% of random pairs are below").of(language)),
                (low, tr("median of random pairs").of(language)),
            ],
        )
        return [grid, bars]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A row for each context, the nearest first."""
        names = [
            tr("rank"), tr("cosine"), tr("before"), tr("token"),
            tr("after"),
        ]  # fmt: skip
        columns = [name.of(language) for name in names]
        found = [("", "", self.query)]
        found += [
            (str(rank), f"{cosine:.3f}", one)
            for rank, (one, cosine) in enumerate(zip(self.nearest, self.cosines_K, strict=True), start=1)
        ]
        rows = [[rank, cosine, _joined(one.before), one.token, _joined(one.after)] for rank, cosine, one in found]
        return [TextTable(self._heading(language), columns, rows, columns[:3], self._note(language))]

    def to_dict(self) -> dict[str, Any]:
        """The contexts with their cosines, and the cosines of random pairs."""
        return {
            "position": self.position,
            "layer": self.layer,
            "query": self.query.cells(),
            "nearest": [one.cells() for one in self.nearest],
            "cosines_K": to_lists(self.cosines_K),
            "random_P": to_lists(self.random_P),
            "mean": self.mean,
            "n_positions": self.n_positions,
            "total": self.total,
            "text": self.text.en,
        }

    def _random_range(self) -> tuple[float, float]:
        """Median and 99 % quantile of random pairs."""
        return float(np.median(self.random_P)), float(np.quantile(self.random_P, 0.99))

    def _heading(self, language: Language) -> str:
        layer = layer_label(self.layer, language)
        return tr(
            'Contexts nearest to position {position}, "{token}", after {layer}', self.position, self.query.token, layer
        ).of(language)

    def _note(self, language: Language) -> str:
        median, high = self._random_range()
        return tr(
            "{n_positions:,} positions of {text} ({total:,} tokens) were compared; contexts of the "
            "same tokens are listed once. Random pairs have a median cosine of {median:.2f}, 99% "
            "of them are below {high:.2f}; this vector has {mean:.2f} to all positions on "
            "average. Compare with these: in many models all vectors are similar.",
            self.n_positions,
            self.text,
            self.total,
            median,
            high,
            self.mean,
        ).of(language)


def _joined(labels: Sequence[str]) -> str:
    return "".join(labels).replace("␣", " ")


@torch.inference_mode()
def contexts_view(
    inspected: Inspected,
    *,
    position: int | None = None,
    layer: int | None = None,
    top: int = 10,
    tokens: int = 20_000,
    corpus: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ContextsView:
    """The `top` positions of `tokens` tokens of the training text nearest to the vector at `position` after `layer`.

    Defaults: the last position (of a source text the last before EOS), the last layer; of an encoder-decoder model
    those of the encoder. Raises `SettingsError` for a position or layer that is not there, and without a training text.
    """
    subject, reading = inspected.subject, inspected.reading
    pieces = reading.source_pieces if subject.of_pairs else reading.pieces
    here = chosen_position(position, pieces)
    if position is None and subject.of_pairs:
        here = max(0, here - 1)
    n_layers = len(subject.module.encoder.blocks) if isinstance(subject.module, EncoderDecoder) else _depth(subject)
    chosen = n_layers - 1 if layer is None else layer
    if not 0 <= chosen < n_layers:
        raise SettingsError(
            tr("there is no layer {chosen}: the model has {n_layers} layers here, counted from 0", chosen, n_layers),
            advice=tr("Give a layer from 0 to {n_layers}.", n_layers - 1),
        )
    sample = inspected.training_sample(tokens, seed, corpus)
    query_ids = reading.source_ids_S if subject.of_pairs else reading.ids_T
    assert query_ids is not None
    query_M = _unit(_vectors(subject, [query_ids.cpu().numpy()], chosen)[0][here])
    cosines_N, where_N2, random_P = _compare(subject, sample, chosen, query_M, seed=seed, progress=progress)
    if len(cosines_N) < 2:
        raise NothingToShowError(tr("the training text that was read has fewer than 2 tokens"))
    nearest = dict[Surroundings, float]()
    for number in np.argsort(-cosines_N, kind="stable"):
        row, column = where_N2[number]
        nearest.setdefault(_around(subject, sample.rows[row], int(column)), float(cosines_N[number]))
        if len(nearest) == top:
            break
    return ContextsView(
        position=here,
        layer=chosen,
        query=_around(subject, query_ids.cpu().numpy(), here),
        nearest=tuple(nearest),
        cosines_K=np.array([*nearest.values()]),
        random_P=random_P,
        mean=float(cosines_N.mean()),
        n_positions=len(cosines_N),
        total=sample.total,
        text=sample.name,
    )


def _depth(subject: Subject) -> int:
    return subject.module.config.n_layers


def _compare(
    subject: Subject, sample: TrainingSample, layer: int, query_M: Tensor, *, seed: int, progress: Progress | None
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Of N positions that are no special tokens: cosines to the query, (row, column); and cosines of random pairs."""
    special = list((subject.source_tokenizer or subject.tokenizer).special_ids)
    total, done = sum(map(len, sample.rows)), 0
    share = min(1.0, 4 * _PAIRS / max(1, total))  # of the vectors that are kept for random pairs
    generator = np.random.default_rng(seed)
    cosines, where, kept = list[Tensor](), list[NDArray[np.int64]](), list[Tensor]()
    for first, rows in _batches(sample.rows):
        for number, vectors_TM in enumerate(_vectors(subject, rows, layer), start=first):
            columns = np.flatnonzero(~np.isin(sample.rows[number], special))
            unit_NM = _unit(vectors_TM[torch.from_numpy(columns).to(vectors_TM.device)])
            cosines.append((unit_NM @ query_M).cpu())
            where.append(np.stack([np.full(len(columns), number), columns], axis=1))
            chosen = np.flatnonzero(generator.random(len(columns)) < share)
            kept.append(unit_NM[torch.from_numpy(chosen).to(unit_NM.device)].cpu())
        done += sum(map(len, rows))
        if progress is not None:
            progress(done, total)
    vectors_NM = torch.cat(kept)
    order = generator.permutation(len(vectors_NM))
    half = min(_PAIRS, len(order) // 2)
    one, other = order[:half], order[half : 2 * half]
    random_P = (vectors_NM[torch.from_numpy(one)] * vectors_NM[torch.from_numpy(other)]).sum(dim=1)
    return torch.cat(cosines).double().numpy(), np.concatenate(where), random_P.double().numpy()


def _batches(rows: Sequence[NDArray[np.int64]]) -> Iterator[tuple[int, Sequence[NDArray[np.int64]]]]:
    """Consecutive rows that have about `_BATCH_TOKENS` tokens together, with the number of the first."""
    first, count = 0, 0
    for number, row in enumerate(rows):
        count += len(row)
        if count >= _BATCH_TOKENS or number == len(rows) - 1:
            yield first, rows[first : number + 1]
            first, count = number + 1, 0


def _vectors(subject: Subject, rows: Sequence[NDArray[np.int64]], layer: int) -> list[Tensor]:
    """vectors_TM of each row after a block; rows of unequal length are padded."""
    longest = max(map(len, rows))
    ids_BT = torch.full((len(rows), longest), subject.tokenizer.pad_id, dtype=torch.long)
    for number, row in enumerate(rows):
        ids_BT[number, : len(row)] = torch.from_numpy(row)
    ids_BT = ids_BT.to(subject.device)
    if isinstance(subject.module, EncoderDecoder):
        tap = f"encoder.blocks.{layer}.output"
        taps = Taps(tap)
        lengths_B = torch.tensor([len(row) for row in rows], device=subject.device)
        subject.module.encode(ids_BT, source_lengths_B=lengths_B, taps=taps)
    else:
        tap = f"blocks.{layer}.output"
        taps = Taps(tap)
        subject.module.hidden(ids_BT, taps=taps)  # causal: padding on the right changes nothing before it
    return [vectors_TM[: len(row)] for vectors_TM, row in zip(taps.values[tap], rows, strict=True)]


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors.float(), dim=-1)


def _around(subject: Subject, ids_T: NDArray[np.int64], position: int) -> Surroundings:
    tokenizer = subject.source_tokenizer or subject.tokenizer
    first = max(0, position - BEFORE)
    labels = [token_label(tokenizer, int(index)) for index in ids_T[first : position + AFTER + 1]]
    here = position - first
    return Surroundings(tuple(labels[:here]), labels[here], tuple(labels[here + 1 :]))


COMMAND = Command(
    contexts_view,
    options=(
        *ONE_TEXT,
        Option("position", Count, "Position whose vector is compared, counted from 0 (of a source text).", "the last"),
        Option("layer", Count, "Layer after which the vectors are compared, counted from 0.", "the last"),
        Option("top", Positive, "Contexts listed.", 10),
        Option("tokens", Positive, "Tokens of the training text that are read.", 20_000),
        Option("corpus", str, "UTF-8 file to search.", "the training text of the run"),
        SEED,
    ),
    texts="optional",
    slow=True,
)
