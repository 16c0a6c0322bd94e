"""The command of activation patching (`patching`): two texts, and the tokens that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mingyue.config import Count
from mingyue.errors import GenerationError
from mingyue.inspection.choices import chosen_position, chosen_token
from mingyue.inspection.command import ONE_TEXT, Command, Option
from mingyue.inspection.patching import PatchingView, check_lengths, patching
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.tokens import token_label
from mingyue.words import tr


@torch.inference_mode()
def patch_view(
    subject: Subject,
    reading: Reading,
    *,
    other: str,
    answer: str | int | None = None,
    instead: str | int | None = None,
    tap: Sequence[str] | None = None,
    position: int | None = None,
) -> PatchingView:
    """Read `other`, the corrupted text, with one vector of the text at a time, at each tap and position in turn.

    For an encoder-decoder model both are sources of the same target. By default `answer` and `instead` are the most
    likely next tokens of the two texts at `position`, which is the last one where these differ (of a target the first:
    what follows it fits one text only). Raises as `patching` does, and `GenerationError` where both texts have the same
    most likely token.
    """
    corrupted = subject.read(reading.text, other) if subject.of_pairs else subject.read(other)
    check_lengths(reading, corrupted)
    clean_TV, corrupted_TV = subject.logits(reading), subject.logits(corrupted)
    if position is None and answer is None and instead is None:
        apart = (clean_TV.argmax(-1) != corrupted_TV.argmax(-1)).nonzero()
        position = int(apart[0 if subject.of_pairs else -1]) if len(apart) else None
    here = chosen_position(position, reading.pieces)
    wanted = None if answer is None else chosen_token(subject, answer)
    refused = None if instead is None else chosen_token(subject, instead)
    if wanted is None:
        wanted = _likeliest(clean_TV[here], refused)
        if refused is None and wanted == _likeliest(corrupted_TV[here], None):
            raise GenerationError(
                tr(
                    "after both texts {token_label!r} is the most likely token at position {here}: there "
                    "is no difference to look for",
                    token_label(subject.tokenizer, wanted),
                    here,
                ),
                advice=tr("Give two tokens with --answer and --instead, or another --position."),
            )
    if refused is None:
        refused = _likeliest(corrupted_TV[here], wanted)
    places = tap or ("encoder.blocks.*.output" if subject.of_pairs else None)  # where the two source texts differ
    return patching(subject, reading, corrupted, answer=wanted, instead=refused, places=places, at=here)


def _likeliest(logits_V: Tensor, but: int | None) -> int:
    """The most likely token, other than `but`."""
    return next(index for index in logits_V.topk(min(2, len(logits_V))).indices.tolist() if index != but)


COMMAND = Command(
    patch_view,
    options=(
        *ONE_TEXT,
        Option(
            "other",
            str,
            "Corrupted text, of as many tokens as --text, the clean one: it is read with one vector of the clean text "
            "at a time. For an encoder-decoder model a source text.",
        ),
        Option("answer", str, "Token that the clean text predicts.", "its most likely next token"),
        Option("instead", str, "Token that the corrupted text predicts.", "its most likely next token"),
        Option(
            "tap",
            list[str],
            "Tap or pattern to patch, such as blocks.*.attention.output; may be repeated.",
            "the residual stream after each block (of the encoder)",
        ),
        Option(
            "position",
            Count,
            "Position whose next token is compared, counted from 0.",
            "the last where the two predictions differ; of a target the first",
        ),
    ),
)
