"""Text in, tokens and batches out: reading, splitting, encoding, the order of samples, known corpora.

Only `batches` and `pair_batches` need torch; they are imported when one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mingyue.data.baselines import Baselines, baselines
from mingyue.data.corpora import CORPORA, Corpus, CorpusStatus, find_corpus, get_corpus, list_corpora
from mingyue.data.corpus import Fit, TokenCorpus, TokenView, fit_context
from mingyue.data.fetch import data_folder
from mingyue.data.order import SampleOrder
from mingyue.data.pair_corpus import PairCorpus, PairRows, load_pairs
from mingyue.data.pair_order import PairOrder
from mingyue.data.pair_prepare import prepare_pairs
from mingyue.data.pair_report import PairReport
from mingyue.data.pairs import Pair, read_lines, read_pairs
from mingyue.data.prepare import load_corpus, prepare_corpus
from mingyue.data.reading import Document, read_documents
from mingyue.data.report import Progress, ReadReport
from mingyue.data.tokens import TokenShards, TokenWriter
from mingyue.data.unseen import Substitution

if TYPE_CHECKING:
    from mingyue.data.batches import IGNORE, Batch, batch_at, heldout_batches, padded_batch
    from mingyue.data.pair_batches import PairBatch, heldout_pair_batches, pair_batch

__all__ = [
    "CORPORA",
    "IGNORE",
    "Baselines",
    "Batch",
    "Corpus",
    "CorpusStatus",
    "Document",
    "Fit",
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


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in {"IGNORE", "Batch", "batch_at", "heldout_batches", "padded_batch"}:
        from mingyue.data import batches

        return getattr(batches, name)
    if name in {"PairBatch", "heldout_pair_batches", "pair_batch"}:
        from mingyue.data import pair_batches

        return getattr(pair_batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
