"""Settings of the training data, text or pairs, and of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mingyue.config.base import Settings
from mingyue.config.numbers import Count, Positive, Probability
from mingyue.config.setting import DATA, NEXT_EVALUATION, TOKEN_IDS, Needs, allowed, setting
from mingyue.words import tr


def _as_files(given: object) -> object:
    """A single name as a list of one."""
    return (given,) if isinstance(given, str) else given


def _has_valid(run: Mapping[str, Any]) -> bool:
    return bool(run["valid_source"] or run["valid_pairs"])


HELD_OUT = Needs(tr("with held-out data"), lambda run: run["held_out"] > 0 or _has_valid(run))
_RECORDS = Needs(tr("with --pairs or --valid-pairs"), lambda run: bool(run["pairs"] or run["valid_pairs"]))

Files = Annotated[tuple[str, ...], BeforeValidator(_as_files)]


class DataSettings(Settings):
    """Training text and how it is split."""

    sources: tuple[str, ...] = setting((), kinds="text", resume=DATA, common=True)
    """Files, folders, globs, `-` for standard input, a known corpus by name, or hf://owner/name."""
    separator: str = setting("file", kinds="text", resume=DATA)
    """Document boundary: file (each file is one document), blank-line, line, or any other text."""
    field: str | None = setting(None, kinds="text", resume=DATA, auto="text")
    """Key of the text in JSON lines; column in CSV, TSV and Parquet."""
    encoding: str | None = setting(None, resume=DATA, auto="UTF-8; if it is not, detected and reported")
    """Encoding of the files."""
    skip_bad: bool = setting(False, resume=DATA)
    """Skip records that cannot be read, count and report them, instead of stopping at the first."""
    held_out: Probability = setting(
        0.1,
        resume=DATA,
        needs=Needs(
            tr("without --valid-source and --valid-pairs"), lambda run: run["held_out"] == 0 or not _has_valid(run)
        ),
    )
    """Share of the data, taken from the end of each file, that is never trained on."""
    attend_across_documents: bool = setting(True, kinds="text", resume=DATA)
    """Attention to earlier documents packed into the same window."""


class PairSettings(Settings):
    """Training pairs, validation pairs, and how translations are judged during training."""

    source: Files = setting((), kinds="pairs", resume=DATA, common=True)
    """Files of source texts, one text a line, plain or .gz; with --target, trains an encoder-decoder model."""
    target: Files = setting((), kinds="pairs", resume=DATA, common=True)
    """Files of target texts: line n belongs to line n of the source file."""
    pairs: Files = setting((), kinds="pairs", resume=DATA)
    """TSV, CSV or JSON-lines files whose records hold both sides, instead of source and target."""
    valid_source: Files = setting((), kinds="pairs", resume=DATA, auto="the last held_out share of the pairs")
    """Source texts of the validation pairs, which are never trained on."""
    valid_target: Files = setting((), kinds="pairs", resume=DATA)
    """Target texts of the validation pairs."""
    valid_pairs: Files = setting((), kinds="pairs", resume=DATA)
    """Validation pairs in records that hold both sides, instead of valid_source and valid_target."""
    source_field: str = setting("source", kinds="pairs", resume=DATA, needs=_RECORDS)
    """Key or column of the source text in records; a column number from 1 where columns have no names."""
    target_field: str = setting("target", kinds="pairs", resume=DATA, needs=_RECORDS)
    """Key or column of the target text in records; a column number from 1 where columns have no names."""
    shared_vocabulary: bool = setting(True, kinds="pairs", resume=TOKEN_IDS)
    """One tokenizer and one embedding table for both sides (the paper, sections 3.4 and 5.1), or one for each."""
    keep_duplicates: bool = setting(False, kinds="pairs", resume=DATA)
    """Keep pairs that repeat an earlier pair word for word on both sides."""
    bleu_lines: Count | None = setting(
        None,
        kinds="pairs",
        resume=NEXT_EVALUATION,
        auto="at most 100",
        needs=Needs(HELD_OUT.what, lambda run: run["bleu_lines"] == 0 or HELD_OUT.met(run)),
    )
    """Number of validation pairs translated (greedily) for BLEU at each evaluation; 0 = none."""
    select: Literal["loss", "bleu"] = setting(
        "loss", kinds="pairs", resume=allowed(tr("selects the best step from the next evaluation"))
    )
    """Measure on the validation pairs that selects the best step: loss or bleu."""

    @property
    def given(self) -> bool:
        """Whether the run trains on pairs."""
        return bool(self.source or self.target or self.pairs)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one, other in (("source", "target"), ("valid_source", "valid_target")):
            has, wants = getattr(self, one), getattr(self, other)
            if len(has) != len(wants):
                raise ValueError(
                    tr(
                        "{one} names {n_has} and {other} {n_wants} files: each needs its counterpart",
                        one,
                        len(has),
                        other,
                        len(wants),
                    )
                )
        if self.pairs and self.source:
            raise ValueError(tr("source and target are given, and pairs too: leave one out"))
        if self.valid_pairs and self.valid_source:
            raise ValueError(tr("valid_source and valid_target are given, and valid_pairs too: leave one out"))
        if (self.valid_source or self.valid_pairs) and not self.given:
            raise ValueError(
                tr("valid_source or valid_pairs is given, but no pairs to train on: give source and target, or pairs")
            )
        if self.pairs and self.source_field == self.target_field:
            raise ValueError(
                tr("source_field and target_field are both {source_field!r}: a pair has two sides", self.source_field)
            )
        if self.select == "bleu" and self.bleu_lines == 0:
            raise ValueError(tr("select bleu needs bleu_lines above 0"))
        return self


class TokenizerSettings(Settings):
    """Tokenizer and vocabulary."""

    tokenizer: str | None = setting(None, resume=TOKEN_IDS, auto="char for text, bpe for pairs")
    """char, bpe, byte, or the path of a tokenizer.json."""
    tokenizer_size: Annotated[int, Field(ge=259, le=10_000_000)] = setting(
        8192,
        resume=TOKEN_IDS,
        auto="8192; 4096 for pairs",
        needs=Needs(tr("with --tokenizer bpe"), lambda run: run["tokenizer"] == "bpe"),
    )
    """Vocabulary size of a bpe tokenizer, in tokens, 256 bytes and 3 special tokens included."""
    min_count: Positive | None = setting(
        None,
        resume=TOKEN_IDS,
        auto="1; above 2048 characters the rarest 0.5 % of the text at most use it",
        needs=Needs(tr("with --tokenizer char"), lambda run: run["tokenizer"] in (None, "char")),
    )
    """char: characters with fewer occurrences use the byte fallback."""
