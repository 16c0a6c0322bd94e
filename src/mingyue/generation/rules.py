"""What the tokens of a model mean: how a prompt is read, and which tokens may be generated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.request import Request
from mingyue.generation.sequence import GeneratedSequence
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

_LINE_END = "\n"
"""Read in place of an empty prompt by a model of one document whose bundle has no `begin_id` (older ones)."""


class TokenRules:
    """The tokenizer of a decoder-only model, and what its training says about the tokens.

    `starts_with_bos`: whether BOS precedes each prompt, as in the model's training data. An empty prompt is then BOS
    alone; otherwise `begin_id` is read in its place, a token that occurs in the training text. `unseen`: ids that do
    not occur there, which are generated only with `allow_unseen`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        *,
        starts_with_bos: bool,
        begin_id: int | None = None,
        unseen: Collection[int] = (),
    ) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.starts_with_bos, self.begin_id, self.unseen = starts_with_bos, begin_id, unseen
        self._allowed: dict[tuple[bool, bool], AllowedTokens] = {}

    def prompt_ids(self, prompt: str) -> list[int]:
        """A prompt as the model reads it. Raises `GenerationError` when the model does not know one of its ids."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode(prompt)
        if self.starts_with_bos:
            ids = [tokenizer.bos_id, *ids]
        elif not ids and self.begin_id is not None:
            ids = [self.begin_id]
        elif not ids:
            ids = tokenizer.encode(_LINE_END) or [tokenizer.bos_id]  # some given tokenizers drop white space
        self.check_ids(ids)
        return ids

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises `GenerationError` when the model does not know one of the ids."""
        unknown = [one for one in ids if not 0 <= one < self.vocab_size]
        if unknown:
            raise GenerationError(
                tr(
                    "the prompt has token {ids}, but the model knows only tokens 0 to {vocab_size}",
                    unknown[0],
                    self.vocab_size - 1,
                ),
                advice=tr("The tokenizer does not belong to this model."),
            )

    def allowed(self, settings: GenerateSettings) -> AllowedTokens:
        """The tokens that may come next; computed once for all requests with these two settings."""
        key = settings.allow_unseen, settings.valid_utf8
        if key not in self._allowed:
            self._allowed[key] = self._make_allowed(*key)
        return self._allowed[key]

    def sequence(self, request: Request) -> GeneratedSequence:
        """A request ready for the engine. Raises `GenerationError` for ids of prompt or biases that do not exist."""
        self.check_ids([*request.ids, *request.logit_bias])
        return GeneratedSequence(request, self.tokenizer, self.allowed(request.settings), vocab_size=self.vocab_size)

    def _make_allowed(self, allow_unseen: bool, valid_utf8: bool) -> AllowedTokens:
        tokenizer = self.tokenizer
        never = {tokenizer.pad_id, tokenizer.bos_id, *range(tokenizer.vocab_size, self.vocab_size)}
        if not allow_unseen:
            never |= set(self.unseen)
        never -= {tokenizer.eos_id}  # some tokenizers use one token for BOS, EOS and padding
        return AllowedTokens(
            [token for token in never if token < self.vocab_size],
            steps_SV=tokenizer.utf8_steps if valid_utf8 else None,
            vocab_size=self.vocab_size,
            eos_id=tokenizer.eos_id,
        )
