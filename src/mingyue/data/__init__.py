"""Text in, tokens and batches out: reading, splitting, encoding, the order of samples, known corpora.

Only `batches` needs torch; it is imported when one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mingyue.data.baselines import Baselines, baselines
from mingyue.data.corpora import CORPORA, Corpus, CorpusStatus, find_corpus, get_corpus, list_corpora
from mingyue.data.corpus import Fit, TokenCorpus, TokenView, fit_context
from mingyue.data.fetch import data_folder
from mingyue.data.order import SampleOrder
from mingyue.data.prepare import load_corpus, prepare_corpus
from mingyue.data.reading import Document, read_documents
from mingyue.data.report import Progress, ReadReport
from mingyue.data.tokens import TokenShards, TokenWriter

if TYPE_CHECKING:
    from mingyue.data.batches import IGNORE, Batch, batch_at, heldout_batches, padded_batch

__all__ = [
    "CORPORA",
    "IGNORE",
    "Baselines",
    "Batch",
    "Corpus",
    "CorpusStatus",
    "Document",
    "Fit",
    "Progress",
    "ReadReport",
    "SampleOrder",
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
    "list_corpora",
    "load_corpus",
    "padded_batch",
    "prepare_corpus",
    "read_documents",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in {"IGNORE", "Batch", "batch_at", "heldout_batches", "padded_batch"}:
        from mingyue.data import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
