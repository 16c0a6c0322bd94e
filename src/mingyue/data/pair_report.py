"""What reading pairs did."""

from __future__ import annotations

from dataclasses import dataclass

from mingyue.data.report import ReadReport


@dataclass
class PairReport(ReadReport):
    """A `ReadReport` whose documents are pairs kept, both parts together.

    `train_tokens` and `held_out_tokens` count targets (with their EOS) of the training and the validation pairs,
    `vocab_size` is that of the target side.
    """

    train_pairs: int = 0
    valid_pairs: int = 0
    train_source_tokens: int = 0
    """Source tokens of the training pairs, with their EOS."""
    source_vocab_size: int = 0

    def describe(self) -> list[str]:
        """The report as lines for a person."""
        lines = ReadReport.describe(self)
        head = f"read {_many(self.files, 'file')}: {_many(self.documents, 'pair')} kept, "
        lines[0] = head + f"{_many(self.characters, 'character')}, {_many(self.bytes, 'byte')} as UTF-8"
        if self.vocab_size:
            at = next(number for number, line in enumerate(lines) if line.startswith("tokens: "))
            sizes = f"{self.vocab_size:,}"
            if self.source_vocab_size != self.vocab_size:
                sizes = f"{self.source_vocab_size:,} for sources, {self.vocab_size:,} for targets"
            lines[at] = (
                f"pairs: {self.train_pairs:,} to train on ({self.train_source_tokens:,} source tokens, "
                f"{self.train_tokens:,} target tokens), {self.valid_pairs:,} held out "
                f"({self.held_out_tokens:,} target tokens); vocabulary {sizes}"
            )
        return lines


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
