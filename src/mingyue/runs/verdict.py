"""The outcome of a run in words: the verdict against simple models, and how much the model copies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mingyue.config import GenerateSettings, TrainSettings
from mingyue.data import Baselines, TokenCorpus
from mingyue.models import TransformerConfig
from mingyue.scoring import CopyReport, RepetitionReport, copy_report, repetition_report
from mingyue.text import Tokenizer
from mingyue.training import TrainResult, peak_rates, read_log
from mingyue.words import Words, listed, tr

Verdict = Literal["learning", "not learning", "overfitting", "diverged", "not measured"]

_OVERFIT = 1.02  # ratio of the last held-out loss to the best one from which a run counts as overfitting
_ABOVE = 1.1  # ratio to a uniform guess from which the last training loss counts as diverged
_LOST, _RISEN = 0.5, 1.2  # of what was gained, and ratio to the lowest: a training loss that rose again
_LEARNED = 0.8  # ratio to a uniform guess up to which a training loss shows that something was learned
_COURSE = 4  # evaluations, from which the course of the loss can be judged
_APART = 1.15  # ratio of the held-out loss to the last training loss from which memorising is what limits the model
_FEW = 50  # held-out tokens: fewer are too few for a verdict
_REPEATED = 0.05  # share of held-out documents that are trained on as well from which the verdict mentions it
_COMPARED = 1 << 23  # tokens of the training text that the copy report reads
_SPACES = re.compile(r"\s{2,}")
_PIECE = 1 << 16  # tokens of it that are decoded at once
_FALLING = tr("The held-out loss was still falling at the end: more time would help.")
_SPOKEN: dict[Verdict, Words] = {
    "learning": tr("learning"),
    "not learning": tr("not learning"),
    "overfitting": tr("overfitting"),
    "diverged": tr("diverged"),
    "not measured": tr("not measured"),
}
LOWER_RATES = tr("lower rates (--learning-rate, --muon-learning-rate)")


@dataclass(frozen=True, repr=False)
class Outcome:
    """Verdict and reasons."""

    verdict: Verdict
    sentences: tuple[str, ...]
    """What was measured, and what to do about it."""
    texts: tuple[str, ...] = ()
    """Texts that the trained model generated."""
    copying: CopyReport | None = None
    """How much of them is in the training text."""
    repetition: RepetitionReport | None = None
    """How much they repeat themselves, beside held-out text."""

    @property
    def verdict_words(self) -> Words:
        """The verdict in both languages."""
        return _SPOKEN[self.verdict]

    def __repr__(self) -> str:
        return f"<mingyue.Outcome: {self.verdict}. {' '.join(self.sentences[:1])}>"

    def with_texts(self, *texts: str) -> Outcome:
        """The same outcome with generated texts."""
        return replace(self, texts=texts)


def judge(
    result: TrainResult, metrics: Path, simple: Baselines, *, epochs: float = math.inf, rates: str = LOWER_RATES
) -> Outcome:
    """Compare the final held-out loss with simple models and with the earlier evaluations (`judge_course`)."""
    found = judge_course(result, metrics, uniform=simple.uniform, epochs=epochs, rates=rates)
    if found.verdict not in ("learning", "overfitting") or result.evaluation is None:
        return found
    loss = result.evaluation.loss
    if loss >= simple.uniform:
        return found
    if simple.unigram is not None and loss >= simple.unigram:
        reason = tr("Held-out loss {loss:.3f} does not beat a unigram model ({unigram:.3f}).", loss, simple.unigram)
        if found.verdict == "overfitting":
            return replace(found, sentences=(reason, *found.sentences[1:]))
        advice = tr(
            "Train longer (--minutes), on more text, or with a smaller --depth, which takes more steps in that time."
        )
        return Outcome("not learning", (reason, advice))
    return replace(found, sentences=(_against_bigram(loss, simple), *found.sentences[1:]))


def judge_course(
    result: TrainResult, metrics: Path, *, uniform: float, epochs: float = math.inf, rates: str = LOWER_RATES
) -> Outcome:
    """Compare the final held-out loss with that of a uniform guess (in nats) and with the losses of the whole run.

    `epochs` that were trained: before the end of the first, the model cannot have memorised the text. `rates`: the
    learning rates to try after divergence, in words.
    """
    evaluation, log = result.evaluation, read_log(metrics)
    training = [(line["step"], line["train_loss"]) for line in log if line.get("train_loss") is not None]
    if (rise := _divergence(training, uniform)) is not None:
        loss_of_kept = "" if evaluation is None else tr(", with a held-out loss of {loss:.3f}", evaluation.loss)
        kept = tr(
            "The weights of step {weights_step:,} are kept{loss_of_kept}. In a new run, try {rates}.",
            result.weights_step,
            loss_of_kept,
            rates,
        )
        return Outcome("diverged", (rise, kept))
    if evaluation is None or evaluation.tokens < _FEW:
        none = tr("No held-out loss was measured, so there is no verdict.")
        few = (
            ""
            if evaluation is None
            else tr("Only {tokens} tokens are held out: too few for a verdict.", evaluation.tokens)
        )
        return Outcome("not measured", (few or none,))
    loss = evaluation.loss
    lines = [line for line in log if line["event"] == "evaluate" and line.get("heldout_loss") is not None]
    course = [line["heldout_loss"] for line in lines]
    if loss >= uniform:
        return _worse_than_guessing(result.step, loss, training, uniform=uniform, rates=rates)
    against = tr("Held-out loss {loss:.3f} nats per token; a uniform guess has {uniform:.3f}.", loss, uniform)
    if course and course[-1] > _OVERFIT * min(course):
        lowest = lines[course.index(min(course))]["step"]  # not always the step that is kept, which BLEU may select
        best, last = f"{min(course):.3f}", f"{course[-1]:.3f}"
        grown = tr(
            "The held-out loss was best at step {lowest:,} ({best}) and has grown since ({last})", lowest, best, last
        )
        if epochs < 1:
            noisy = tr("{grown}. This is the noise of a run of less than one epoch: train longer.", grown)
            return Outcome("learning", (against, noisy))
        overfits = tr("{grown}: the model began to memorise the training text. The best weights are kept.", grown)
        advice = tr("In a new run, use more text, a smaller model or more --dropout.")
        return Outcome("overfitting", (against, overfits, advice))
    found = (*_still_falling(course), *_unstable(training, uniform, rates)) or _to_try(course, training, loss, epochs)
    return Outcome("learning", (against, *found))


def with_repeats(outcome: Outcome, repeated: int, held_out: int, things: str) -> Outcome:
    """The same outcome, with a sentence if a part of what is held out (documents, pairs) is also trained on."""
    if repeated < _REPEATED * max(1, held_out):
        return outcome
    sentence = tr(
        "{repeated:,} of {held_out:,} held-out {things} are trained on as well, so the "
        "held-out loss partly measures memorisation: remove the duplicates for a loss on new "
        "text.",
        repeated,
        held_out,
        things,
    )
    return replace(outcome, sentences=(*outcome.sentences, sentence))


def rates_to_try(settings: TrainSettings, config: TransformerConfig, warmup: int) -> str:
    """Options with learning rates to try after divergence: the default ones, or a third of the run's, if lower."""
    used = peak_rates(settings, config, warmup)
    usual = peak_rates(settings.with_flat(learning_rate=None, muon_learning_rate=None), config, warmup)
    names = ["adamw", "muon"] if settings.optimiser.optimiser == "muon" else ["adamw"]
    pairs = [(getattr(used, name), getattr(usual, name)) for name in names]
    above = any(mine > 1.01 * default for mine, default in pairs)
    found = [min(mine, default) if above else mine / 3 for mine, default in pairs]
    options = zip(("--learning-rate", "--muon-learning-rate"), found, pairs, strict=False)
    return listed(
        [tr("{option} {rate:.2g} (here {mine:.2g})", option, rate, mine) for option, rate, (mine, _) in options]
    )


def _divergence(training: Sequence[tuple[int, float]], uniform: float) -> str | None:
    """A sentence if the training loss ended above a uniform guess, or lost more than half of what it had gained."""
    if len(training) < 2:
        return None
    (_, first), (step, last) = training[0], training[-1]
    low_step, lowest = min(training, key=lambda point: point[1])
    lost = last - lowest > _LOST * (first - lowest) and last > _RISEN * lowest
    if not lost and last <= _ABOVE * uniform:
        return None
    if low_step < step:
        return tr(
            "The training loss rose from {lowest:.3f} (step {low_step:,}) to {last:.3f} (step "
            "{step:,}; a uniform guess has {uniform:.3f}): training diverged.",
            lowest,
            low_step,
            last,
            step,
            uniform,
        )
    return tr(
        "The training loss ended at {last:.3f}, above a uniform guess ({uniform:.3f}): training diverged.",
        last,
        uniform,
    )


def _unstable(training: Sequence[tuple[int, float]], uniform: float, rates: str) -> tuple[str, ...]:
    step, highest = max(training, key=lambda point: point[1], default=(0, 0.0))
    if highest <= 2 * uniform:
        return ()
    rose = tr(
        "The training loss rose to {highest:.3f} at step {step:,} (a uniform guess has {uniform:.3f})",
        highest,
        step,
        uniform,
    )
    return (tr("{rose} before it fell again: lower rates may learn more. In a new run, try {rates}.", rose, rates),)


def _worse_than_guessing(
    steps: int, loss: float, training: Sequence[tuple[int, float]], *, uniform: float, rates: str
) -> Outcome:
    reason = tr("Held-out loss {loss:.3f} is no better than a uniform guess ({uniform:.3f}).", loss, uniform)
    if training and training[-1][1] < _LEARNED * uniform:
        fell = tr(
            "The training loss fell to {training:.3f}: what is held out is unlike the text that is trained on",
            training[-1][1],
        )
        return Outcome(
            "overfitting", (reason, tr("{fell}, or too little of it. Use more text, mixed before it is split.", fell))
        )
    return Outcome("diverged" if steps > 100 else "not learning", (reason, tr("Train longer, or try {rates}.", rates)))


def measure_copying(
    outcome: Outcome, tokenizer: Tokenizer, corpus: TokenCorpus, progress: Callable[[int, int], None] | None = None
) -> Outcome:
    """Add how much of the generated texts is copied from the training text; `progress` gets tokens done and all."""
    texts = ["".join(single_spaced([text])) for text in outcome.texts]
    training = single_spaced(_training_text(tokenizer, corpus, progress=progress))
    return replace(outcome, copying=copy_report(texts, training))


def single_spaced(pieces: Iterable[str]) -> Iterator[str]:
    """A text, in pieces, with one line end or space in place of each run of white space: such runs are no passages."""
    held = ""
    for piece in pieces:
        text = held + piece
        kept = len(text.rstrip())
        held = text[kept:]
        yield _SPACES.sub(_one_space, text[:kept])
    yield _SPACES.sub(_one_space, held)


def _one_space(found: re.Match[str]) -> str:
    return "\n" if "\n" in found[0] else found[0][0]


def _training_text(
    tokenizer: Tokenizer,
    corpus: TokenCorpus,
    piece: int = _PIECE,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[str]:
    """The training text in pieces: the whole takes a gigabyte while its tokens are decoded."""
    stream, end = tokenizer.stream(), min(len(corpus.train), _COMPARED)
    for start in range(0, end, piece):
        if progress is not None:
            progress(start, end)
        yield "".join(map(stream.push, corpus.train.read(start, min(end, start + piece)).tolist()))
    yield stream.finish()


def measure_repetition(
    outcome: Outcome, settings: GenerateSettings, tokenizer: Tokenizer, corpus: TokenCorpus
) -> Outcome:
    """Add how much the generated texts repeat themselves, beside the held-out text."""
    report = repetition_report(
        outcome.texts,
        held_out_text(tokenizer, corpus),
        settings=settings,
        verdict=outcome.verdict,
        improving=_FALLING in outcome.sentences,
    )
    return replace(outcome, repetition=report)


def held_out_text(tokenizer: Tokenizer, corpus: TokenCorpus) -> str:
    """The held-out text, of a long one the beginning."""
    return tokenizer.decode(corpus.held_out.read(0, min(len(corpus.held_out), _PIECE)).tolist(), whole=True)


def _against_bigram(loss: float, simple: Baselines) -> str:
    if simple.bigram is None:
        return tr("Held-out loss {loss:.3f} nats per token; a uniform guess has {uniform:.3f}.", loss, simple.uniform)
    if loss < simple.bigram:
        return tr(
            "Held-out loss {loss:.3f} nats per token beats a bigram model of the same text ({bigram:.3f}).",
            loss,
            simple.bigram,
        )
    return tr(
        "Held-out loss {loss:.3f} beats a unigram model ({unigram:.3f}), not yet a bigram "
        "one ({bigram:.3f}): train longer.",
        loss,
        simple.unigram,
        simple.bigram,
    )


def _to_try(
    course: Sequence[float], training: Sequence[tuple[int, float]], loss: float, epochs: float
) -> tuple[str, ...]:
    """What may make a better model, where neither time nor rates are the obvious answer."""
    if len(course) < _COURSE or not training:
        return ()
    last = training[-1][1]
    if loss > _APART * last:
        return (
            tr(
                "For a better model: more text, or --dropout 0.1. The training loss is far lower "
                "({last:.3f}), so more time would mostly memorise.",
                last,
            ),
        )
    if epochs < 1:
        return (tr("For a better model: more time. The run ended before it had seen the whole text once."),)
    return (
        tr("For a better model: a larger --depth, with more time. The held-out loss of this size has levelled off."),
    )


def _still_falling(course: Sequence[float]) -> tuple[str, ...]:
    if len(course) >= _COURSE and course[-1] == min(course):
        return (_FALLING,)
    return ()
