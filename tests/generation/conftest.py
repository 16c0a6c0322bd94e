"""Small lively models, a tokenizer of letters, and a reference that writes without any of the machinery under test."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mingyue.config import EncoderDecoderConfig, GenerateSettings, ModelConfig
from mingyue.models import DecoderOnly, EncoderDecoder, build_model
from mingyue.runtime import derive_seed
from mingyue.text.utf8 import utf8_steps

KINDS = {
    "none": {"positions": "none"},
    "learned": {"positions": "learned", "norm": "layer", "bias_qkv": True, "feedforward": "gelu"},
    "sinusoidal": {"positions": "sinusoidal", "norm_placement": "post", "final_norm": False, "feedforward": "relu"},
    "rotary": {"positions": "rotary", "qk_norm": True},
    "rotary, window": {"positions": "rotary", "window": 3},
    "learned, window": {"positions": "learned", "window": 5},
}
PAIR_KINDS = {name: fields for name, fields in KINDS.items() if "window" not in fields}
SMALL = {"d_model": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_head": 6, "d_ff": 32, "context": 16}
NEAR = 1e-4  # nats


class Letters:
    """PAD, BOS, EOS and the letters from a, one token each; the last letter is a line end too."""

    def __init__(self, n_letters: int = 20, *, pad: int = 0, bos: int = 1, eos: int = 2) -> None:
        self.pad_id, self.bos_id, self.eos_id = pad, bos, eos
        self.vocab_size = 3 + n_letters

    def encode(self, text: str) -> list[int]:
        return [self.vocab_size - 1 if letter == "\n" else ord(letter) - ord("a") + 3 for letter in text]

    def decode(self, ids: Sequence[int], *, whole: bool = False) -> str:
        return "".join(chr(ord("a") + index - 3) for index in ids if index > 2)

    def stream(self) -> SimpleNamespace:
        return SimpleNamespace(push=lambda index: self.decode([index]), finish=lambda: "")

    def token_bytes(self, index: int) -> bytes:
        return self.decode([index]).encode("utf-8")

    @property
    def utf8_steps(self) -> np.ndarray:
        return utf8_steps([self.token_bytes(index) for index in range(self.vocab_size)])

    def token_text(self, index: int) -> str:
        return self.decode([index]) or f"<{index}>"


@pytest.fixture
def letters() -> Callable[..., Letters]:
    return Letters


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def lively() -> Callable[..., DecoderOnly]:
    """`lively(kind, vocab_size, seed=0, **changes)`: every weight random and large, so that texts are far from ties."""

    def make(kind: str = "rotary", vocab_size: int = 23, seed: int = 0, **changes) -> DecoderOnly:
        config = ModelConfig(**{**SMALL, "vocab_size": vocab_size, **KINDS[kind], **changes})
        model = build_model(config, seed=seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():  # by name: whatever order they are in
                generator = torch.Generator().manual_seed(derive_seed(seed, name))
                noise = torch.randn(weight.shape, generator=generator)
                gain = name.endswith("norm.weight")
                weight.copy_(noise * (0.3 if gain or weight.ndim == 1 else 1.5 / weight.shape[1] ** 0.5) + float(gain))
        return model.eval()

    return make


@pytest.fixture(params=PAIR_KINDS)
def pair_kind(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def lively_pair() -> Callable[..., EncoderDecoder]:
    """`lively_pair(kind, vocab_size, seed=0, **changes)`: an encoder-decoder model with large random weights."""

    def make(kind: str = "rotary", vocab_size: int = 23, seed: int = 0, **changes) -> EncoderDecoder:
        fields = {**SMALL, "n_encoder_layers": 2, "context": 24, "vocab_size": vocab_size, "tied_output": False}
        model = build_model(EncoderDecoderConfig(**{**fields, **PAIR_KINDS[kind], **changes}), seed=seed)
        with torch.no_grad():
            for number, (name, weight) in enumerate(sorted(model.named_parameters())):
                noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1000 * seed + number))
                gain = name.endswith("norm.weight")
                scale = 0.3 if gain or weight.ndim == 1 else 1.5 / weight.shape[1] ** 0.5
                sharp = 2.0 if name == "output.weight" or "cross_attention" in name else 1.0
                weight.copy_(noise * scale * sharp + float(gain))
        return model.eval()

    return make


@pytest.fixture
def chain() -> Callable[..., EncoderDecoder]:
    """`chain(probabilities, context)`: P(next | last token) is row `last` of the table, whatever the source says."""

    def make(probabilities: Sequence[Sequence[float]], context: int = 12) -> EncoderDecoder:
        size = len(probabilities)
        config = EncoderDecoderConfig(
            vocab_size=size,
            context=context,
            d_model=size,
            n_layers=1,
            n_encoder_layers=1,
            n_heads=1,
            n_kv_heads=1,
            d_head=2,
            d_ff=2,
            positions="none",
            final_norm=False,
            tied_output=False,
        )
        model = build_model(config, seed=0)
        with torch.no_grad():
            for name, weight in model.decoder.named_parameters():
                if name.endswith("output.weight"):
                    weight.zero_()  # the block adds nothing
            model.embedding.weight.copy_(torch.eye(size))
            model.output.weight.copy_(torch.tensor(probabilities).clamp(min=1e-30).log().T)
        return model.eval()

    return make


@pytest.fixture
def scripted() -> Callable[..., DecoderOnly]:
    """`scripted(ids, vocab_size)`: a model whose token at place p is `ids[p]`, whatever stands before it."""

    def make(ids: Sequence[int], vocab_size: int) -> DecoderOnly:
        config = ModelConfig(
            vocab_size=vocab_size,
            context=len(ids),
            d_model=len(ids),
            n_layers=1,
            n_heads=1,
            n_kv_heads=1,
            d_head=2,
            d_ff=2,
            positions="learned",
            final_norm=False,
            tied_output=False,
            initialisation="zero-output",  # the block adds nothing
        )
        model = build_model(config, seed=0)
        with torch.no_grad():
            model.embedding.weight.zero_()
            model.positions.table.copy_(torch.eye(len(ids)))
            for place, index in enumerate(ids[1:]):
                model.output.weight[index, place] = 10.0
        return model.eval()

    return make


def visible(ids: list[int], context: int) -> list[int]:
    """DESIGN: all of it up to the context; past it, what follows the first multiple of half a context that fits."""
    start, half = 0, max(1, context // 2)
    while len(ids) - start > context:
        start += half
    return ids[start:]


def kept_and_weights(
    logits: list[float], ids: list[int], n_written: int, settings: GenerateSettings, tokenizer: Letters
) -> dict[int, float]:
    """Candidates and their weights, step by step as the documentation says, in plain Python."""
    values = dict(enumerate(logits))
    if settings.repetition_penalty != 1.0:
        penalty = settings.repetition_penalty
        values |= {i: values[i] / penalty if values[i] > 0 else values[i] * penalty for i in set(ids)}
    never = {tokenizer.pad_id, tokenizer.bos_id} - {tokenizer.eos_id}
    if n_written < settings.min_new_tokens:
        never.add(tokenizer.eos_id)
    order = sorted((i for i in values if i not in never and i < tokenizer.vocab_size), key=lambda i: (-values[i], i))
    if settings.temperature == 0:
        return {order[0]: 1.0}
    weights = {i: math.exp((values[i] - values[order[0]]) / settings.temperature) for i in order}
    if settings.top_k:
        order = order[: settings.top_k]
    total, reached, nucleus = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if reached >= settings.top_p * total and settings.top_p < 1:
            break
        nucleus.append(i)
        reached += weights[i]
    least = settings.min_p * weights[nucleus[0]]
    return {i: weights[i] for i in nucleus if weights[i] >= least}


def write_plainly(
    model: DecoderOnly, tokenizer: Letters, ids: list[int], settings: GenerateSettings, index: int = 0, sample: int = 0
) -> list[int]:
    """The ids that DESIGN's rules give: one text, no cache, no batch, one token after the other."""
    written: list[int] = []
    while len(written) < settings.max_new_tokens:
        with torch.no_grad():
            logits = model(torch.tensor([visible(ids + written, model.config.context)]))[0, -1].double().tolist()
        weights = kept_and_weights(logits, ids + written, len(written), settings, tokenizer)
        number = (
            (derive_seed(settings.seed, "token", index, sample, len(written)) >> 15) / 2**48 * sum(weights.values())
        )
        for token in sorted(weights):
            number -= weights[token]
            if number < 0:
                break
        written.append(token)
        if token == tokenizer.eos_id:
            break
    return written


class SameText:
    """Compares ids with expected ones. A first difference may only be a near tie, which is verified and counted."""

    def __init__(self) -> None:
        self.compared, self.ties = 0, 0

    def check(
        self,
        model: DecoderOnly,
        tokenizer: Letters,
        prompt_ids: list[int],
        expected: Sequence[int],
        found: Sequence[int],
        settings: GenerateSettings,
        *,
        index: int = 0,
        sample: int = 0,
    ) -> None:
        self.compared += 1
        if list(expected) == list(found):
            return
        place = next(
            (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
        )
        assert place < min(len(expected), len(found)), f"one stops after {place}: {expected} and {found}"
        before = prompt_ids + list(expected[:place])
        with torch.no_grad():
            logits = model(torch.tensor([visible(before, model.config.context)]))[0, -1].double()
        if settings.temperature == 0:
            distance = abs(logits[expected[place]] - logits[found[place]]).item()
        else:  # the number that decides stands at the border between the two
            weights = kept_and_weights(logits.tolist(), before, place, settings, tokenizer)
            total = sum(weights.values())
            number = (derive_seed(settings.seed, "token", index, sample, place) >> 15) / 2**48
            low, high = sorted((expected[place], found[place]))
            assert {low, high} <= weights.keys()
            border = sum(weight for token, weight in weights.items() if token <= low) / total
            upper = sum(weight for token, weight in weights.items() if token < high) / total
            distance = max(abs(border - number), abs(upper - number))
        assert distance < NEAR, f"token {place} differs and is no near tie ({distance} nats): {expected} and {found}"
        self.ties += 1


@pytest.fixture
def same_text() -> Iterator[SameText]:
    same = SameText()
    yield same
    print(f"{same.compared} texts compared, {same.ties} near ties")
    if same.ties:
        warnings.warn(f"{same.ties} of {same.compared} texts differ by a near tie", stacklevel=1)


@pytest.fixture
def plainly() -> Callable[..., list[int]]:
    return write_plainly
