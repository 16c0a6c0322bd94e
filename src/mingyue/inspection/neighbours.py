"""The tokens nearest to a word in the embedding tables of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from torch import nn

from mingyue.charts import BarChart, Chart
from mingyue.config import Positive
from mingyue.errors import NothingToShowError, SettingsError
from mingyue.inspection.arrays import Floats, Ints, to_lists, to_numpy
from mingyue.inspection.command import STEP, Command, Inspected, Option
from mingyue.inspection.labels import decimals
from mingyue.inspection.run_texts import RunTexts
from mingyue.inspection.subject import Subject
from mingyue.inspection.tokens import token_label, token_string
from mingyue.inspection.view import View
from mingyue.models import EncoderDecoder
from mingyue.text import Tokenizer
from mingyue.words import Language, TextTable, Words, listed, sentences, tr

FEWEST_SEEN = 100
"""Rows of tokens that occur less often in training have hardly been trained."""
_INPUT = tr("input table (embedding)")
_OUTPUT = tr("output table (predictions)")
_TIED = tr("one table for input and output (tied)")
_LEFT_OUT = tr("Special tokens, parts of characters and tokens that do not occur in the training text are left out.")
_RARE = "*"
_SOURCE = tr("source table")


@dataclass(frozen=True, eq=False)
class Nearest:
    """The K nearest rows of one table."""

    table: Words
    token: int
    """The id of the word in this table."""
    piece: str
    ids_K: Ints
    pieces_K: tuple[str, ...]
    cosines_K: Floats
    candidates: int
    """Number of tokens compared: those that are text by themselves."""
    count: int | None = None
    """How often the word occurs in the training text; None where that is unknown."""
    counts_K: Ints | None = None
    """The same of the neighbours."""

    def rows(self) -> Iterator[tuple[int, str, float, int | None]]:
        """Rank, token, cosine and count of each neighbour."""
        counts = [None] * len(self.pieces_K) if self.counts_K is None else self.counts_K.tolist()
        return zip(count(1), self.pieces_K, self.cosines_K.tolist(), counts, strict=False)


@dataclass(frozen=True, eq=False)
class NeighboursView(View):
    """The nearest tokens in each embedding table of the model."""

    title = tr("Nearest tokens")

    word: str
    nearest: tuple[Nearest, ...]
    notes: tuple[Words, ...] = ()

    def charts(self, language: Language = "en") -> list[Chart]:
        """A bar for each neighbour, one chart per embedding table."""
        return [
            BarChart(
                _title(one, language),
                [
                    {"token": f"{rank}. {piece}{_RARE if _is_rare(seen) else ''}", "cosine": value}
                    for rank, piece, value, seen in one.rows()
                ],
                x="token",
                y="cosine",
                y_title=tr("cosine").of(language),
                note=self._note(one, language, marked=True),
            )
            for one in self.nearest
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """Rank, token, cosine and count in training, for each embedding table."""
        headings = (
            tr("rank"), tr("token"), tr("cosine"),
            tr("times in training"),
        )  # fmt: skip
        names = [name.of(language) for name in headings]
        return [
            TextTable(
                _title(one, language),
                names,
                [
                    [str(rank), piece, decimals(value), "?" if seen is None else f"{seen:,}"]
                    for rank, piece, value, seen in one.rows()
                ],
                right=[names[0], *names[2:]],
                note=self._note(one, language),
            )
            for one in self.nearest
        ]

    def to_dict(self) -> dict[str, Any]:
        """For each table its name, ids_K, pieces_K, cosines_K and counts_K (None: unknown)."""
        return {
            "word": self.word,
            "nearest": [
                {
                    "table": one.table.en,
                    "token": one.token,
                    "piece": one.piece,
                    "ids_K": to_lists(one.ids_K),
                    "pieces_K": list(one.pieces_K),
                    "cosines_K": to_lists(one.cosines_K),
                    "candidates": one.candidates,
                    "count": one.count,
                    "counts_K": None if one.counts_K is None else one.counts_K.tolist(),
                }
                for one in self.nearest
            ],
        }

    def _note(self, one: Nearest, language: Language, *, marked: bool = False) -> str:
        notes = [*self.notes, *about_counts(one, marked=marked), _LEFT_OUT]
        return sentences(notes, language)


def _is_rare(seen: int | None) -> bool:
    return seen is not None and seen < FEWEST_SEEN


def about_counts(one: Nearest, *, marked: bool) -> list[Words]:
    """How often the word occurs in training, with warnings; `marked`: rare neighbours are marked in the picture."""
    if one.count is None:
        return [tr("How often a token occurs in training is unknown: the run of this model is not at hand.")]
    notes = [tr('"{piece}" occurs {count:,} times in training.', one.piece, one.count)]
    if _is_rare(one.count):
        notes.append(
            tr(
                "That is fewer than {fewest_seen} times: its row has hardly been trained, so its "
                "neighbours say little.",
                FEWEST_SEEN,
            )
        )
    if marked and any(_is_rare(seen) for *_, seen in one.rows()):
        notes.append(tr("{rare} occurs fewer than {fewest_seen} times in training.", _RARE, FEWEST_SEEN))
    return notes


def neighbours_view(subject: Subject, word: str, *, top: int = 10, run: RunTexts | None = None) -> NeighboursView:
    """The `top` nearest tokens to `word` by cosine, in the input table and in the output table (or the one of both).

    For an encoder-decoder model with two vocabularies: in the tables whose tokenizer has the word as one token. For a
    word of several tokens `NothingToShowError` names them (a mean of rows would be a vector that the model never
    reads). A word that is one token only after a space is looked up with it. Special tokens, parts of
    characters and tokens that training never met are left out. `run` has the counts of tokens in training. Raises
    `SettingsError` for `top` below 1.
    """
    if top < 1:
        raise SettingsError(tr("{top} neighbours cannot be shown: give at least 1", top))
    if not word:
        raise NothingToShowError(tr("the word is empty"))
    nearest: list[Nearest] = []
    notes: list[Words] = []
    refused: dict[str, Tokenizer] = {}
    for name, table, tokenizer in _tables(subject):
        index = _one_token(tokenizer, word)
        if index is None or index >= len(table):
            refused[name.en] = tokenizer
            continue
        unseen = () if name is _SOURCE else subject.unseen
        found = _nearest(name, table, tokenizer, index, top=top, unseen=frozenset(unseen))
        nearest.append(found if run is None else _counted(found, run.counts(of_sources=name is _SOURCE)))
        if tokenizer.decode([index]) != word and tokenizer.token_text(index).startswith(" "):
            note = tr("As a token the word has a space before it: {token_label}.", token_label(tokenizer, index))
            notes += [] if note in notes else [note]
    if not nearest:
        raise _several(word, next(iter(refused.values())))
    if refused:
        names = ", ".join(refused)
        notes.append(tr("The word is not one token of the {names}.", names))
    return NeighboursView(word, tuple(nearest), tuple(notes))


def _tables(subject: Subject) -> list[tuple[Words, Floats, Tokenizer]]:
    module, tokenizer = subject.module, subject.tokenizer
    tables: list[tuple[Words, Floats, Tokenizer]] = []
    if isinstance(module, EncoderDecoder) and module.source_embedding is not None:
        tables.append((_SOURCE, to_numpy(module.source_embedding.weight), subject.source_tokenizer or tokenizer))
    if isinstance(module.output, nn.Linear):
        tables.append((_INPUT, to_numpy(module.embedding.weight), tokenizer))
        tables.append((_OUTPUT, to_numpy(module.output.weight), tokenizer))
    else:
        tables.append((_TIED, to_numpy(module.embedding.weight), tokenizer))
    return tables


def _one_token(tokenizer: Tokenizer, word: str) -> int | None:
    for written in (word, f" {word}"):
        ids = tokenizer.encode(written)
        if len(ids) == 1:
            return ids[0]
    return None


def _several(word: str, tokenizer: Tokenizer) -> NothingToShowError:
    ids = tokenizer.encode(word)
    advice = tr("Give one of these tokens, or a word that is one token.")
    if not any(token_string(tokenizer, index) for index in ids):
        advice = tr("They are bytes of its characters. Give a word that is one token.")
    pieces = [token_label(tokenizer, index) for index in ids]
    return NothingToShowError(
        tr(
            "{word!r} is {n_ids} tokens of this model ({pieces}); a table has one vector per token",
            word,
            len(ids),
            listed(pieces),
        ),
        advice=advice,
    )


def _nearest(
    name: Words, table_VM: Floats, tokenizer: Tokenizer, index: int, *, top: int, unseen: frozenset[int]
) -> Nearest:
    lengths_V = np.linalg.norm(table_VM, axis=1)
    cosines_V = table_VM @ table_VM[index] / np.maximum(lengths_V * lengths_V[index], 1e-30)
    shown = (i for i in range(len(table_VM)) if i != index and i not in unseen and token_string(tokenizer, i))
    others = np.array(list(shown), dtype=np.int64)
    best_K = others[np.argsort(-cosines_V[others], kind="stable")[:top]]
    return Nearest(
        table=name,
        token=index,
        piece=token_label(tokenizer, index),
        ids_K=best_K,
        pieces_K=tuple(token_label(tokenizer, int(i)) for i in best_K),
        cosines_K=cosines_V[best_K].astype(np.float32),
        candidates=len(others),
    )


def _counted(one: Nearest, counts_V: Ints) -> Nearest:
    return replace(one, count=int(counts_V[one.token]), counts_K=counts_V[one.ids_K])


def _title(one: Nearest, language: Language) -> str:
    return tr('Nearest to "{piece}": {table}', one.piece, one.table).of(language)


def _of_inspection(inspected: Inspected, word: str, top: int = 10) -> NeighboursView:
    return neighbours_view(inspected.subject, word, top=top, run=inspected.run_texts)


COMMAND = Command(
    _of_inspection,
    options=(
        Option("word", str, "Word whose nearest tokens are listed; one token of the model."),
        Option("top", Positive, "Tokens listed.", 10),
        STEP,
    ),
    texts="optional",
)
