"""Watching a text during training (`--watch`): a frame of the film at the start and at each checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from mingyue.config import TranslateSettings
from mingyue.errors import MingyueError, SettingsError
from mingyue.generation import translate
from mingyue.inspection import Reading, Subject
from mingyue.inspection.frames import take_frame, write_frame
from mingyue.models import EncoderDecoder
from mingyue.words import tr


class Watcher:
    """Computes frames of one text with the current model and saves them. An error here does not end training."""

    def __init__(
        self, subject: Subject, text: str, folder: Path, *, tell: Callable[[str], None], compiled: bool = False
    ) -> None:
        self._subject = subject
        self._text = text
        self._folder = folder
        self._tell = tell
        self._compiled = compiled
        self._told: set[str] = set()

    def __call__(self, step: int) -> None:
        """Save the frame of a step. Each error is reported once."""
        try:
            with self._uncompiled():
                frame = take_frame(self._subject, read_watched(self._subject, self._text), step)
            write_frame(self._folder, frame)
        except MingyueError as error:
            if error.message not in self._told:
                self._told.add(error.message)
                self._tell(
                    tr("No frame of the watched text was saved at step {step:,}: {message}.", step, error.message)
                )

    def _uncompiled(self) -> AbstractContextManager[object]:
        """Run compiled blocks eagerly: a forward pass with taps must not compile them again."""
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()


def read_watched(subject: Subject, text: str) -> Reading:
    """The watched text as the model reads it; for an encoder-decoder model with its own greedy translation."""
    if not isinstance(subject.module, EncoderDecoder):
        return subject.read(text)
    source_tokenizer = subject.source_tokenizer
    assert source_tokenizer is not None
    settings, tokenizers = TranslateSettings(beam=1), (source_tokenizer, subject.tokenizer)
    best = translate(subject.module, *tokenizers, [text], settings, unseen=subject.unseen)[0][0]
    return subject.read(fitting(subject, best.text), text)


def fitting(subject: Subject, target: str) -> str:
    """The beginning of a translation that fits the context, which one without an EOS token fills completely."""
    room = subject.module.config.context - 1  # besides the EOS or BOS token
    while len(subject.tokenizer.encode(target)) > room:
        target = target[:-1]
    return target


def check_watched(subject: Subject, text: str) -> None:
    """Raise `SettingsError` for a text that the model cannot read. The model needs no weights."""
    try:
        subject.read("" if subject.of_pairs else text, text if subject.of_pairs else None)
    except MingyueError as error:
        raise SettingsError(tr("--watch: {message}", error.message), advice=error.advice) from error
