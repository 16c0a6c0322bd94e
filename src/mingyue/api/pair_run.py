"""A run on pairs: an encoder-decoder model learns to turn one text into another."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mingyue.api.base_run import Place, Run, chosen_threads, run_path
from mingyue.api.outcome import Outcome, judge_course
from mingyue.api.run_config import pair_config
from mingyue.bundle import save_bundle
from mingyue.config import TrainSettings, TranslateSettings
from mingyue.data import PairCorpus, Substitution, load_pairs, prepare_pairs
from mingyue.data.unseen import to_ranges
from mingyue.errors import MissingExtraError, SettingsError
from mingyue.generation import translate
from mingyue.models import EncoderDecoder, Transformer, resolve_pair_config, sizes
from mingyue.scoring import translation_scores
from mingyue.text import Tokenizer
from mingyue.training import Caller, TrainResult
from mingyue.training.memory import MicroBatch, StepMemory, step_memory
from mingyue.training.names import clean_state
from mingyue.training.pair_batches import PairBatches

if TYPE_CHECKING:
    from mingyue.inspection import Subject

DEFAULT_PAIR_CONTEXT = 256
_BATCH_TOKENS = 2048
_BLEU_LINES = 100
_SHOWN = 3  # translations that a sample shows


class PairRun(Run):
    """The parts of a run on pairs."""

    def __init__(
        self, settings: TrainSettings, place: Place, tokenizers: tuple[Tokenizer, Tokenizer], corpus: PairCorpus
    ) -> None:
        super().__init__(settings, place)
        self.source_tokenizer, self.tokenizer = tokenizers
        self.corpus = corpus
        self.config = self._config = pair_config(settings, corpus)
        tokens = settings.batch.batch_tokens or _BATCH_TOKENS
        self.batches = self._batches = PairBatches(
            corpus,
            batch_tokens=tokens,
            micro_tokens=settings.batch.micro_batch_tokens or tokens,
            seed=settings.run.seed,
            ranks=place.ranks.size,
            substitution=Substitution.of(
                self.source_tokenizer, corpus.source_unseen, share=settings.batch.unseen_share, seed=settings.run.seed
            ),
        )
        train = corpus.train
        self._lengths = round(np.mean(train.source_lengths)), round(np.mean(train.target_lengths))
        self.flops_per_token = sizes(self._config).training_flops(*self._lengths)
        self._checked = self._validation_lines(
            _BLEU_LINES if settings.pairs.bleu_lines is None else settings.pairs.bleu_lines
        )
        if settings.pairs.select == "bleu" and not self._checked:
            raise SettingsError(
                "choosing the best step by BLEU needs validation pairs, and there are none",
                advice="Give --valid-source and --valid-target, or a --held-out above 0, or leave --select out.",
            )

    @classmethod
    def of(cls, settings: TrainSettings, place: Place) -> PairRun:
        """Everything before the first step: pairs, tokenizers, sizes. Raises `MingyueError`s of the data."""
        observer = place.observer
        settings = settings.with_flat(
            preset=settings.model.preset or "translate-small",
            context=settings.model.context or DEFAULT_PAIR_CONTEXT,
            batch_tokens=settings.batch.batch_tokens or _BATCH_TOKENS,
            out=str(run_path(settings)),
            threads=chosen_threads(settings, place.runtime),
        )
        assert settings.model.context is not None
        _check(settings, settings.model.context)
        source_tokenizer, tokenizer, corpus, report = prepare_pairs(
            settings.pairs,
            settings.data,
            settings.tokenizer,
            place.folder.data,
            max_tokens=settings.model.context,
            progress=observer.on_progress,
        )
        for line in (*report.describe(), *tokenizer.notes):
            observer.on_note(line)
        place.folder.write_settings(settings)
        return cls(settings, place, (source_tokenizer, tokenizer), corpus)

    @classmethod
    def again(cls, settings: TrainSettings, place: Place) -> PairRun:
        """The same for a run that has its pairs prepared. Raises `DataError`."""
        _check_scorer(settings)
        source_tokenizer, tokenizer, corpus, _ = load_pairs(place.folder.data)
        return cls(settings, place, (source_tokenizer, tokenizer), corpus)

    def memory(self, settings: TrainSettings) -> StepMemory:
        """What a step takes with these settings, which may differ from the run's, where pairs are longest."""
        train, batch = self.corpus.train, settings.batch
        tokens = batch.batch_tokens or _BATCH_TOKENS
        micro = min(tokens, batch.micro_batch_tokens or tokens)
        longest = int(max(train.source_lengths.max(), train.target_lengths.max()))
        read = MicroBatch(max(1, micro // longest), longest, accumulates=micro < tokens)
        return step_memory(pair_config(settings, self.corpus), settings, read, self.place.runtime)

    def describe(self) -> list[str]:
        """What will be trained, what it costs, and what it has to beat."""
        config, batches = self._config, self._batches
        counted = sizes(config)
        memory = self.memory(self.settings).total
        of_epoch = batches.sizes.windows
        return [
            f"model: {counted.parameters:,} parameters ({counted.parameters_without_embeddings:,} in the blocks): "
            f"{config.n_encoder_layers} + {config.n_layers} layers, width {config.d_model}, {config.n_heads} heads of "
            f"{config.d_head}, {config.positions} positions, norms {config.norm_placement} "
            f"({self.settings.model.preset})",
            f"each step: about {len(self.corpus.train) / of_epoch:.0f} pairs, {batches.sizes.step_tokens:,} target "
            f"tokens; an epoch has {of_epoch:,} steps; memory about {memory / 2**20:,.0f} MiB; "
            f"on {self.place.runtime.describe()}",
            f"expected time: {self.expected_time()}",
            f"to beat, in nats per token: {math.log(config.vocab_size):.3f} (a uniform guess)",
        ]

    def prepare(self, model: Transformer, caller: Caller) -> Caller:
        """Translations of validation pairs: to look at, and their BLEU."""
        if self._checked:
            sources, references = zip(*self._checked, strict=True)
            caller.measure = lambda: {"bleu": translation_scores(self._translate(model, sources), references).bleu}
            caller.select = "bleu" if self.settings.pairs.select == "bleu" else None
        if len(self.corpus.valid):
            shown = self._lines(range(min(_SHOWN, len(self.corpus.valid))))
            caller.sample = lambda: _side_by_side(shown, self._translate(model, [source for source, _ in shown]))
        return caller

    def judge(self, model: Transformer, result: TrainResult) -> Outcome:
        """Against a uniform guess; and translations to look at."""
        uniform = math.log(self.config.vocab_size)
        outcome = judge_course(result, self.place.folder.metrics, uniform=uniform, epochs=self.epochs(result))
        if result.reason == "stopped" or not len(self.corpus.valid):
            return outcome
        shown = self._lines(range(min(_SHOWN, len(self.corpus.valid))))
        return outcome.writing(_side_by_side(shown, self._translate(model, [source for source, _ in shown], beam=4)))

    def subject(self, model: Transformer) -> Subject:
        """The model with its tokenizers."""
        from mingyue.inspection import Subject

        return Subject(model, self.tokenizer, self.source_tokenizer)

    def save(self, model: Transformer, card: dict[str, Any]) -> None:
        """Write the bundle."""
        source = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer
        save_bundle(
            self.place.folder.model, self.config, clean_state(model), self.tokenizer, card, source_tokenizer=source
        )

    def card(self) -> dict[str, Any]:
        """What a run on pairs has to say of itself."""
        train = self.corpus.train
        return {
            "unseen": to_ranges(self.corpus.target_unseen),
            "train_pairs": len(train),
            "train_source_tokens": int(train.source_lengths.sum()),
            "train_target_tokens": int(train.target_lengths.sum()),
        }

    def _validation_lines(self, wanted: int) -> list[tuple[str, str]]:
        """Pairs of the validation set, spread evenly over it; none where BLEU cannot be measured."""
        n_pairs = len(self.corpus.valid)
        if not wanted or not n_pairs or not _has_scorer():
            return []
        wanted = min(wanted, n_pairs)
        return self._lines([number * n_pairs // wanted for number in range(wanted)])

    def _lines(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        valid = self.corpus.valid
        return [
            (
                self.source_tokenizer.decode(valid.source(number).tolist()),
                self.tokenizer.decode(valid.target(number).tolist()),
            )
            for number in numbers
        ]

    def _translate(self, model: Transformer, lines: Sequence[str], *, beam: int = 1) -> list[str]:
        assert isinstance(model, EncoderDecoder)
        settings, unseen = TranslateSettings(beam=beam), self.corpus.target_unseen
        found = translate(model, self.source_tokenizer, self.tokenizer, lines, settings, unseen=unseen)
        return [best[0].text for best in found]


def _check(settings: TrainSettings, context: int) -> None:
    """Refuse what no pairs could make right, before time is spent on reading them."""
    _check_scorer(settings)
    resolve_pair_config(settings.model, vocab_size=1 << 16, source_vocab_size=None, context=context)


def _check_scorer(settings: TrainSettings) -> None:
    if settings.pairs.select == "bleu" and not _has_scorer():
        raise MissingExtraError(
            "choosing the best step by BLEU needs sacrebleu",
            advice="Install it: pip install 'mingyue[translate]'",
        )


def _has_scorer() -> bool:
    return importlib.util.find_spec("sacrebleu") is not None


def _side_by_side(pairs: Sequence[tuple[str, str]], translations: Sequence[str]) -> str:
    return "\n".join(
        f"{source}\n  → {written}\n  = {reference}"
        for (source, reference), written in zip(pairs, translations, strict=True)
    )
