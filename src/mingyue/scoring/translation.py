"""Scores of translations: BLEU (Papineni et al., 2002) and chrF (Popović, 2015), by sacrebleu (Post, 2018).

The signature of each score says how it was computed; scores with different signatures cannot be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from mingyue.errors import DataError, MissingExtraError
from mingyue.words import tr

_CHINESE = {"zh", "zho", "chi", "cmn", "yue"}
_JAPANESE = {"ja", "jpn"}
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_SPACE = re.compile(r"\s")
_MIN_KANA_SHARE = 0.1  # of Japanese; Chinese text has almost none, Japanese prose about half


@dataclass(frozen=True)
class TranslationScores:
    """Scores of translations against their references."""

    bleu: float
    """BLEU of the whole corpus, 0 to 100, cased. 0 for a corpus without a line of four tokens, even if exact."""
    bleu_signature: str
    """In the form of sacrebleu: `tok:` is the tokenizer, `version:` that of sacrebleu."""
    chrf: float
    """chrF2 of the whole corpus, 0 to 100."""
    chrf_signature: str
    exact: float
    """Share of the lines, 0 to 1, that equal their reference (or one of them) character for character."""
    lines: int

    def explain(self, references: Sequence[str], *, target_language: str | None = None) -> str | None:
        """A sentence where BLEU is 0 whatever the translations are (`has_four_grams`)."""
        if self.bleu > 0 or has_four_grams(references, target_language=target_language):
            return None
        return tr(
            "BLEU is 0 for any translation of these lines, an exact one too: it counts matches "
            "of four tokens (words) in a row, and no reference has so many. chrF and exact lines "
            "measure such short lines."
        )


def translation_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    target_language: str | None = None,
) -> TranslationScores:
    """Score plain (not tokenized) translations, line by line against their references.

    `references` is one line for each hypothesis, or several such lists. The tokenizer of BLEU is 13a; zh for Chinese;
    and char for Japanese, whose own tokenizer needs a dictionary. `target_language` is a code such as "zh" or "pt-BR"
    [default: detected; references of mostly Chinese or Japanese characters are Chinese or Japanese].

    Raises `DataError` for no lines or unequal numbers of lines, `MissingExtraError` without sacrebleu.
    """
    streams = _streams(references)
    _check_counts(hypotheses, streams)
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise MissingExtraError(
            tr("scoring translations needs sacrebleu"),
            advice=tr("Install the extra: pip install 'mingyue[translate]'."),
        ) from None
    # force: otherwise sacrebleu prints a warning for lines that look tokenized.
    bleu = BLEU(tokenize=_tokenizer(streams, target_language), force=True)
    chrf = CHRF()
    bleu_score = bleu.corpus_score(hypotheses, streams).score
    chrf_score = chrf.corpus_score(hypotheses, streams).score
    n_exact = sum(hypothesis in lines for hypothesis, *lines in zip(hypotheses, *streams, strict=True))
    return TranslationScores(
        bleu=bleu_score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        exact=n_exact / len(hypotheses),
        lines=len(hypotheses),
    )


def has_four_grams(references: Sequence[str], *, target_language: str | None = None) -> bool:
    """Whether any line has four tokens, without which BLEU is always 0. Raises `MissingExtraError`."""
    return translation_scores(references, references, target_language=target_language).bleu > 0


def _streams(references: Sequence[str] | Sequence[Sequence[str]]) -> list[Sequence[str]]:
    if all(isinstance(line, str) for line in references):
        return [cast(Sequence[str], references)]
    return list(references)


def _check_counts(hypotheses: Sequence[str], streams: Sequence[Sequence[str]]) -> None:
    for number, stream in enumerate(streams, start=1):
        if len(stream) != len(hypotheses):
            which = (
                tr("reference stream {number} of {n_streams}", number, len(streams))
                if len(streams) > 1
                else tr("the references")
            )
            raise DataError(
                tr(
                    "{n_hypotheses:,} translations but {n_stream:,} lines in {which}",
                    len(hypotheses),
                    len(stream),
                    which,
                ),
                advice=tr("Line i is compared with reference i: give exactly one reference for each line."),
            )
    if not hypotheses:
        raise DataError(
            tr("there is nothing to score: no translations"), advice=tr("Give at least one, with its reference.")
        )


def _tokenizer(streams: Sequence[Sequence[str]], language: str | None) -> str:
    """The tokenizer in sacrebleu. It depends on the references only, so that all systems are scored in the same way."""
    if language is not None:
        code = re.split(r"[-_]", language.strip().lower())[0]
        return "zh" if code in _CHINESE else "char" if code in _JAPANESE else "13a"
    text = _SPACE.sub("", "".join(line for stream in streams for line in stream))
    n_kana = len(_KANA.findall(text))
    n_cjk = len(_HAN.findall(text)) + n_kana
    if 2 * n_cjk <= len(text):
        return "13a"
    return "char" if n_kana >= _MIN_KANA_SHARE * n_cjk else "zh"
