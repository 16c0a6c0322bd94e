"""A model with its tokenizers, and a text as that model reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.errors import GenerationError
from mingyue.inspection.tokens import token_label
from mingyue.models import DecoderOnly, EncoderDecoder, Transformer
from mingyue.nn import Taps
from mingyue.text import Tokenizer
from mingyue.words import tr


@dataclass(frozen=True)
class Reading:
    """A text as the model reads it, in ids: one row. For an encoder-decoder model a source and a target text."""

    text: str
    """The text; of a pair the target."""
    ids_T: Tensor
    """Input ids, int64: the BOS token first, if the model reads one."""
    targets_T: Tensor
    """The next id at each position, int64: `ids_T` shifted by one. Of a pair it ends with EOS; of a text it has one id
    less than `ids_T`, since the token after the last is unknown."""
    pieces: tuple[str, ...]
    """`ids_T` as printable text."""
    target_pieces: tuple[str, ...]
    """`targets_T` as printable text."""
    source: str | None = None
    """The source text of a pair."""
    source_ids_S: Tensor | None = None
    """Its ids, EOS last."""
    source_pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizers. The module is in eval mode."""

    module: Transformer
    tokenizer: Tokenizer
    """Of an encoder-decoder model, that of the target side."""
    source_tokenizer: Tokenizer | None = None
    """Of an encoder-decoder model, that of the source side."""
    starts_with_bos: bool = False
    """Whether a decoder-only model reads BOS before a text (the target of a pair always begins with it)."""
    unseen: tuple[int, ...] = ()
    """Ids that do not occur in the training text (the targets of pairs); empty if unknown."""

    @property
    def of_pairs(self) -> bool:
        """Whether it is an encoder-decoder model."""
        return isinstance(self.module, EncoderDecoder)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.module.embedding.weight.device

    def read(self, text: str, source: str | None = None, *, any_length: bool = False) -> Reading:
        """The text as the model reads it; for an encoder-decoder model, `text` is the target of the text `source`.

        `any_length`: a text may be longer than the context, for views that read it in windows.

        Raises `GenerationError` for a text without a token, one longer than the context, a token that the model does
        not know, and a source that this architecture does not take, or one that it lacks.
        """
        source_ids = list[int]()
        if isinstance(self.module, EncoderDecoder):
            if source is None or self.source_tokenizer is None:
                raise GenerationError(
                    tr("an encoder-decoder model reads two texts"), advice=tr("Give a source and a target.")
                )
            words, config = self.source_tokenizer, self.module.config
            source_ids = [*words.encode(source), words.eos_id]
            written = [*self.tokenizer.encode(text), self.tokenizer.eos_id]
            ids, targets = [self.tokenizer.bos_id, *written[:-1]], written
            self._check(source_ids, "source ", config.source_vocab_size or config.vocab_size)
        else:
            if source is not None:
                raise GenerationError(tr("a decoder-only model reads one text: it has no source side"))
            spelled = self.tokenizer.encode(text)
            ids = [self.tokenizer.bos_id, *spelled] if self.starts_with_bos else spelled
            targets = ids[1:]
        self._check(ids, "", self.module.config.vocab_size, any_length=any_length and not self.of_pairs)
        return self._reading(text, source, ids, targets, source_ids)

    def reading_of(self, ids: list[int], targets: list[int], source_ids: list[int] | None = None) -> Reading:
        """A text that is known as ids, such as one of a token file. The ids are not checked."""
        source = None
        if source_ids is not None and self.source_tokenizer is not None:
            source = self.source_tokenizer.decode(source_ids)
        return self._reading(self.tokenizer.decode(ids), source, ids, targets, source_ids or [])

    def _reading(
        self, text: str, source: str | None, ids: list[int], targets: list[int], source_ids: list[int]
    ) -> Reading:
        words = self.source_tokenizer or self.tokenizer
        return Reading(
            text=text,
            ids_T=self._tensor(ids),
            targets_T=self._tensor(targets),
            pieces=tuple(token_label(self.tokenizer, index) for index in ids),
            target_pieces=tuple(token_label(self.tokenizer, index) for index in targets),
            source=source,
            source_ids_S=self._tensor(source_ids) if self.of_pairs else None,
            source_pieces=tuple(token_label(words, index) for index in source_ids),
        )

    def logits(self, reading: Reading, taps: Taps | None = None) -> Tensor:
        """logits_TV of the next token at each position, in one forward pass. Grad mode is the caller's."""
        ids_1T = reading.ids_T[None]
        if isinstance(self.module, DecoderOnly):
            return self.module(ids_1T, taps=taps)[0]
        assert reading.source_ids_S is not None
        return self.module(reading.source_ids_S[None], ids_1T, taps=taps)[0]

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def _check(self, ids: list[int], side: str, vocab_size: int, *, any_length: bool = False) -> None:
        context = self.module.config.context
        if not ids:
            raise GenerationError(tr("the text is empty"))
        if len(ids) > context and not any_length:
            raise GenerationError(
                tr(
                    "the {side}text has {n_ids} tokens (special tokens included), the context of this "
                    "model holds {context}",
                    side,
                    len(ids),
                    context,
                ),
                advice=tr("Give a shorter text."),
            )
        if max(ids) >= vocab_size:
            raise GenerationError(
                tr(
                    "the {side}text has token {ids}, but the model knows only tokens 0 to {vocab_size}",
                    side,
                    max(ids),
                    vocab_size - 1,
                ),
                advice=tr("The tokenizer does not belong to this model."),
            )
