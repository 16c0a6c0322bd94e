"""The position, token and attention that a view is about, as a person or a program names them."""

from __future__ import annotations

from collections.abc import Sequence

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.parts import AttentionPart, attention_part
from mingyue.inspection.subject import Subject
from mingyue.inspection.tokens import token_label
from mingyue.words import tr


def chosen_position(position: int | None, pieces: Sequence[str]) -> int:
    """The position, or the last one where none is given. Raises `SettingsError` for one outside the text."""
    if position is None:
        return len(pieces) - 1
    if not 0 <= position < len(pieces):
        raise SettingsError(
            tr(
                "there is no position {position}: the text has {n_pieces} tokens, counted from 0", position, len(pieces)
            ),
            advice=tr("Give a position from 0 to {n_pieces}.", len(pieces) - 1),
        )
    return position


def chosen_part(subject: Subject, name: str | None) -> AttentionPart:
    """The kind of attention of that name; by default cross-attention, or the only kind of a decoder-only model.

    Raises `SettingsError` for one that the model does not have.
    """
    return attention_part(subject, name or ("cross" if subject.of_pairs else "self"))


def chosen_token(subject: Subject, token: str | int) -> int:
    """The id of a token given as text, by its label in tables (`<eos>`, `⏎`), or as an id.

    Raises `GenerationError` for a text of several tokens, and for an id that the model does not have.
    """
    vocab_size = min(subject.module.config.vocab_size, subject.tokenizer.vocab_size)
    if isinstance(token, str):
        ids = subject.tokenizer.encode(token)
        if len(ids) != 1:
            ids = [index for index in range(vocab_size) if token_label(subject.tokenizer, index) == token] or ids
        if len(ids) != 1:
            raise GenerationError(
                tr("{token!r} is {n_ids} tokens, not 1", token, len(ids)),
                advice=tr("Give the text of one token, or its label in tables; in Python also its id."),
            )
        token = ids[0]
    if not 0 <= token < vocab_size:
        raise GenerationError(tr("there is no token {token}: ids are 0 to {vocab_size}", token, vocab_size - 1))
    return token
