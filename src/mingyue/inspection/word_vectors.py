"""The vectors of one word wherever it occurs in several texts: cosines, principal components, a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mingyue.charts.fonts import display_width
from mingyue.charts.side_labels import LABEL_COLUMNS
from mingyue.errors import GenerationError, NothingToShowError
from mingyue.inspection.arrays import Floats, Ints, to_numpy
from mingyue.inspection.capture import capture
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.taps import stream_taps
from mingyue.inspection.tokens import Occurrence, decoded, occurrences
from mingyue.models import EncoderDecoder
from mingyue.printable import printable
from mingyue.words import tr

MOST_TEXTS = 64
MOST_OCCURRENCES = 32
"""More are counted, not shown."""
_MOST_OTHERS = 512  # tokens that the random pairs are drawn from
_N_PAIRS = 1000
_AROUND = 6  # characters shown on either side of a word


@dataclass(frozen=True, eq=False)
class WordVectors:
    """The vectors of one word, N occurrences, in L rows: the table ("static"), embeddings, each layer, final."""

    word: str
    pieces: tuple[str, ...]
    """The tokens of the word where it first occurs; vectors are those of the last."""
    texts: tuple[str, ...]
    labels_N: tuple[str, ...]
    """Each occurrence with its surrounding characters."""
    short_labels_N: tuple[str, ...]
    """The same with as many characters as the label of a matrix holds."""
    text_N: Ints
    """Which text it is in, from 0."""
    position_N: Ints
    """The position of its last token in the input, from 0."""
    token_N: Ints
    """The id of that token."""
    pieces_N: tuple[str, ...]
    """The same as printable text."""
    places_L: tuple[str, ...]
    """"static", then names of taps."""
    vectors_LNM: Floats
    cosines_LNN: Floats
    baseline_L3: Floats
    """Cosines of random pairs of other tokens of these texts: mean, 5 % and 95 %; NaN where there are none."""
    plane_N2: Floats
    """The final vectors on their first two principal components."""
    explained_2: Floats
    """Share of their variance on each."""
    alike: tuple[tuple[int, int], ...]
    """Pairs of occurrences whose vectors cannot differ: they attend to equal tokens at equal positions."""
    alike_apart: float
    """Largest difference of a number between the vectors of such pairs, relative to the largest number there."""
    causal: bool
    """Whether a token attends only to itself and the tokens before it; in an encoder it attends to the whole text."""
    found: int
    """Occurrences in all texts, including those beyond the first 32."""

    def pair_cosines_LP(self) -> Floats:  # noqa: N802  (the shape is in the name)
        """Cosines of all P pairs of different occurrences, by layer."""
        rows, columns = np.triu_indices(len(self.labels_N), k=1)
        return self.cosines_LNN[:, rows, columns]


def compare_word(subject: Subject, word: str, texts: Sequence[str], seed: int) -> WordVectors:
    """The vectors of `word` in `texts`, as `mingyue.inspection.vectors.vectors_view` describes."""
    if not word:
        raise NothingToShowError(tr("the word is empty"))
    if len(texts) > MOST_TEXTS:
        raise GenerationError(
            tr("{n_texts} texts, at most {most_texts} are compared", len(texts), MOST_TEXTS),
            advice=tr("Give fewer texts."),
        )
    read = [read_vectors(subject, word, number, text) for number, text in enumerate(texts, start=1)]
    spots = [(row, spot) for row, one in enumerate(read) for spot in one.spots]
    if len(spots) < 2:
        raise NothingToShowError(
            tr(
                "{word!r} occurs {n_spots} time{value}: there is nothing to compare it with",
                word,
                len(spots),
                "" if len(spots) == 1 else "s",
            ),
            advice=tr("Give at least two texts with the word, or one that has it twice."),
        )
    shown = spots[:MOST_OCCURRENCES]
    vectors_LNM = np.stack([read[row].vectors_LTM[:, spot.last] for row, spot in shown], axis=1)
    plane_N2, explained_2 = principal_plane(vectors_LNM[-1])
    prefixes = [tuple(read[row].ids[: spot.last + 1]) for row, spot in shown]
    causal = not subject.of_pairs
    alike = equal_contexts(prefixes, prefixes if causal else [tuple(read[row].ids) for row, _ in shown])
    row, spot = shown[0]
    return WordVectors(
        word=word,
        pieces=read[row].pieces[spot.first : spot.last + 1],
        texts=tuple(texts),
        labels_N=tuple(f"{number}. {read[row].around(spot)}" for number, (row, spot) in enumerate(shown, start=1)),
        short_labels_N=tuple(
            _short_label(number, read[row], spot) for number, (row, spot) in enumerate(shown, start=1)
        ),
        text_N=np.array([row for row, _ in shown], dtype=np.int64),
        position_N=np.array([spot.last for _, spot in shown], dtype=np.int64),
        token_N=np.array([prefix[-1] for prefix in prefixes], dtype=np.int64),
        pieces_N=tuple(read[row].pieces[spot.last] for row, spot in shown),
        places_L=vector_taps(subject),
        vectors_LNM=vectors_LNM,
        cosines_LNN=np.stack([cosines(vectors_NM, vectors_NM) for vectors_NM in vectors_LNM]),
        baseline_L3=random_pair_cosines(read, np.random.default_rng(seed)),
        plane_N2=plane_N2,
        explained_2=explained_2,
        alike=alike,
        alike_apart=max(
            (largest_difference(vectors_LNM[:, one], vectors_LNM[:, other]) for one, other in alike), default=0.0
        ),
        causal=causal,
        found=len(spots),
    )


def _short_label(number: int, text: TextVectors, spot: Occurrence) -> str:
    """The label of an occurrence along a matrix, with the whole word if it fits at all."""
    labels = (f"{number}. {text.around(spot, most)}" for most in range(_AROUND, -1, -1))
    return next(
        (label for label in labels if display_width(label) <= LABEL_COLUMNS), f"{number}. {text.around(spot, 0)}"
    )


def equal_contexts(prefixes: Sequence[tuple[int, ...]], seen: Sequence[tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    """Pairs of occurrences whose vectors cannot differ: at the same position, with equal ids in what they attend to.

    `prefixes` are the ids up to each occurrence, `seen` the ids that it attends to.
    """
    numbers = range(len(prefixes))
    return tuple(
        (one, other)
        for one in numbers
        for other in numbers[one + 1 :]
        if seen[one] == seen[other] and len(prefixes[one]) == len(prefixes[other])
    )


def cosines(one_NM: Floats, other_KM: Floats) -> Floats:
    """Cosines of all pairs, [N, K]; 0 with a vector of zeros."""
    one, other = (vectors.astype(np.float64) for vectors in (one_NM, other_KM))
    lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
    product = one @ other.T
    return np.divide(product, lengths, out=np.zeros_like(product), where=lengths > 0).astype(np.float32)


def principal_plane(vectors_NM: Floats) -> tuple[Floats, Floats]:
    """PCA to two dimensions by SVD of the centred vectors: (points [N, 2], share of the variance of each [2]).

    The sign of an axis is free: here the point furthest from the mean is on its positive side.
    """
    centred_NM = vectors_NM.astype(np.float64) - vectors_NM.mean(axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred_NM, full_matrices=False)
    # Equal vectors differ only by rounding, which is no direction.
    sizes = np.where(sizes > 1e-6 * max(1e-30, float(np.linalg.norm(vectors_NM))), sizes, 0.0)
    points = np.zeros((len(vectors_NM), 2))
    n = min(2, len(sizes))
    points[:, :n] = left[:, :n] * sizes[:n]
    furthest = points[np.abs(points).argmax(axis=0), [0, 1]]
    shares = np.zeros(2)
    shares[:n] = sizes[:n] ** 2 / max(float((sizes**2).sum()), 1e-30)
    return (points * np.where(furthest < 0, -1.0, 1.0)).astype(np.float32), shares.astype(np.float32)


@dataclass(frozen=True, eq=False)
class TextVectors:
    """One text as the model reads it."""

    ids: list[int]
    pieces: tuple[str, ...]
    characters: str
    spots: list[Occurrence]
    vectors_LTM: Floats
    others: list[int]
    """Positions of tokens that are neither part of the word nor special."""

    def around(self, spot: Occurrence, most: int = _AROUND) -> str:
        """The word with at most `most` characters on either side of it, on one line."""
        before = self.characters[max(0, spot.start - most) : spot.start]
        after = self.characters[spot.end : spot.end + most]
        inside = f"{before}[{self.characters[spot.start : spot.end]}]{after}"
        inside = printable(inside.replace("\n", "⏎").replace("\t", "⇥"))
        return ("…" if spot.start > most else "") + inside + ("…" if spot.end + most < len(self.characters) else "")


def read_vectors(subject: Subject, word: str, number: int, text: str) -> TextVectors:
    """Read text `number` (counted from 1), find the word, and keep its vectors.

    Raises `NothingToShowError` for a text without the word, and as `Subject.read` does.
    """
    try:
        reading = subject.read("", source=text) if subject.of_pairs else subject.read(text)
    except GenerationError as error:
        raise GenerationError(tr("text {number}: {message}", number, error.message), advice=error.advice) from None
    ids_T, pieces, tokenizer = reading.ids_T, reading.pieces, subject.tokenizer
    if reading.source_ids_S is not None and subject.source_tokenizer is not None:
        ids_T, pieces, tokenizer = reading.source_ids_S, reading.source_pieces, subject.source_tokenizer
    ids: list[int] = ids_T.tolist()
    spots = occurrences(tokenizer, ids, word)
    if not spots:
        raise NothingToShowError(
            tr("text {number} does not have the word {word!r}: {short!r}", number, word, _short(text)),
            advice=tr("Give texts that contain the word exactly as written here."),
        )
    own = {place for spot in spots for place in range(spot.first, spot.last + 1)}
    return TextVectors(
        ids=ids,
        pieces=pieces,
        characters=decoded(tokenizer, ids)[0],
        spots=spots,
        vectors_LTM=_vectors(subject, reading),
        others=[t for t, index in enumerate(ids) if t not in own and index not in tokenizer.special_ids],
    )


def vector_taps(subject: Subject) -> tuple[str, ...]:
    """Names of the L rows of vectors: "static" (the embedding table), then the taps of the residual stream."""
    module = subject.module
    if isinstance(module, EncoderDecoder):
        return ("static", *stream_taps(module.config.n_encoder_layers, "encoder."))
    return ("static", *stream_taps(module.config.n_layers))


def _vectors(subject: Subject, reading: Reading) -> Floats:
    """vectors_LTM of a text: its rows of the table, then the residual stream."""
    module = subject.module
    places = vector_taps(subject)[1:]
    values = capture(subject, reading, places).values
    table, ids_T = module.embedding, reading.ids_T
    if isinstance(module, EncoderDecoder) and reading.source_ids_S is not None:
        table = module.source_embedding or module.embedding
        ids_T = reading.source_ids_S
    return np.stack([to_numpy(table.weight[ids_T]), *(to_numpy(values[place]) for place in places)])


def random_pair_cosines(read: Sequence[TextVectors], draw: np.random.Generator) -> Floats:
    """Mean, 5 % and 95 % of the cosines of random pairs of other tokens with different ids, by layer: [L, 3]."""
    others = [(row, place) for row, one in enumerate(read) for place in one.others]
    if len(others) > _MOST_OTHERS:
        others = [others[number] for number in draw.choice(len(others), _MOST_OTHERS, replace=False)]
    n_places = len(read[0].vectors_LTM)
    nothing = np.full((n_places, 3), np.nan, dtype=np.float32)
    if len(others) < 2:
        return nothing
    ids = np.array([read[row].ids[place] for row, place in others])
    rows, columns = np.triu_indices(len(others), k=1)
    pairs = np.flatnonzero(ids[rows] != ids[columns])
    if not len(pairs):
        return nothing
    if len(pairs) > _N_PAIRS:
        pairs = draw.choice(pairs, _N_PAIRS, replace=False)
    vectors_LKM = np.stack([read[row].vectors_LTM[:, place] for row, place in others], axis=1)
    values_LP = np.stack([cosines(vectors_KM, vectors_KM)[rows[pairs], columns[pairs]] for vectors_KM in vectors_LKM])
    return np.stack([values_LP.mean(1), *np.quantile(values_LP, [0.05, 0.95], axis=1)], axis=1).astype(np.float32)


def largest_difference(one_LM: Floats, other_LM: Floats) -> float:
    """Largest difference of two numbers at one index, relative to the largest number if that is above 1."""
    return float(np.abs(one_LM - other_LM).max() / max(1.0, float(np.abs(one_LM).max())))


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
