"""From text to tokens and batches: reading, splitting, encoding, the order of samples, known corpora.

Only `batches` needs torch; it is imported when one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mingyue.data.baselines import Baselines, baselines
from mingyue.data.corpora import CORPORA, Corpus, CorpusStatus, find_corpus, get_corpus, list_corpora
from mingyue.data.corpus import Fit, PairCorpus, PairRows, TokenCorpus, TokenView, fit_context
from mingyue.data.fetch import data_folder
from mingyue.data.order import PairOrder, SampleOrder
from mingyue.data.pair_prepare import load_pairs, prepare_pairs
from mingyue.data.pairs import Pair, read_lines, read_pairs
from mingyue.data.prepare import KeptVocabulary, load_corpus, prepare_corpus
from mingyue.data.reading import Document, read_documents
from mingyue.data.report import PairReport, Progress, ReadReport
from mingyue.data.tokens import TokenShards, TokenWriter
from mingyue.data.unseen import Substitution

if TYPE_CHECKING:
    from mingyue.data.batches import (
        IGNORE,
        Batch,
        PairBatch,
        batch_at,
        heldout_batches,
        heldout_pair_batches,
        padded_batch,
        pair_batch,
    )

__all__ = [
    "CORPORA",
    "IGNORE",
    "Baselines",
    "Batch",
    "Corpus",
    "CorpusStatus",
    "Document",
    "Fit",
    "KeptVocabulary",
    "Pair",
    "PairBatch",
    "PairCorpus",
    "PairOrder",
    "PairReport",
    "PairRows",
    "Progress",
    "ReadReport",
    "SampleOrder",
    "Substitution",
    "TokenCorpus",
    "TokenShards",
    "TokenView",
    "TokenWriter",
    "baselines",
    "batch_at",
    "data_folder",
    "find_corpus",
    "fit_context",
    "get_corpus",
    "heldout_batches",
    "heldout_pair_batches",
    "list_corpora",
    "load_corpus",
    "load_pairs",
    "padded_batch",
    "pair_batch",
    "prepare_corpus",
    "prepare_pairs",
    "read_documents",
    "read_lines",
    "read_pairs",
]


_OF_BATCHES = {
    *("IGNORE", "Batch", "PairBatch", "batch_at", "heldout_batches", "heldout_pair_batches", "pair_batch"),
    "padded_batch",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _OF_BATCHES:
        from mingyue.data import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
