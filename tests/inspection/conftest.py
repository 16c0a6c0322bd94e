"""Models whose attention is known because every weight was set by hand, and small ones whose weights are random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.inspection import Subject
from mingyue.models import Transformer, build_model
from mingyue.nn import Attention, CrossAttention, MultiHeadAttention
from mingyue.text import Tokenizer, train_char

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONTEXT = 40
SHARP = 40.0  # the score of what a head looks for; all else has 0


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    """A token for each small letter."""
    return train_char([LETTERS])


class Slots:
    """The residual stream of the models by hand: one-hot vectors of token, position, token before, and answer."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.token = slice(0, vocab_size)
        self.position = slice(vocab_size, vocab_size + CONTEXT)
        self.before = slice(self.position.stop, self.position.stop + vocab_size)
        self.answer = slice(self.before.stop, self.before.stop + vocab_size)
        self.width = self.answer.stop
        self.d_head = vocab_size + CONTEXT

    def config(self) -> dict[str, object]:
        return {
            "vocab_size": self.vocab_size,
            "context": CONTEXT,
            "d_model": self.width,
            "n_heads": 4,
            "n_kv_heads": 4,
            "d_head": self.d_head,
            "d_ff": 1,
            "positions": "learned",
            "norm": "rms",
            "feedforward": "relu",
            "bias_qkv": True,
            "tied_output": False,
        }

    def reads(self, slot: slice, *, shift: int = 0, sign: float = 1.0) -> Tensor:
        """[D, M]: a head's vector says what stands in a slot; shift 1: what stands one further."""
        matrix = torch.zeros(self.d_head, self.width)
        size = slot.stop - slot.start
        start = self.vocab_size if slot is self.position else 0
        for place in range(size):
            if 0 <= place + shift < size:
                matrix[start + place, slot.start + place + shift] = sign
        return matrix

    def constant(self, slot: slice, number: int) -> Tensor:
        """[D]: a vector that looks for one thing, whoever asks."""
        vector = torch.zeros(self.d_head)
        vector[(self.vocab_size if slot is self.position else 0) + number] = 1.0
        return vector


def blank(model: Transformer, slots: Slots) -> None:
    """One-hot embeddings and positions, gains of 1; all else 0."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            if name.endswith("embedding.weight"):
                weight[:, slots.token] = torch.eye(slots.vocab_size)
            elif name.endswith("positions.table"):
                weight[:, slots.position] = torch.eye(CONTEXT)


def look(
    attention: Attention,
    head: int,
    *,
    query: Tensor | None = None,
    key: Tensor,
    wanted: Tensor | None = None,
    ones: int,
) -> None:
    """The head's scores are `SHARP` where its query meets its key. `ones`: non-zero places of the stream there."""
    d_head, width = key.shape
    scale = (SHARP * d_head**0.5) ** 0.5 / (width / ones) ** 0.5  # the norm makes each 1 of the stream √(M / ones)
    rows = slice(head * d_head, (head + 1) * d_head)
    if isinstance(attention, MultiHeadAttention):
        first_key = attention.n_heads * d_head
        into = [(attention.qkv, rows), (attention.qkv, slice(first_key + rows.start, first_key + rows.stop))]
    else:
        assert isinstance(attention, CrossAttention)
        into = [(attention.query, rows), (attention.key_value, rows)]
    with torch.no_grad():
        if query is not None:
            into[0][0].weight[into[0][1]] = query * scale
        if wanted is not None:
            into[0][0].bias[into[0][1]] = wanted * scale * (width / ones) ** 0.5
        into[1][0].weight[into[1][1]] = key * scale


def write(attention: MultiHeadAttention, head: int, slots: Slots, into: slice, *, ones: int) -> None:
    """The head writes the token that it looks at into a slot."""
    d_head = slots.d_head
    start = 2 * attention.n_heads * d_head + head * d_head
    gain = (slots.width / ones) ** 0.5
    with torch.no_grad():
        attention.qkv.weight[start : start + d_head] = slots.reads(slots.token)
        attention.output.weight[into, head * d_head : head * d_head + slots.vocab_size] = (
            torch.eye(slots.vocab_size) / gain
        )


@pytest.fixture(scope="session")
def known(letters: Tokenizer) -> Subject:
    """Layer 0: previous, itself, first, nothing. Layer 1: induction (it answers), earlier occurrence, twice nothing.

    The induction head finds what followed the earlier occurrence by what the previous-token head wrote.
    """
    slots = Slots(letters.vocab_size)
    model = build_model(ModelConfig(n_layers=2, **slots.config()), seed=0).eval()
    blank(model, slots)
    first, second = (block.attention for block in model.every_block())
    token, position = slots.reads(slots.token), slots.reads(slots.position)
    look(first, 0, query=slots.reads(slots.position, shift=1), key=position, ones=2)
    write(first, 0, slots, slots.before, ones=2)
    look(first, 1, query=position, key=position, ones=2)
    look(first, 2, wanted=slots.constant(slots.position, 0), key=position, ones=2)
    look(second, 0, query=token, key=slots.reads(slots.before), ones=3)
    write(second, 0, slots, slots.answer, ones=3)
    look(second, 1, query=token - position, key=token + position, ones=3)
    with torch.no_grad():
        model.output.weight[:, slots.answer] = torch.eye(slots.vocab_size)
    return Subject(model, letters)


@pytest.fixture(scope="session")
def five_back(letters: Tokenizer) -> Subject:
    """One layer, whose first head looks five tokens back; the others do nothing."""
    slots = Slots(letters.vocab_size)
    model = build_model(ModelConfig(n_layers=1, **slots.config()), seed=0).eval()
    blank(model, slots)
    (block,) = model.every_block()
    position = slots.reads(slots.position)
    look(block.attention, 0, query=slots.reads(slots.position, shift=5), key=position, ones=2)
    return Subject(model, letters)


@pytest.fixture(scope="session")
def known_pairs(letters: Tokenizer) -> Subject:
    """Encoder: next, end mark. Decoder: previous, first. Cross: the same place, end mark. The other heads: nothing."""
    slots = Slots(letters.vocab_size)
    config = EncoderDecoderConfig(n_layers=1, n_encoder_layers=1, **slots.config())
    model = build_model(config, seed=0).eval()
    blank(model, slots)
    encoder, decoder = model.every_block()
    token, position = slots.reads(slots.token), slots.reads(slots.position)
    end = slots.constant(slots.token, letters.eos_id)
    look(encoder.attention, 0, query=slots.reads(slots.position, shift=-1), key=position, ones=2)
    look(encoder.attention, 1, wanted=end, key=token, ones=2)
    look(decoder.attention, 0, query=slots.reads(slots.position, shift=1), key=position, ones=2)
    look(decoder.attention, 1, wanted=slots.constant(slots.position, 0), key=position, ones=2)
    look(decoder.cross_attention, 0, query=position, key=position, ones=2)
    look(decoder.cross_attention, 1, wanted=end, key=token, ones=2)
    return Subject(model, letters, letters)


def enliven(model: Transformer, seed: int) -> Transformer:
    """Every weight random and large enough that each part matters to the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            gain = name.endswith("norm.weight")
            scale = 0.3 if gain or weight.ndim == 1 else 1.5 / weight.shape[1] ** 0.5
            weight.copy_(noise * scale + (1.0 if gain else 0.0))
    return model.eval()


SMALL = {"context": 32, "d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_head": 6, "d_ff": 20}


@pytest.fixture
def lively(letters: Tokenizer) -> Callable[..., Subject]:
    """`lively(**changes)`: a small Mini-GPT with random weights; `changes` are fields of ModelConfig."""

    def make(*, seed: int = 0, starts_with_bos: bool = False, **changes) -> Subject:
        config = ModelConfig(**{"vocab_size": letters.vocab_size, **SMALL, **changes})
        return Subject(enliven(build_model(config, seed=seed), seed), letters, starts_with_bos=starts_with_bos)

    return make


@pytest.fixture
def lively_pairs(letters: Tokenizer) -> Callable[..., Subject]:
    """The same for pairs, with an encoder of 3 blocks; `changes` are fields of EncoderDecoderConfig."""

    def make(*, seed: int = 0, **changes) -> Subject:
        config = EncoderDecoderConfig(**{"vocab_size": letters.vocab_size, **SMALL, "n_encoder_layers": 3, **changes})
        return Subject(enliven(build_model(config, seed=seed), seed), letters, letters)

    return make
