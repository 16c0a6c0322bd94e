"""The repetition of generated texts in sentences: the numbers beside those of held-out text, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mingyue.config import GenerateSettings
from mingyue.scoring.repetition import N_GRAMS, Repetition, repetition, repetition_of_pieces, words_of
from mingyue.words import tr

_MORE = {2: 0.1, 4: 0.05}  # repeated n-grams beyond those of held-out text from which texts count as repetitive
_MUCH = 0.2  # repeated 4-grams without held-out text to compare with, and in held-out text itself
_LOW = 0.7  # temperature below which the likeliest tokens make most of a text
_SHOWN = 40  # characters of a loop


@dataclass(frozen=True)
class RepetitionReport:
    """How much generated texts repeat themselves, and what to do about it."""

    generated: Repetition
    held_out: Repetition | None
    """The same of pieces of held-out text, as long as the generated texts; None where there is none."""
    advice: tuple[str, ...]
    """Sentences; empty where the texts repeat no more than held-out text."""

    def describe(self) -> list[str]:
        """The result in sentences, then the advice."""
        found, other = self.generated, self.held_out
        two, four = found.repeated[1], found.repeated[3]
        share = tr(
            "Repeated within the same generated text: {two:.0%} of the 2-grams, {four:.0%} of the 4-grams.", two, four
        )
        if other is not None:
            share = tr(
                "Repeated within the same generated text: {two:.0%} of the 2-grams, {four:.0%} of "
                "the 4-grams; in held-out text of the same length {repeated:.0%} and "
                "{repeated_four:.0%}.",
                two,
                four,
                other.repeated[1],
                other.repeated[3],
            )
        lines = [share]
        if found.loops:
            longest = max(found.loops, key=lambda loop: loop.times * len(loop.period))
            passage = longest.period if len(longest.period) <= _SHOWN else f"{longest.period[:_SHOWN]}…"
            lines.append(
                tr(
                    "Texts that end in a loop: {n_loops:,} of {texts:,}. The longest is {times:,} × {passage!r}.",
                    len(found.loops),
                    found.texts,
                    longest.times,
                    passage,
                )
            )
        if found.same:
            lines.append(tr("Texts that equal another one: {same:,} of {texts:,}.", found.same, found.texts))
        return [*lines, *self.advice]

    def table(self) -> list[tuple[str, str, str]]:
        """Rows of (measure, generated texts, held-out text)."""
        both = [self.generated] if self.held_out is None else [self.generated, self.held_out]
        columns = [
            [
                *(f"{share:.1%}" for share in one.distinct),
                f"{one.repeated[3]:.1%}",
                tr("{n_loops:,} of {texts:,}", len(one.loops), one.texts),
            ]
            for one in both
        ]
        names = [
            *(tr("distinct {n}-grams", n) for n in N_GRAMS),
            tr("repeated 4-grams"),
            tr("texts that end in a loop"),
        ]
        return [
            (name, values[0], values[1] if len(values) > 1 else "–")
            for name, *values in zip(names, *columns, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "generated": _values(self.generated),
            "held_out": None if self.held_out is None else _values(self.held_out),
            "advice": self.advice,
        }


def repetition_report(
    texts: Sequence[str],
    held_out: str | None = None,
    *,
    settings: GenerateSettings | None = None,
    verdict: str | None = None,
    improving: bool = False,
) -> RepetitionReport:
    """Compare how much `texts` repeat themselves with `held_out` text, and say what helps.

    `settings`: those that the texts were sampled with (None = unknown). `verdict` on the run of the model, where known;
    `improving`: whether its held-out loss was still falling.
    """
    found = repetition(texts)
    other = None if held_out is None else repetition_of_pieces(held_out, [len(words_of(text)) for text in texts])
    advice = _advice(found, other, settings, verdict, improving) if _is_repetitive(found, other) else []
    return RepetitionReport(found, other, tuple(advice))


def _is_repetitive(found: Repetition, other: Repetition | None) -> bool:
    if found.same > 1 and (other is None or found.same / found.texts > other.same / other.texts + _MORE[4]):
        return True
    if other is None:
        return found.repeated[3] > _MUCH or bool(found.loops)
    more = any(found.repeated[n - 1] > other.repeated[n - 1] + above for n, above in _MORE.items())
    return more or len(found.loops) / max(1, found.texts) > len(other.loops) / other.texts + _MORE[4]


def _advice(
    found: Repetition, other: Repetition | None, settings: GenerateSettings | None, verdict: str | None, improving: bool
) -> list[str]:
    """What helps, the cheapest first: sampling, then training."""
    lines: list[str] = []
    if settings is not None and (settings.temperature < _LOW or settings.top_k == 1):
        lines.append(
            tr(
                "The texts were sampled at temperature {temperature:g}, where the likeliest tokens "
                "lead back to what was said: use --temperature 0.8 to 1 and --top-p 0.95.",
                settings.temperature,
            )
        )
    elif settings is not None and settings.repetition_penalty == 1.0 and found.loops:
        lines.append(
            tr("A --repetition-penalty of 1.1 to 1.3 ends such loops; a higher --temperature makes them rarer.")
        )
    if verdict == "overfitting":
        lines.append(tr("The model has memorised its text: train it on more text."))
    elif verdict in ("not learning", "diverged"):
        lines.append(
            tr("The model has not learned the text yet, and such models repeat the most frequent tokens: train longer.")
        )
    elif improving:
        lines.append(tr("The held-out loss was still falling, and repetition falls with it: train longer."))
    if other is not None and other.repeated[3] > _MUCH:
        lines.append(tr("The held-out text repeats itself as well: train on text with more variety."))
    if not lines:
        lines.append(tr("Train longer, or on more text; a higher --temperature with --top-p 0.95 helps meanwhile."))
    return lines


def _values(found: Repetition) -> dict[str, Any]:
    return {
        "texts": found.texts,
        "words": found.words,
        "distinct": found.distinct,
        "repeated": found.repeated,
        "same": found.same,
        "loops": [{"period": loop.period, "times": loop.times} for loop in found.loops],
    }
