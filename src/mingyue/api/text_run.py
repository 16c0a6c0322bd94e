"""A run on text: a decoder-only model learns to go on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from mingyue.api.base_run import Place, Run, chosen_threads, run_path
from mingyue.api.outcome import Outcome, judge, measure_copying
from mingyue.api.run_config import run_config
from mingyue.bundle import save_bundle
from mingyue.config import DEFAULT_MINUTES, GenerateSettings, ModelSettings, TrainSettings
from mingyue.data import Baselines, Substitution, TokenCorpus, baselines, fit_context, load_corpus, prepare_corpus
from mingyue.data.unseen import to_ranges
from mingyue.generation import generate
from mingyue.models import DecoderOnly, Transformer, resolve_config
from mingyue.models.sizes import sizes
from mingyue.text import Tokenizer
from mingyue.training import Caller, CorpusBatches, TrainResult
from mingyue.training.memory import MicroBatch, StepMemory, step_memory
from mingyue.training.names import clean_state
from mingyue.training.sizing import DEFAULT_CONTEXT, Speed, choose_sizes

if TYPE_CHECKING:
    from mingyue.inspection import Subject

_SAMPLE_TOKENS = 120


class TextRun(Run):
    """The parts of a run on text."""

    def __init__(self, settings: TrainSettings, place: Place, tokenizer: Tokenizer, corpus: TokenCorpus) -> None:
        super().__init__(settings, place)
        self.tokenizer = tokenizer
        self.corpus = corpus
        batch = settings.batch
        self.config = run_config(settings, tokenizer.vocab_size)
        context = self.config.context
        self.batches = self._batches = CorpusBatches(
            corpus,
            context=context,
            rows=max(1, (batch.batch_tokens or context) // context),
            micro_rows=max(1, (batch.micro_batch_tokens or context) // context),
            seed=settings.run.seed,
            documents=not settings.data.attend_across_documents,
            ranks=place.ranks.size,
            substitution=Substitution.of(
                tokenizer,
                corpus.unseen,
                share=batch.unseen_share,
                seed=settings.run.seed,
            ),
        )
        self.flops_per_token = sizes(self.config).training_flops()

    @classmethod
    def of(cls, settings: TrainSettings, place: Place) -> TextRun:
        """Everything before the first step: text, tokenizer, sizes. Raises `MingyueError`s of the data."""
        observer = place.observer
        _check(settings.model)
        tokenizer, corpus, report = prepare_corpus(
            settings.data, settings.tokenizer, place.folder.data, progress=observer.on_progress
        )
        for line in (*report.describe(), *tokenizer.notes):
            observer.on_note(line)
        settings = _complete(settings, corpus, place)
        place.folder.write_settings(settings)
        return cls(settings, place, tokenizer, corpus)

    @classmethod
    def again(cls, settings: TrainSettings, place: Place) -> TextRun:
        """The same for a run that has its text prepared. Raises `DataError`."""
        tokenizer, corpus, _ = load_corpus(place.folder.data)
        run = cls(settings, place, tokenizer, corpus)
        if place.ranks.is_main:
            _ = run.baselines  # now, and not in the time that is kept for the end
        return run

    @cached_property
    def baselines(self) -> Baselines:
        """Losses of simple models of the same text, which is read whole for it: only where they are asked for."""
        return baselines(self.corpus)

    def memory(self, settings: TrainSettings) -> StepMemory:
        """What a step takes with these settings, which may differ from the run's."""
        config, batch = run_config(settings, self.tokenizer.vocab_size), settings.batch
        rows = max(1, (batch.batch_tokens or config.context) // config.context)
        micro_rows = min(rows, max(1, (batch.micro_batch_tokens or config.context) // config.context))
        documents = not settings.data.attend_across_documents
        read = MicroBatch(micro_rows, config.context, accumulates=micro_rows < rows, documents=documents)
        return step_memory(config, settings, read, self.place.runtime)

    def describe(self) -> list[str]:
        """What will be trained, what it costs, and what it has to beat."""
        config, batches, settings = self.config, self._batches, self.settings
        counted = sizes(config)
        memory = self.memory(settings).total
        return [
            f"model: {counted.parameters:,} parameters ({counted.parameters_without_embeddings:,} in the blocks): "
            f"{config.n_layers} layers, width {config.d_model}, {config.n_heads} heads of {config.d_head}, "
            f"{config.positions} positions, context {config.context} ({settings.model.preset})",
            f"each step: {batches.rows} windows, {batches.sizes.step_tokens:,} tokens; "
            f"memory about {memory / 2**20:,.0f} MiB; on {self.place.runtime.describe()}",
            f"expected time: {self.expected_time()}",
            _to_beat(self.baselines),
        ]

    def prepare(self, model: Transformer, caller: Caller) -> Caller:
        """Samples of what the model writes."""
        run = self.settings.run
        caller.sample = lambda: self._write(model, run.sample_prompt, seed=run.seed)[0]
        return caller

    def judge(self, model: Transformer, result: TrainResult) -> Outcome:
        """Against simple models of the same text; and how much the model copies."""
        outcome = judge(result, self.place.folder.metrics, self.baselines, epochs=self.epochs(result))
        if result.reason != "stopped":
            texts = self._write(model, "", seed=self.settings.run.seed, samples=4)
            outcome = measure_copying(outcome, texts, self.tokenizer, self.corpus)
        return outcome

    def subject(self, model: Transformer) -> Subject:
        """The model with its tokenizer."""
        from mingyue.inspection import Subject

        return Subject(model, self.tokenizer, starts_with_bos=self.corpus.starts_with_bos)

    def save(self, model: Transformer, card: dict[str, Any]) -> None:
        """Write the bundle."""
        save_bundle(self.place.folder.model, self.config, clean_state(model), self.tokenizer, card)

    def card(self) -> dict[str, Any]:
        """What a run on text has to say of itself."""
        return {
            "starts_with_bos": self.corpus.starts_with_bos,
            "begin_id": self.corpus.begin_id,
            "unseen": to_ranges(self.corpus.unseen),
            "documents": self.corpus.documents,
            "train_tokens": len(self.corpus.train),
            "baselines": {
                "uniform": self.baselines.uniform,
                "unigram": self.baselines.unigram,
                "bigram": self.baselines.bigram,
            },
        }

    def _write(self, model: Transformer, prompt: str, *, seed: int, samples: int = 1) -> list[str]:
        assert isinstance(model, DecoderOnly)
        wanted = GenerateSettings(max_new_tokens=_SAMPLE_TOKENS, seed=seed, samples=samples)
        written = generate(
            model,
            self.tokenizer,
            [prompt],
            wanted,
            starts_with_bos=self.corpus.starts_with_bos,
            begin_id=self.corpus.begin_id,
            unseen=self.corpus.unseen,
        )
        return [prompt + one.text for one in written]


def _check(model: ModelSettings) -> None:
    """Refuse what no text could make right, before time is spent on reading it."""
    if model.depth is None and model.d_model is None:  # heads cannot be checked against a width that is not chosen yet
        model = model.replace(n_heads=None, n_kv_heads=None, d_head=None)
    resolve_config(model, vocab_size=1 << 16, depth=model.depth or 1, context=model.context or DEFAULT_CONTEXT)


def _complete(settings: TrainSettings, corpus: TokenCorpus, place: Place) -> TrainSettings:
    """Fill in what was left open, and say what was chosen and why."""
    observer, peak = place.observer, place.peak
    fit = fit_context(corpus, settings.model.context or DEFAULT_CONTEXT)
    for note in fit.notes:
        observer.on_note(note)
    left = 60 * (settings.budget.minutes or DEFAULT_MINUTES) - place.clock.seconds()
    chosen = choose_sizes(
        settings.with_flat(context=fit.context, preset=settings.model.preset or "modern"),
        vocab_size=corpus.vocab_size,
        train_tokens=len(corpus.train),
        speed=Speed(peak, left),
    )
    if settings.model.depth is None and settings.model.n_layers is None:
        narrow = "" if chosen.model.d_model == settings.model.d_model else f" at a width of {chosen.model.d_model}"
        observer.on_note(
            f"depth {chosen.model.depth}{narrow}, chosen for {peak / 1e9:.0f} GFLOP/s, the budget and "
            f"{len(corpus.train):,} tokens (--depth sets it)"
        )
    config = run_config(chosen, corpus.vocab_size)
    if config.positions == "rotary":  # written down: no weight would show that it had become another one
        chosen = chosen.with_flat(rotary_base=config.rotary_base)
    return chosen.with_flat(out=str(run_path(settings)), threads=chosen_threads(settings, place.runtime))


def _to_beat(found: Baselines) -> str:
    uniform = f"to beat, in nats per token: {found.uniform:.3f} (a uniform guess)"
    if found.unigram is None or found.bigram is None:
        return uniform
    return f"{uniform}, {found.unigram:.3f} (unigram), {found.bigram:.3f} (bigram)"
