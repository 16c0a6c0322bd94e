"""The texts of a run, from its token files: held-out texts for probes, and how often each token occurs in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from mingyue.data import PairCorpus, TokenCorpus, load_corpus, load_pairs
from mingyue.errors import DataError
from mingyue.inspection.subject import Reading, Subject

LONGEST = 128
"""Tokens of a held-out text that is read; what is longer is read in windows of this size."""
_MOST_BLOCKS = 128  # parts of a large held-out text that are read, evenly spread

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunTexts:
    """The prepared texts of the run that trained a model."""

    subject: Subject
    corpus: TokenCorpus | PairCorpus

    @classmethod
    def of(cls, data: Path, subject: Subject) -> Self | None:
        """The texts in the data folder of a run; None if they are not there, damaged, or of another tokenizer."""
        try:
            if subject.of_pairs:
                source, target, corpus, _ = load_pairs(data)
                known, found = (subject.source_tokenizer, subject.tokenizer), (source, target)
            else:
                tokenizer, corpus, _ = load_corpus(data)
                known, found = (subject.tokenizer,), (tokenizer,)
        except DataError:
            return None
        same = all(
            one is not None and one.fingerprint == other.fingerprint for one, other in zip(known, found, strict=True)
        )
        return cls(subject, corpus) if same else None

    def held_out(self, most_tokens: int) -> list[Reading]:
        """Texts that were held out, evenly spread, with about `most_tokens` predictions together; [] if none were.

        Of one long text they are windows; of documents each begins with its BOS token.
        """
        found = list(self._pairs() if isinstance(self.corpus, PairCorpus) else self._windows(self.corpus))
        total = sum(len(reading.targets_T) for reading in found)
        if total <= most_tokens:
            return found
        kept = max(1, len(found) * most_tokens // total)
        return [found[number * len(found) // kept] for number in range(kept)]

    def counts(self, *, of_sources: bool = False) -> Int64s:
        """How often each id occurs in the training text, [V]; of pairs in the targets or the sources.

        With one vocabulary for both sides: in both together.
        """
        corpus = self.corpus
        if isinstance(corpus, TokenCorpus):
            return corpus.train.counts(corpus.vocab_size)
        sources = corpus.train.sources.counts(corpus.source_vocab_size)
        if of_sources and not corpus.shared_vocabulary:
            return sources
        targets = corpus.train.targets.counts(corpus.target_vocab_size)
        return targets + sources if corpus.shared_vocabulary else targets

    def _pairs(self) -> Iterator[Reading]:
        assert isinstance(self.corpus, PairCorpus)
        pairs, context = self.corpus.valid, self.subject.module.config.context
        for number in np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), 8 * _MOST_BLOCKS)).round()).tolist():
            source, target = pairs.source(int(number)).tolist(), pairs.target(int(number)).tolist()
            if max(len(source), len(target)) <= context:
                yield self.subject.reading_of([self.corpus.bos_id, *target[:-1]], target, source)

    def _windows(self, corpus: TokenCorpus) -> Iterator[Reading]:
        length = min(self.subject.module.config.context, LONGEST)
        block, held_out = 2 * length, corpus.held_out
        n_blocks = -(-len(held_out) // block)
        for number in np.unique(np.linspace(0, max(0, n_blocks - 1), min(n_blocks, _MOST_BLOCKS)).round()).tolist():
            start = int(number) * block
            ids: list[int] = held_out.read(start, min(start + block, len(held_out))).tolist()
            begins = [at for at, index in enumerate(ids) if index == corpus.bos_id] or [0]
            for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
                for at in range(begin, end, length):
                    window = ids[at : min(at + length, end)]
                    if len(window) > 1:
                        yield self.subject.reading_of(window, window[1:])
