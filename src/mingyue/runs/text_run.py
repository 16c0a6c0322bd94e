"""A run on text, which trains a decoder-only model."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from mingyue.config import DEFAULT_MINUTES, GenerateSettings, ModelConfig, ModelSettings, TrainSettings
from mingyue.data import Baselines, Substitution, TokenCorpus, baselines, fit_context, load_corpus, prepare_corpus
from mingyue.data.unseen import to_ranges
from mingyue.generation import generate
from mingyue.models import DecoderOnly, Transformer, empty_model, resolve_config
from mingyue.models.size import sizes
from mingyue.runs.initial import described_initial, initial_model, kept_vocabulary, old_text
from mingyue.runs.model_configs import run_config
from mingyue.runs.paths import chosen_threads, run_path
from mingyue.runs.run import Run, RunContext
from mingyue.runs.verdict import Outcome, judge, measure_copying, measure_repetition, with_repeats
from mingyue.text import Tokenizer
from mingyue.training import Callbacks, Checkpoints, CorpusBatches, TrainResult, nominal_peak
from mingyue.training.comparing import Comparison
from mingyue.training.memory import MicroBatch
from mingyue.training.sizing import DEFAULT_CONTEXT, Speed, choose_sizes
from mingyue.words import tr

_SAMPLING = GenerateSettings(max_new_tokens=120)
_BUSY = 0.6  # share of the speed of an idle machine below which other programs are noted


class TextRun(Run[ModelConfig, CorpusBatches]):
    """A run on text with its tokenizer and corpus."""

    of_pairs = False

    def __init__(self, settings: TrainSettings, context: RunContext, tokenizer: Tokenizer, corpus: TokenCorpus) -> None:
        super().__init__(settings, context)
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.starts_with_bos, self.unseen = corpus.starts_with_bos, corpus.unseen
        self.config, _ = self.step_shape(settings)
        self.batches = self._batches_of(corpus)
        self.flops_per_token = sizes(self.config).training_flops()

    @classmethod
    def prepare(cls, settings: TrainSettings, context: RunContext) -> TextRun:
        """A new run: prepares text and tokenizer, chooses sizes. Raises `MingyueError`s of the data."""
        observer = context.observer
        _check(settings.model)
        tokenizer, corpus, report = prepare_corpus(
            settings.data,
            settings.tokenizer,
            context.folder.data,
            kept=None if settings.run.init is None else kept_vocabulary(context.folder),
            progress=observer.on_progress,
        )
        for line in (*report.describe(), *tokenizer.notes):
            observer.on_note(line)
        settings = _complete(settings, corpus, context)
        context.folder.write_settings(settings)
        return cls(settings, context, tokenizer, corpus)

    @classmethod
    def load(cls, settings: TrainSettings, context: RunContext) -> TextRun:
        """A run whose text is prepared. Raises `DataError`."""
        tokenizer, corpus, _ = load_corpus(context.folder.data)
        run = cls(settings, context, tokenizer, corpus)
        if context.ranks.is_main:
            _ = run.baselines  # now, and not in the time that is reserved for the end
        return run

    def _batches_of(self, corpus: TokenCorpus) -> CorpusBatches:
        settings, (_, shape) = self.settings, self.step_shape(self.settings)
        seed, share = settings.run.seed, settings.batch.unseen_share
        return CorpusBatches(
            corpus,
            context=shape.length,
            rows=_rows(settings.batch.batch_tokens, shape.length),
            micro_rows=shape.rows,
            seed=seed,
            documents=shape.documents,
            ranks=self.context.ranks.size,
            substitution=Substitution.of(self.tokenizer, corpus.unseen, share=share, seed=seed),
        )

    @cached_property
    def baselines(self) -> Baselines:
        """Losses of simple models of the same text, all of which is read for them: only where they are needed."""
        return baselines(self.corpus)

    def describe(self) -> list[str]:
        """What will be trained, what it costs, and the losses to beat."""
        config, batches, settings = self.config, self.batches, self.settings
        counted = sizes(config)
        memory = self.memory(settings)
        return [
            tr(
                "model: {parameters:,} parameters ({parameters_without_embeddings:,} in the blocks): "
                "depth {n_layers}, width {d_model}, heads {n_heads} × {d_head}, {positions} "
                "positions, context {context} ({preset})",
                counted.parameters,
                counted.parameters_without_embeddings,
                config.n_layers,
                config.d_model,
                config.n_heads,
                config.d_head,
                config.positions,
                config.context,
                settings.model.preset,
            ),
            tr(
                "each step: {step_tokens:,} tokens in windows of {context:,}; memory about "
                "{memory:,.0f} MiB; on {describe_runtime}",
                batches.sizes.step_tokens,
                batches.context,
                memory / 2**20,
                self.describe_runtime(),
            ),
            tr("expected time: {expected_time}", self.expected_time()),
            _losses_to_beat(self.baselines),
        ]

    def step_shape(self, settings: TrainSettings) -> tuple[ModelConfig, MicroBatch]:
        """(config of the model, shape of a micro-batch) with these settings, which may differ from the run's."""
        config, batch = run_config(settings, self.tokenizer.vocab_size), settings.batch
        length = min(config.context, max(1, len(self.corpus.train) - 1))  # shorter in a run from a model (`init`) only
        rows = _rows(batch.batch_tokens, length)
        micro_rows = min(rows, _rows(batch.micro_batch_tokens, length))
        documents = not settings.data.attend_across_documents
        return config, MicroBatch(micro_rows, length, accumulates=micro_rows < rows, documents=documents)

    def make_model(self) -> Transformer:
        """The model with its first weights: new ones, or those of the model that the run starts from."""
        context = self.context
        if self.settings.run.init is None or Checkpoints(context.folder.checkpoints).steps():
            return super().make_model()
        model = empty_model(self.config)
        model.load_state_dict(initial_model(context.folder).state_dict())
        return model.to(context.runtime.device)

    def comparison(self) -> Comparison | None:
        """The new text, and the old one if it is at hand, for a run that starts from a model."""
        if self.settings.run.init is None:
            return None
        old = old_text(self.corpus, self.context.folder)
        return Comparison(self.batches, None if old is None else self._batches_of(old))

    def add_callbacks(self, callbacks: Callbacks, model: Transformer) -> None:
        """Generated texts."""
        run = self.settings.run
        callbacks.shows_last = not run.sample_prompt  # the texts at the end have no prompt
        callbacks.sample = lambda: self._generate(model, run.sample_prompt, seed=run.seed)[0]

    def judge(self, result: TrainResult) -> Outcome:
        """The verdict against simple models of the same text."""
        metrics, rates = self.context.folder.metrics, self.rates_to_try(result)
        outcome = judge(result, metrics, self.baselines, epochs=self.epochs(result), rates=rates)
        corpus = self.corpus
        return with_repeats(outcome, corpus.repeated_documents, corpus.held_out_documents, "documents")

    def show(self, model: Transformer, outcome: Outcome) -> Outcome:
        """Generated texts, and how much of them is copied."""
        seed, nothing = self.settings.run.seed, list[str]()
        texts = self.attempt(tr("generated texts"), lambda: self._generate(model, "", seed=seed, samples=4), nothing)
        outcome = outcome.with_texts(*texts)
        if not texts:
            return outcome
        progress = partial(self.context.observer.on_progress, tr("comparing with the training text"))
        outcome = self.attempt(
            tr("copy report"), lambda: measure_copying(outcome, self.tokenizer, self.corpus, progress), outcome
        )
        return self.attempt(
            tr("repetition report"),
            lambda: measure_repetition(outcome, _SAMPLING, self.tokenizer, self.corpus),
            outcome,
        )

    def card(self) -> dict[str, Any]:
        """What training.json says about the text."""
        init = {} if self.settings.run.init is None else {"init": described_initial(self.context.folder)}
        return {
            **init,
            "starts_with_bos": self.corpus.starts_with_bos,
            "begin_id": self.corpus.begin_id,
            "unseen": to_ranges(self.unseen),
            "documents": self.corpus.documents,
            "train_tokens": len(self.corpus.train),
            "baselines": {
                "uniform": self.baselines.uniform,
                "unigram": self.baselines.unigram,
                "bigram": self.baselines.bigram,
            },
        }

    def _generate(self, model: Transformer, prompt: str, *, seed: int, samples: int = 1) -> list[str]:
        assert isinstance(model, DecoderOnly)
        settings = _SAMPLING.replace(seed=seed, samples=samples)
        generated = generate(
            model,
            self.tokenizer,
            [prompt],
            settings,
            starts_with_bos=self.starts_with_bos,
            begin_id=self.corpus.begin_id,
            unseen=self.unseen,
        )
        return [prompt + one.text for one in generated]


def _rows(tokens: int | None, context: int) -> int:
    """Windows of the context's length in a batch of `tokens` tokens; None: one."""
    return max(1, (tokens or context) // context)


def _check(model: ModelSettings) -> None:
    """Raise `SettingsError` for sizes that are wrong for any text, before time is spent on reading it."""
    if model.depth is None and model.d_model is None:  # the width is chosen later
        model = model.replace(n_heads=None, n_kv_heads=None, d_head=None)
    resolve_config(model, vocab_size=1 << 16, depth=model.depth or 1, context=model.context or DEFAULT_CONTEXT)


def _complete(settings: TrainSettings, corpus: TokenCorpus, context: RunContext) -> TrainSettings:
    """Fill in the settings that were not given, and tell what was chosen and why."""
    observer, peak, chooses = context.observer, context.peak, settings.model.depth is None
    if chooses and context.runtime.device.type == "cpu":  # by what the machine can do, whatever else it does now
        ranks = context.ranks.size
        peak = nominal_peak(peak / ranks, context.runtime.threads) * ranks
    fit = fit_context(corpus, settings.model.context or DEFAULT_CONTEXT)
    for note in fit.notes:
        observer.on_note(note)
    length = fit.context if settings.run.init is None else settings.model.context  # a model keeps its context
    left = 60 * (settings.budget.minutes or DEFAULT_MINUTES) - context.clock.seconds()
    chosen = choose_sizes(
        settings.with_flat(context=length, preset=settings.model.preset or "modern"),
        vocab_size=corpus.vocab_size,
        train_tokens=len(corpus.train),
        speed=Speed(peak, left),
    )
    if settings.model.depth is None and settings.model.n_layers is None:
        narrow = (
            ""
            if chosen.model.d_model == settings.model.d_model
            else tr(" at a width of {d_model}", chosen.model.d_model)
        )
        observer.on_note(
            tr(
                "depth {depth}{narrow}, chosen for {peak:.0f} GFLOP/s, the budget and {n_train:,} "
                "tokens (--depth sets it)",
                chosen.model.depth,
                narrow,
                peak / 1000000000.0,
                len(corpus.train),
            )
        )
        if context.peak < _BUSY * peak:
            observer.on_note(
                tr(
                    "Other programs use the processor: now it reaches {peak:.0f} of {highest:.0f} "
                    "GFLOP/s. The size is chosen for the speed without them; a smaller --depth suits a "
                    "run beside them.",
                    context.peak / 1000000000.0,
                    peak / 1000000000.0,
                )
            )
    config = run_config(chosen, corpus.vocab_size)
    if config.window is not None and config.window >= config.context:
        observer.on_note(
            tr(
                "The window of {window:,} tokens has no effect: the context is {context:,}.",
                config.window,
                config.context,
            )
        )
    if not settings.data.attend_across_documents and corpus.documents == 1:
        observer.on_note(tr("--no-attend-across-documents has no effect: the text is one document."))
    if config.positions == "rotary":  # recorded: no weight would show a change of it
        chosen = chosen.with_flat(rotary_base=config.rotary_base)
    return chosen.with_flat(out=str(run_path(settings)), threads=chosen_threads(settings, context.runtime))


def _losses_to_beat(found: Baselines) -> str:
    uniform = tr("to beat, in nats per token: {uniform:.3f} (a uniform guess)", found.uniform)
    if found.unigram is None or found.bigram is None:
        return uniform
    return tr("{uniform}, {unigram:.3f} (unigram), {bigram:.3f} (bigram)", uniform, found.unigram, found.bigram)
