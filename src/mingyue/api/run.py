"""A training run from its settings to its verdict: what `mingyue train` and `mingyue resume` do."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mingyue import __version__
from mingyue.api.model import run_config
from mingyue.api.outcome import Outcome, judge, measure_copying
from mingyue.bundle import save_bundle
from mingyue.config import GenerateSettings, TrainSettings
from mingyue.data import Baselines, TokenCorpus, baselines, fit_context, load_corpus, prepare_corpus
from mingyue.errors import CheckpointError, DataError, TrainingError
from mingyue.generation import generate
from mingyue.models import DecoderOnly, build_model
from mingyue.models.sizes import sizes
from mingyue.runtime import Runtime, choose_runtime, derive_seed
from mingyue.text import Tokenizer
from mingyue.training import (
    Caller,
    Clock,
    CorpusBatches,
    Observer,
    RunFolder,
    TrainResult,
    changed_settings,
    measure_peak,
    read_log,
)
from mingyue.training import train as run_training
from mingyue.training.loss import CHUNKED_VOCABULARY
from mingyue.training.names import clean_state
from mingyue.training.resume_rules import changes_between, check_changes
from mingyue.training.sizing import DEFAULT_CONTEXT, DEFAULT_MINUTES, EFFICIENCY, Speed, choose_sizes

_ENDING = 2.0  # seconds for the bundle, the last texts and the copy report
_SAMPLE_TOKENS = 120


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    folder: Path
    """The run folder."""
    model_folder: Path
    """The bundle."""
    training: TrainResult
    """Steps, tokens, the final evaluation."""
    outcome: Outcome
    """The verdict, in words, and the copy report."""


def train(
    settings: TrainSettings | None = None, *, observer: Observer | None = None, waited: float = 0.0, **given: object
) -> RunResult:
    """Train a model. `given` are fields of `TrainSettings` by name, whatever group they are in; they win.

    `observer` is told what happens; `waited` are seconds that the user has already waited (a budget in minutes counts
    them). Raises `MingyueError` of every kind; what was saved before stays whole.
    """
    clock = Clock(waited)
    observer = observer or Observer()
    settings = (settings or TrainSettings()).with_flat(**given)
    if not settings.data.sources:
        raise TrainingError(
            "there is no text to train on", advice="Give a file, a folder, or a corpus such as python-docs."
        )
    runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
    folder, notes = RunFolder.create(run_path(settings), settings)
    with folder:
        try:
            for note in (*notes, *runtime.notes):
                observer.on_note(note)
            run = _prepare(settings, folder, runtime, clock, observer)
        except BaseException:
            folder.remove()  # nothing was trained: the same command, corrected, must not find a run in its way
            raise
        return run.go(resume=False)


def resume(
    folder: str | Path,
    *,
    changes: dict[str, object] | None = None,
    observer: Observer | None = None,
    waited: float = 0.0,
    **given: object,
) -> RunResult:
    """Go on with a run from its latest checkpoint. `changes` (or keyword arguments) are settings that differ from here.

    A change takes effect and is told, or is refused with `SettingsError`. Raises `CheckpointError` for a folder that
    holds no run, or no sound checkpoint.
    """
    clock = Clock(waited)
    observer = observer or Observer()
    with RunFolder.open(Path(folder)) as opened:
        old = opened.read_settings()
        settings = changed_settings(old, {**(changes or {}), **given})
        check_changes(changes_between(old, settings))
        _refuse_if_done(opened, old, settings)
        runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
        for note in runtime.notes:
            observer.on_note(note)
        try:
            tokenizer, corpus, _ = load_corpus(opened.data)
        except DataError as error:
            if opened.begun:
                raise
            raise CheckpointError(
                f"{folder} was stopped before anything was trained",
                advice=f"Start it again: mingyue train --config {shlex.quote(str(opened.settings_path))}",
            ) from error
        peak = measure_peak(runtime.device, dtype=runtime.dtype)
        run = _Run(
            settings=settings,
            folder=opened,
            runtime=runtime,
            tokenizer=tokenizer,
            corpus=corpus,
            peak=peak,
            clock=clock,
            observer=observer,
        )
        result = run.go(resume=True)
        if settings != old:
            opened.write_settings(settings)
        return result


def _prepare(settings: TrainSettings, folder: RunFolder, runtime: Runtime, clock: Clock, observer: Observer) -> _Run:
    """Everything before the first step: text, tokenizer, sizes; and say what will be done."""
    tokenizer, corpus, report = prepare_corpus(
        settings.data, settings.tokenizer, folder.data, progress=observer.on_progress
    )
    peak = measure_peak(runtime.device, dtype=runtime.dtype)
    for line in (*report.describe(), *tokenizer.notes):
        observer.on_note(line)
    settings = _complete(settings, corpus, runtime, peak=peak, seconds=clock.seconds(), observer=observer)
    folder.write_settings(settings)
    run = _Run(
        settings=settings,
        folder=folder,
        runtime=runtime,
        tokenizer=tokenizer,
        corpus=corpus,
        peak=peak,
        clock=clock,
        observer=observer,
    )
    run.introduce()
    return run


def _refuse_if_done(folder: RunFolder, old: TrainSettings, new: TrainSettings) -> None:
    """A finished run goes on only with more to do. Raises `TrainingError` that says what was done."""
    log = read_log(folder.metrics)
    if not log or log[-1]["event"] != "end" or log[-1]["reason"] not in ("finished", "patience"):
        return
    last, budget = log[-1], new.budget
    more = (
        (budget.steps is not None and budget.steps > last["step"])
        or (budget.minutes is not None and 60 * budget.minutes > last["seconds"] and budget != old.budget)
        or (budget.epochs is not None and budget.epochs > (old.budget.epochs or 0))
        or new.run.patience != old.run.patience
    )
    if folder.model.is_dir() and not more:
        raise TrainingError(
            f"nothing is left to do: {last['step']:,} steps were taken in {last['seconds'] / 60:.1f} min",
            advice="Give a larger budget to go on, counted from the start of the run: --steps, --minutes or --epochs.",
        )


def run_path(settings: TrainSettings) -> Path:
    """Where a run goes: `--out`, or runs/<name of the first source>."""
    if settings.run.out is not None:
        return Path(settings.run.out)
    first = settings.data.sources[0]
    names = ["stdin"] if first == "-" else [Path(first).stem, Path(first).parent.name]
    cleaned = (re.sub(r"[^\w.-]+", "-", name).strip("-.") for name in names)
    return Path("runs") / next(filter(None, cleaned), "run")


@dataclass(kw_only=True)
class _Run:
    """The parts of one run, and what is done with them."""

    settings: TrainSettings
    folder: RunFolder
    runtime: Runtime
    tokenizer: Tokenizer
    corpus: TokenCorpus
    peak: float
    """Floating-point operations a second, as `measure_peak` gives them."""
    clock: Clock
    observer: Observer

    def __post_init__(self) -> None:
        batch, corpus = self.settings.batch, self.corpus
        self.config = run_config(self.settings, self.tokenizer.vocab_size)
        context = self.config.context
        self.batches = CorpusBatches(
            corpus,
            context=context,
            rows=max(1, (batch.batch_tokens or context) // context),
            micro_rows=max(1, (batch.micro_batch_tokens or context) // context),
            seed=self.settings.run.seed,
            documents=not self.settings.data.attend_across_documents,
        )
        self.baselines = baselines(corpus)

    def introduce(self) -> None:
        """Say what will be trained, what it costs, and what it has to beat."""
        for line in (
            *self._describe(),
            *_to_beat(self.baselines),
        ):
            self.observer.on_note(line)

    def go(self, *, resume: bool) -> RunResult:
        """Train to the end (or until stopped), and hand the model over."""
        settings = self.settings
        model = build_model(self.config, seed=derive_seed(settings.run.seed, "weights")).to(self.runtime.device)
        caller = Caller(
            clock=self.clock,
            observer=self.observer,
            sample=lambda: self._write(model, settings.run.sample_prompt, seed=settings.run.seed)[0],
            ending=_ENDING,
            flops_per_token=sizes(self.config).training_flops(),
            peak_flops=self.peak,
        )
        result = run_training(
            model, self.batches, settings, folder=self.folder, runtime=self.runtime, caller=caller, resume=resume
        )
        model.eval()
        outcome = judge(result, self.folder.metrics, self.baselines)
        if result.reason != "stopped":
            texts = self._write(model, "", seed=settings.run.seed, samples=4)
            outcome = measure_copying(outcome, texts, self.tokenizer, self.corpus)
        save_bundle(
            self.folder.model, self.config, clean_state(model), self.tokenizer, self._training_card(result, outcome)
        )
        return RunResult(self.folder.path, self.folder.model, result, outcome)

    def _write(self, model: DecoderOnly, prompt: str, *, seed: int, samples: int = 1) -> list[str]:
        wanted = GenerateSettings(max_new_tokens=_SAMPLE_TOKENS, seed=seed, samples=samples)
        written = generate(model, self.tokenizer, [prompt], wanted, starts_with_bos=self.corpus.starts_with_bos)
        return [prompt + one.text for one in written]

    def _describe(self) -> list[str]:
        config, batches, settings = self.config, self.batches, self.settings
        counted = sizes(config)
        memory = counted.training_bytes(
            settings.optimiser.optimiser, batches.micro_rows, logits=config.vocab_size < CHUNKED_VOCABULARY
        ).total
        return [
            f"model: {counted.parameters:,} parameters ({counted.parameters_without_embeddings:,} in the blocks): "
            f"{config.n_layers} layers, width {config.d_model}, {config.n_heads} heads of {config.d_head}, "
            f"{config.positions} positions, context {config.context} ({settings.model.preset})",
            f"each step: {batches.rows} windows, {batches.sizes.step_tokens:,} tokens; "
            f"memory about {memory / 2**20:,.0f} MiB; on {self.runtime.describe()}",
            f"expected time: {self._expected_time()}",
        ]

    def _expected_time(self) -> str:
        budget, step = self.settings.budget, self.batches.sizes
        if budget.steps is None and budget.epochs is None:
            return f"{budget.minutes or DEFAULT_MINUTES:g} min, as asked"
        steps = budget.steps or step.steps_of(budget.epochs or 1.0)
        seconds = steps * step.step_tokens * sizes(self.config).training_flops() / (EFFICIENCY * self.peak)
        spoken = f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return f"about {spoken} for {steps:,} steps, by this machine's speed"

    def _training_card(self, result: TrainResult, outcome: Outcome) -> dict[str, Any]:
        """What training.json says. No paths: a bundle may be given away."""
        card: dict[str, Any] = {
            "starts_with_bos": self.corpus.starts_with_bos,
            "mingyue": __version__,
            "made": time.strftime("%Y-%m-%d", time.gmtime()),
            "preset": self.settings.model.preset,
            "optimiser": self.settings.optimiser.optimiser,
            "steps": result.weights_step,
            "tokens": result.tokens,
            "seconds": round(result.seconds, 1),
            "documents": self.corpus.documents,
            "train_tokens": len(self.corpus.train),
            "baselines": {
                "uniform": self.baselines.uniform,
                "unigram": self.baselines.unigram,
                "bigram": self.baselines.bigram,
            },
            "verdict": outcome.verdict,
        }
        if result.evaluation is not None:
            card |= {
                "heldout_loss": result.evaluation.loss,
                "heldout_tokens": result.evaluation.tokens,
                "bits_per_byte": result.evaluation.bits_per_byte,
            }
        return card


def _complete(
    settings: TrainSettings, corpus: TokenCorpus, runtime: Runtime, *, peak: float, seconds: float, observer: Observer
) -> TrainSettings:
    """Fill in what was left open, and say what was chosen and why. `seconds` are gone already."""
    fit = fit_context(corpus, settings.model.context or DEFAULT_CONTEXT)
    for note in fit.notes:
        observer.on_note(note)
    left = 60 * (settings.budget.minutes or DEFAULT_MINUTES) - seconds
    chosen = choose_sizes(
        settings.with_flat(context=fit.context),
        vocab_size=corpus.vocab_size,
        train_tokens=len(corpus.train),
        speed=Speed(peak, left),
    )
    if settings.model.depth is None and settings.model.n_layers is None:
        observer.on_note(
            f"depth {chosen.model.depth}, chosen for {peak / 1e9:.0f} GFLOP/s, the budget and "
            f"{len(corpus.train):,} tokens (--depth sets it)"
        )
    return chosen.with_flat(out=str(run_path(settings)), threads=runtime.threads)


def _to_beat(found: Baselines) -> list[str]:
    if found.unigram is None or found.bigram is None:
        return [f"to beat, in nats per token: {found.uniform:.3f} (a uniform guess)"]
    return [
        f"to beat, in nats per token: {found.uniform:.3f} (a uniform guess), {found.unigram:.3f} (unigram), "
        f"{found.bigram:.3f} (bigram)"
    ]
