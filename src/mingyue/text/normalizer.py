"""What the normalizer of a given tokenizer.json loses: different texts that it makes the same."""

from __future__ import annotations

import tokenizers

from mingyue.words import listed, tr

# Texts that differ in one respect, whatever normalizer (or sequence, or table of SentencePiece) makes them the same.
_ALIKE: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (tr("letter case"), (("A", "a"), ("Ж", "ж"))),
    (tr("accents"), (("é", "e"), ("ñ", "n"))),
    (tr("compatibility characters (ﬁ = fi, ２ = 2)"), (("ﬁ", "fi"), ("２", "2"), ("①", "1"))),
    (tr("composed and decomposed characters"), (("e\u0301", "é"),)),
    (tr("white space"), (("a  b", "a b"), ("a\tb", "a b"), ("a\nb", "a b"), ("a ", "a"))),
)


def lost_by_normalizer(backend: tokenizers.Tokenizer) -> list[str]:
    """A sentence about the distinctions that the normalizer removes from every text; [] if it removes none of them."""
    normalizer = backend.normalizer
    if normalizer is None:
        return []
    lost = [
        what
        for what, pairs in _ALIKE
        if any(normalizer.normalize_str(one) == normalizer.normalize_str(other) for one, other in pairs)
    ]
    if not lost:
        return []
    return [tr("does not distinguish {lost}: text is read, scored and generated without them", listed(lost))]
