"""Real text for claims: the help topics that Python carries, as ids; and losses token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.data.corpora import resolve_corpus
from mingyue.data.report import ReadReport
from mingyue.errors import DataError
from mingyue.models import DecoderOnly, build_model
from mingyue.runtime import derive_seed
from mingyue.text import train_bpe, train_char
from mingyue.words import tr

_HELD_OUT = 0.1


@dataclass(frozen=True)
class Text:
    """A text in ids. Its end is held out; the vocabulary comes from the rest."""

    train_N: Tensor
    held_N: Tensor
    vocab_size: int
    held_characters: int

    def batch(self, rows: int, length: int, seed: int, step: int) -> Tensor:
        """ids_BT: `rows` stretches of the training part, from positions that are a pure function of seed and step."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "stretches", step))
        start_B1 = torch.randint(len(self.train_N) - length + 1, (rows, 1), generator=generator)
        return self.train_N[start_B1 + torch.arange(length)]

    def held_windows(self, length: int, at_most: int) -> Tensor:
        """ids_BT: held-out text in stretches of `length` that do not overlap, `at_most` of them, evenly spread."""
        count = len(self.held_N) // length
        windows_BT = self.held_N[: count * length].view(count, length)
        return windows_BT if count <= at_most else windows_BT[torch.arange(at_most) * count // at_most]


def python_docs(pieces: int | None = None) -> Text:
    """The corpus python-docs by characters, or by a byte-level BPE vocabulary of `pieces` ids.

    The same for every run of one version of Python; other versions have other help texts. Raises `DataError` where
    this Python has none.
    """
    path = resolve_corpus("python-docs", ReadReport())
    if path is None:
        raise DataError(tr("the corpus python-docs is not known"))
    text = path.read_text(encoding="utf-8")
    cut = round(len(text) * (1 - _HELD_OUT))
    train, held = text[:cut], text[cut:]
    tokenizer = train_char([train]) if pieces is None else train_bpe([train], vocab_size=pieces)
    train_N, held_N = (torch.from_numpy(tokenizer.encode_array(part)).long() for part in (train, held))
    return Text(train_N, held_N, tokenizer.vocab_size, len(held))


@torch.no_grad()
def token_losses(model: DecoderOnly, ids_BT: Tensor, *, rows: int = 32) -> Tensor:
    """−log P of ids_BT[:, 1:], each given the tokens before it: [B, T − 1], in nats. `rows` at a time."""
    parts = list[Tensor]()
    for part_BT in ids_BT.split(rows):
        logits_BTV = model(part_BT[:, :-1])
        parts.append(F.cross_entropy(logits_BTV.transpose(1, 2), part_BT[:, 1:], reduction="none"))
    return torch.cat(parts)


def changed(model: DecoderOnly, **changes: object) -> DecoderOnly:
    """The same weights in another configuration: a model of a changed config whose weights have the same shapes."""
    other = build_model(model.config.replace(**changes), seed=0)
    other.load_state_dict(model.state_dict())
    return other.eval()
