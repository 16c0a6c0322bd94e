"""Sentences whose common word has several senses, and models that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.grammar import Lexicon, Sentence
from mingyue.claims.training import fit, tiny
from mingyue.models import DecoderOnly, EncoderDecoder

Task = Literal["translate", "guess"]
"""translate: each word is named, the common one by its translation; guess: masked words are guessed."""

LAYERS, MASKED = 2, 0.3
_WIDTH, _BATCH, _RATE = 32, 32, 1e-2
_PAD, _MASK = "□", "■"


@dataclass(frozen=True)
class Corpus:
    """Sentences as ids, padded to one length, each with the sense of their common word."""

    words: Lexicon
    ids_BT: Tensor
    lengths_B: Tensor
    senses: Sequence[str]
    position: int
    """Of the word, in all of them."""
    translated_BT: Tensor
    """The same with the word replaced by its translation; padding is −100."""
    real_BT: Tensor
    """True where there is no padding."""


def corpus_of(sentences: Sequence[tuple[Sentence, str]], word: str) -> Corpus:
    """Each sentence once. The translation of the word is a new word for each sense."""
    known = dict(sentences)
    position = next(iter(known)).index(word)
    longest = max(map(len, known))
    meanings = {sense: f"{word}:{sense}" for sense in known.values()}
    words = Lexicon([_PAD, _MASK, *(word for sentence in known for word in sentence), *meanings.values()])
    ids_BT = words.tensor([(*sentence, *[_PAD] * (longest - len(sentence))) for sentence in known])
    real_BT = ids_BT != words[_PAD]
    translated_BT = ids_BT.masked_fill(~real_BT, -100)
    translated_BT[:, position] = torch.tensor([words[meanings[sense]] for sense in known.values()])
    return Corpus(words, ids_BT, real_BT.sum(1), list(known.values()), position, translated_BT, real_BT)


def other_wording(corpus: Corpus) -> Tensor:
    """True [B, B] for two sentences that share no word which occurs with one sense alone.

    Vectors of sentences with the same words are alike in any network; only these show whether a sense is recognised.
    """
    has_BV = F.one_hot(corpus.ids_BT, len(corpus.words)).amax(1).float()
    numbers = {sense: number for number, sense in enumerate(dict.fromkeys(corpus.senses))}
    of_BS = F.one_hot(torch.tensor([numbers[sense] for sense in corpus.senses])).float()
    tells_V = (of_BS.T @ has_BV > 0).sum(0) == 1
    telling_BV = has_BV[:, tells_V]
    return telling_BV @ telling_BV.T == 0


def new_encoder(corpus: Corpus, seed: int) -> EncoderDecoder:
    """A model with an untrained encoder."""
    return tiny(
        len(corpus.words),
        context=corpus.ids_BT.shape[1],
        d_model=_WIDTH,
        n_layers=1,
        n_encoder_layers=LAYERS,
        architecture="encoder-decoder",
        initialisation="xavier",
        seed=seed,
    )


def train_encoder(model: EncoderDecoder, corpus: Corpus, task: Task, steps: int, seed: int) -> None:
    """Train the encoder under the output layer alone. `guess` masks as Devlin et al. 2019 do."""

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed * 100_003 + step)
        rows_B = torch.randint(len(corpus.ids_BT), (_BATCH,), generator=draw)
        ids_BT, lengths_B = corpus.ids_BT[rows_B], corpus.lengths_B[rows_B]
        if task == "translate":
            return ids_BT, lengths_B, corpus.translated_BT[rows_B]
        hidden_BT = (torch.rand(ids_BT.shape, generator=draw) < MASKED) & corpus.real_BT[rows_B]
        return ids_BT.masked_fill(hidden_BT, corpus.words[_MASK]), lengths_B, ids_BT.masked_fill(~hidden_BT, -100)

    def loss(model: EncoderDecoder, texts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids_BT, lengths_B, targets_BT = texts
        logits_BTV = model.output(model.encode(ids_BT, source_lengths_B=lengths_B))
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())

    fit(model, batch, loss, steps=steps, learning_rate=_RATE, seed=seed)


def beginning_with_word(corpus: Corpus) -> Tensor:
    """ids_BT without the words before the common one, padded to the same length."""
    filler_BT = torch.full((len(corpus.ids_BT), corpus.position), corpus.words[_PAD])
    return torch.cat([corpus.ids_BT[:, corpus.position :], filler_BT], dim=1)


def causal_model(corpus: Corpus, steps: int, seed: int) -> DecoderOnly:
    """A causal model of the next word, of whole sentences and of their parts that begin with the word.

    With 0 steps it is untrained.
    """
    texts_NT = torch.cat([corpus.ids_BT, beginning_with_word(corpus)])
    pad = corpus.words[_PAD]

    def batch(step: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed * 100_003 + step)
        return texts_NT[torch.randint(len(texts_NT), (_BATCH,), generator=draw)]

    def loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        targets_BT = ids_BT[:, 1:].masked_fill(ids_BT[:, 1:] == pad, -100)
        return F.cross_entropy(model(ids_BT[:, :-1]).flatten(0, 1), targets_BT.flatten())

    model = tiny(
        len(corpus.words),
        context=texts_NT.shape[1],
        d_model=_WIDTH,
        n_layers=LAYERS,
        initialisation="xavier",
        seed=seed,
    )
    fit(model, batch, loss, steps=steps, learning_rate=_RATE, seed=seed)
    return model
