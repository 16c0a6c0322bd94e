"""Settings of training on pairs: a text and its translation, or any other text to turn into another."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mingyue.config.base import Settings


def _as_files(given: object) -> object:
    """One name stands for a list of one."""
    return (given,) if isinstance(given, str) else given


Files = Annotated[tuple[str, ...], BeforeValidator(_as_files)]


class PairSettings(Settings):
    """Which pairs are read, what is kept of them, and how a translation is judged during training."""

    source: Files = ()
    """File of source texts, one a line, plain or .gz; with --target this trains an encoder-decoder Transformer."""
    target: Files = ()
    """File of target texts: its line n belongs to line n of the source file."""
    pairs: Files = ()
    """Instead of source and target: TSV, CSV or JSON lines in which a record holds both sides."""
    valid_source: Files = ()
    """Source texts that are never trained on; none = the last `held_out` share of the pairs."""
    valid_target: Files = ()
    """Their targets."""
    valid_pairs: Files = ()
    """The same as records that hold both sides."""
    source_field: str = "source"
    """Key or column of the source text in records; a column number from 1 where there are no names."""
    target_field: str = "target"
    """Key or column of the target text in records; a column number from 1 where there are no names."""
    shared_vocabulary: bool = True
    """One tokenizer and one embedding table for both sides (the paper, sections 3.4 and 5.1), or one for each."""
    keep_duplicates: bool = False
    """Keep pairs that occurred before, word for word on both sides."""
    bleu_lines: Annotated[int, Field(ge=0)] | None = None
    """Validation pairs translated (greedily) for BLEU at each evaluation; 0 = none; none = up to 100."""
    select: Literal["loss", "bleu"] = "loss"
    """Which measure on the validation pairs decides what the best step is."""

    @property
    def given(self) -> bool:
        """Whether the run is one on pairs."""
        return bool(self.source or self.target or self.pairs)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one, other in (("source", "target"), ("valid_source", "valid_target")):
            has, wants = getattr(self, one), getattr(self, other)
            if len(has) != len(wants):
                raise ValueError(
                    f"{one} names {len(has)} and {other} {len(wants)}: each file of the one needs its file of the other"
                )
        if self.pairs and self.source:
            raise ValueError("source and target are given, and pairs too: leave one out")
        if self.valid_pairs and self.valid_source:
            raise ValueError("valid_source and valid_target are given, and valid_pairs too: leave one out")
        if (self.valid_source or self.valid_pairs) and not self.given:
            raise ValueError("there are validation pairs, and none to train on: give source and target, or pairs")
        if self.pairs and self.source_field == self.target_field:
            raise ValueError(f"source_field and target_field are both {self.source_field!r}: a pair has two sides")
        if self.select == "bleu" and self.bleu_lines == 0:
            raise ValueError("select bleu needs bleu_lines above 0")
        return self
