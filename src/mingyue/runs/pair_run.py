"""A run on pairs, which trains an encoder-decoder model."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mingyue.config import EncoderDecoderConfig, TrainSettings, TranslateSettings
from mingyue.data import PairCorpus, Substitution, load_pairs, prepare_pairs
from mingyue.data.unseen import to_ranges
from mingyue.errors import MissingExtraError, SettingsError
from mingyue.generation import Translation, translate
from mingyue.models import EncoderDecoder, Transformer, resolve_pair_config, sizes
from mingyue.runs.model_configs import pair_config
from mingyue.runs.paths import chosen_threads, run_path
from mingyue.runs.run import Run, RunContext
from mingyue.runs.verdict import Outcome, judge_course, with_repeats
from mingyue.scoring import has_four_grams, translation_scores
from mingyue.text import Tokenizer
from mingyue.training import Callbacks, TrainResult, read_log
from mingyue.training.memory import MicroBatch
from mingyue.training.pair_batches import PairBatches
from mingyue.words import tr

DEFAULT_PAIR_CONTEXT = 256
BATCH_TOKENS = 2048
_BLEU_LINES = 100
_CUT = "cut_translations"  # key in the log
_SHOWN = 3  # translations that a sample shows


class PairRun(Run[EncoderDecoderConfig, PairBatches]):
    """A run on pairs with its tokenizers and corpus."""

    of_pairs = True

    def __init__(
        self, settings: TrainSettings, context: RunContext, tokenizers: tuple[Tokenizer, Tokenizer], corpus: PairCorpus
    ) -> None:
        super().__init__(settings, context)
        self._source_tokenizer, self.tokenizer = tokenizers
        self.source_tokenizer = self._source_tokenizer
        self.corpus = corpus
        self.unseen = corpus.target_unseen
        self.config = pair_config(settings, corpus)
        tokens = settings.batch.batch_tokens or BATCH_TOKENS
        self.batches = PairBatches(
            corpus,
            batch_tokens=tokens,
            micro_tokens=settings.batch.micro_batch_tokens or tokens,
            seed=settings.run.seed,
            ranks=context.ranks.size,
            substitution=Substitution.of(
                self._source_tokenizer, corpus.source_unseen, share=settings.batch.unseen_share, seed=settings.run.seed
            ),
        )
        train = corpus.train
        lengths = round(np.mean(train.source_lengths)), round(np.mean(train.target_lengths))
        self.flops_per_token = sizes(self.config).training_flops(*lengths)
        self._bleu_pairs = self._spread_pairs(
            _BLEU_LINES if settings.pairs.bleu_lines is None else settings.pairs.bleu_lines
        )
        self._shown = self._pairs(range(min(_SHOWN, len(corpus.valid))))
        if settings.pairs.select == "bleu" and not self._bleu_pairs:
            raise SettingsError(
                tr("choosing the best step by BLEU needs validation pairs, and there are none"),
                advice=tr("Give --valid-source and --valid-target, or a --held-out above 0, or leave --select out."),
            )

    @classmethod
    def prepare(cls, settings: TrainSettings, context: RunContext) -> PairRun:
        """A new run: completes the settings, prepares pairs and tokenizers. Raises `MingyueError`s of the data."""
        observer = context.observer
        settings = settings.with_flat(
            preset=settings.model.preset or "translate-small",
            context=settings.model.context or DEFAULT_PAIR_CONTEXT,
            batch_tokens=settings.batch.batch_tokens or BATCH_TOKENS,
            out=str(run_path(settings)),
            threads=chosen_threads(settings, context.runtime),
        )
        assert settings.model.context is not None
        _check(settings, settings.model.context)
        source_tokenizer, tokenizer, corpus, report = prepare_pairs(
            settings.pairs,
            settings.data,
            settings.tokenizer,
            context.folder.data,
            max_tokens=settings.model.context,
            progress=observer.on_progress,
        )
        for line in (*report.describe(), *tokenizer.notes):
            observer.on_note(line)
        context.folder.write_settings(settings)
        return cls(settings, context, (source_tokenizer, tokenizer), corpus)

    @classmethod
    def load(cls, settings: TrainSettings, context: RunContext) -> PairRun:
        """A run whose pairs are prepared. Raises `DataError`."""
        _check_scorer(settings)
        source_tokenizer, tokenizer, corpus, _ = load_pairs(context.folder.data)
        return cls(settings, context, (source_tokenizer, tokenizer), corpus)

    def describe(self) -> list[str]:
        """What will be trained, what it costs, and the loss to beat."""
        config, batches = self.config, self.batches
        counted = sizes(config)
        memory = self.memory(self.settings)
        steps = batches.sizes.windows
        return [
            tr(
                "model: {parameters:,} parameters ({parameters_without_embeddings:,} in the blocks): "
                "depth {n_encoder_layers} + {n_layers}, width {d_model}, heads {n_heads} × {d_head}, "
                "{positions} positions, norms {norm_placement} ({preset})",
                counted.parameters,
                counted.parameters_without_embeddings,
                config.n_encoder_layers,
                config.n_layers,
                config.d_model,
                config.n_heads,
                config.d_head,
                config.positions,
                config.norm_placement,
                self.settings.model.preset,
            ),
            tr(
                "each step: about {n_train:.0f} pairs, {step_tokens:,} target tokens; an epoch has "
                "{steps:,} steps; memory about {memory:,.0f} MiB; on {describe_runtime}",
                len(self.corpus.train) / steps,
                batches.sizes.step_tokens,
                steps,
                memory / 2**20,
                self.describe_runtime(),
            ),
            tr("expected time: {expected_time}", self.expected_time()),
            tr("to beat, in nats per token: {log:.3f} (a uniform guess)", math.log(config.vocab_size)),
            *self._about_bleu(),
        ]

    def _about_bleu(self) -> list[str]:
        """A sentence where BLEU cannot rise above 0."""
        if not self._bleu_pairs or has_four_grams([reference for _, reference in self._bleu_pairs]):
            return []
        best = tr(" The best step is then the one of the lowest held-out loss.") * (
            self.settings.pairs.select == "bleu"
        )
        return [
            tr(
                "BLEU will be 0 at every evaluation: it counts matches of four tokens (words) in a "
                "row, and no reference has so many.{best}",
                best,
            )
        ]

    def step_shape(self, settings: TrainSettings) -> tuple[EncoderDecoderConfig, MicroBatch]:
        """(config of the model, shape of the micro-batch of the longest pairs) with these settings."""
        train, batch = self.corpus.train, settings.batch
        tokens = batch.batch_tokens or BATCH_TOKENS
        micro = min(tokens, batch.micro_batch_tokens or tokens)
        longest = int(max(train.source_lengths.max(), train.target_lengths.max()))
        shape = MicroBatch(max(1, micro // longest), longest, accumulates=micro < tokens)
        return pair_config(settings, self.corpus), shape

    def add_callbacks(self, callbacks: Callbacks, model: Transformer) -> None:
        """Translations of validation pairs, and their BLEU."""
        if self._bleu_pairs:
            callbacks.measure = lambda: self._measure_bleu(model)
            callbacks.select = "bleu" if self.settings.pairs.select == "bleu" else None
        if self._shown:
            callbacks.shows_last = True
            callbacks.sample = lambda: self._translations(model)

    def judge(self, result: TrainResult) -> Outcome:
        """The verdict against a uniform guess."""
        metrics, rates, uniform = (
            self.context.folder.metrics,
            self.rates_to_try(result),
            math.log(self.config.vocab_size),
        )
        found = judge_course(result, metrics, uniform=uniform, epochs=self.epochs(result), rates=rates)
        found = with_repeats(found, self.corpus.valid_repeated, len(self.corpus.valid), "pairs")
        return replace(found, sentences=(*found.sentences, *self._about_cut()))

    def _about_cut(self) -> list[str]:
        """A sentence if translations of the last evaluation were cut at their largest length."""
        counts = [line[_CUT] for line in read_log(self.context.folder.metrics) if isinstance(line.get(_CUT), int)]
        if not counts or not counts[-1]:
            return []
        return [
            tr(
                "{counts:,} of the {n_bleu_pairs:,} translations of the last evaluation were cut at "
                "the tokens of the source + {extra_tokens}, without an end, and count so in BLEU: "
                "`mingyue evaluate --extra-tokens` sets another limit.",
                counts[-1],
                len(self._bleu_pairs),
                TranslateSettings().extra_tokens,
            )
        ]

    def _measure_bleu(self, model: Transformer) -> dict[str, float]:
        """BLEU of greedy translations, and the number of those that were cut at their largest length."""
        sources, references = zip(*self._bleu_pairs, strict=True)
        found = self._translate(model, sources)
        bleu = translation_scores([one.text for one in found], references).bleu
        return {"bleu": bleu, _CUT: sum(not one.finished for one in found)}

    def show(self, model: Transformer, outcome: Outcome) -> Outcome:
        """Translations of the first validation pairs."""
        if not self._shown:
            return outcome
        texts = self.attempt("translations", lambda: [self._translations(model, beam=4)], list[str]())
        return outcome.with_texts(*texts)

    def card(self) -> dict[str, Any]:
        """What training.json says about the pairs."""
        train = self.corpus.train
        return {
            "unseen": to_ranges(self.unseen),
            "train_pairs": len(train),
            "train_source_tokens": int(train.source_lengths.sum()),
            "train_target_tokens": int(train.target_lengths.sum()),
        }

    def _spread_pairs(self, count: int) -> list[tuple[str, str]]:
        """So many validation pairs, spread evenly; none if BLEU cannot be measured."""
        n_pairs = len(self.corpus.valid)
        if not count or not n_pairs or not _has_scorer():
            return []
        count = min(count, n_pairs)
        return self._pairs([number * n_pairs // count for number in range(count)])

    def _pairs(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Texts of validation pairs."""
        valid = self.corpus.valid
        return [
            (
                self._source_tokenizer.decode(valid.source(number).tolist()),
                self.tokenizer.decode(valid.target(number).tolist()),
            )
            for number in numbers
        ]

    def _translations(self, model: Transformer, *, beam: int = 1) -> str:
        """The first validation pairs, each with the translation of its source."""
        translations = self._translate(model, [source for source, _ in self._shown], beam=beam)
        return "\n".join(
            f"{source}\n  → {translation.text}\n  = {reference}"
            for (source, reference), translation in zip(self._shown, translations, strict=True)
        )

    def _translate(self, model: Transformer, lines: Sequence[str], *, beam: int = 1) -> list[Translation]:
        assert isinstance(model, EncoderDecoder)
        settings = TranslateSettings(beam=beam)
        found = translate(model, self._source_tokenizer, self.tokenizer, lines, settings, unseen=self.unseen)
        return [best[0] for best in found]


def _check(settings: TrainSettings, context: int) -> None:
    """Raise `SettingsError` for sizes that are wrong for any pairs, before time is spent on reading them."""
    _check_scorer(settings)
    resolve_pair_config(settings.model, vocab_size=1 << 16, source_vocab_size=None, context=context)


def _check_scorer(settings: TrainSettings) -> None:
    if settings.pairs.select == "bleu" and not _has_scorer():
        raise MissingExtraError(
            tr("choosing the best step by BLEU needs sacrebleu"),
            advice=tr("Install it: pip install 'mingyue[translate]'"),
        )


def _has_scorer() -> bool:
    return importlib.util.find_spec("sacrebleu") is not None
