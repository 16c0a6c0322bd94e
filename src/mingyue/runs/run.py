"""One training run, on text or on pairs: describe it, train it, judge it, save the model. `start` opens it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from mingyue import __version__
from mingyue.bundle import add_to_training, read_training, save_bundle
from mingyue.config import DEFAULT_MINUTES, EncoderDecoderConfig, ModelConfig, TrainSettings
from mingyue.errors import MingyueError
from mingyue.inspection import Subject
from mingyue.models import Transformer, build_model, empty_model, make_model, read_weights_file
from mingyue.runs.result import RunResult
from mingyue.runs.verdict import Outcome, rates_to_try
from mingyue.runs.watching import Watcher, check_watched
from mingyue.runtime import Runtime, processes
from mingyue.text import Tokenizer
from mingyue.training import (
    BatchSource,
    Callbacks,
    Clock,
    Observer,
    RunFolder,
    StopRequests,
    Trainer,
    TrainResult,
    measure_peak,
    read_log,
)
from mingyue.training.comparing import Comparison, describe_comparison
from mingyue.training.distributed import Ranks
from mingyue.training.log import summary_writer
from mingyue.training.memory import MicroBatch, step_memory
from mingyue.training.memory_check import check_memory, free_memory
from mingyue.training.names import clean_state
from mingyue.training.observer import Former
from mingyue.training.prepare import compiles, weights_seed
from mingyue.training.reports import attempt
from mingyue.training.threads import Measured, ThreadWatch, are_chosen, choose_threads
from mingyue.words import Words, tr

Config = TypeVar("Config", ModelConfig, EncoderDecoderConfig)
Batches = TypeVar("Batches", bound=BatchSource)
T = TypeVar("T")

_ENDING = 2.0  # seconds for the bundle, the last texts and the copy report


@dataclass(kw_only=True)
class RunContext:
    """What surrounds a run: its folder, the runtime, the clock, the observer, the ranks."""

    folder: RunFolder
    runtime: Runtime
    clock: Clock
    observer: Observer
    peak: float = 0.0
    """Floating-point operations per second of all ranks, as measured by `measure_peak`; 0 before it is measured."""
    ranks: Ranks = field(default_factory=Ranks)
    resume: bool = False
    """Whether the run resumes from the latest checkpoint of its folder."""

    def measure_peak(self) -> None:
        """Measure `peak`."""
        self.peak = measure_peak(self.runtime.device, dtype=self.runtime.dtype) * self.ranks.size


class Run(ABC, Generic[Config, Batches]):
    """A run with its data prepared. `TextRun` and `PairRun` add what differs between text and pairs."""

    of_pairs: ClassVar[bool]
    config: Config
    batches: Batches
    flops_per_token: float
    """Forward and backward, per target token."""
    tokenizer: Tokenizer
    """Of pairs, that of the target side."""
    source_tokenizer: Tokenizer | None = None
    """Of pairs, that of the source side."""
    starts_with_bos: bool = False
    """Whether a text starts with the BOS token."""
    unseen: tuple[int, ...] = ()
    """Ids that do not occur in the training text (the targets, for pairs)."""

    def __init__(self, settings: TrainSettings, context: RunContext) -> None:
        self.settings = settings
        self.context = context

    # --- what differs between text and pairs --------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def prepare(cls, settings: TrainSettings, context: RunContext) -> Self:
        """A new run: prepares its data and completes its settings. Raises `MingyueError`s of the data."""

    @classmethod
    @abstractmethod
    def load(cls, settings: TrainSettings, context: RunContext) -> Self:
        """A run whose data are prepared and whose settings are complete. Raises `DataError`."""

    @abstractmethod
    def describe(self) -> list[str]:
        """What will be trained, what it costs, and the losses to beat."""

    @abstractmethod
    def step_shape(self, settings: TrainSettings) -> tuple[Config, MicroBatch]:
        """(config of the model, shape of a micro-batch) with these settings, which may differ from the run's."""

    @abstractmethod
    def add_callbacks(self, callbacks: Callbacks, model: Transformer) -> None:
        """Add what is generated and measured during training."""

    @abstractmethod
    def judge(self, result: TrainResult) -> Outcome:
        """The verdict on the trained model, from its losses."""

    @abstractmethod
    def show(self, model: Transformer, outcome: Outcome) -> Outcome:
        """`outcome` with texts of the trained model, which is in eval mode, and what was measured of them."""

    @abstractmethod
    def card(self) -> dict[str, Any]:
        """What training.json says about the data."""

    # --- what is the same ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `SettingsError` for what does not fit this machine or this model, before any time is spent on it."""
        free = free_memory(self.context.runtime.device, processes=processes().local_size)
        check_memory(self.settings, self.memory, free)
        if self.settings.run.tensorboard:
            summary_writer()
        if self.settings.run.watch:
            check_watched(self._subject(empty_model(self.config)), self.settings.run.watch)

    def memory(self, settings: TrainSettings) -> int:
        """Peak bytes of a step with these settings, which may differ from the run's."""
        config, micro_batch = self.step_shape(settings)
        return step_memory(config, settings, micro_batch, self.context.runtime).total

    def train(self) -> RunResult:
        """Train to the end (or until stopped), judge the model, and save it as a bundle."""
        context, ranks = self.context, self.context.ranks
        model = self.make_model()
        threads = self._thread_watch(model)
        settings = self.settings
        callbacks = Callbacks(
            clock=context.clock,
            observer=context.observer,
            ending=_ENDING,
            flops_per_token=self.flops_per_token,
            peak_flops=context.peak,
            watch=self._watcher(model),
            threads=threads,
            compare=self.comparison(),
            former=self._former(),
        )
        self.add_callbacks(callbacks, model)
        with StopRequests() as stop:
            trainer = Trainer(
                model,
                self.batches,
                settings,
                folder=context.folder,
                runtime=context.runtime,
                callbacks=callbacks,
                resume=context.resume,
                stop=stop,
                ranks=ranks,
            )
            result = trainer.train()
        model.eval()
        outcome = ranks.on_main(lambda: self._hand_over(model, result, callbacks.former)) or Outcome("not measured", ())
        verdict, sentences, texts = ranks.share(lambda: (outcome.verdict, outcome.sentences, outcome.texts))
        if not ranks.is_main:
            outcome = Outcome(verdict, tuple(sentences), tuple(texts))
        return RunResult(context.folder.path, context.folder.model, result, outcome, of_pairs=self.of_pairs)

    def make_model(self) -> Transformer:
        """The model with its initial weights; in a sharded run without any, so that no rank has to hold them all."""
        settings, context = self.settings, self.context
        if settings.run.parallel == "sharded" and context.ranks.size > 1:
            with torch.device("meta"):
                return make_model(self.config)
        return build_model(self.config, seed=weights_seed(settings)).to(context.runtime.device)

    def comparison(self) -> Comparison | None:
        """Held-out texts whose loss is measured before and after: none, but for a run that starts from a model."""
        return None

    def _thread_watch(self, model: Transformer) -> ThreadWatch | None:
        """Choose the number of threads of a new run by measuring, and record it; returns who looks at it again.

        None where it was given.
        """
        context, settings = self.context, self.settings

        def measure() -> Measured:
            return choose_threads(model, self.batches.step(0)[0], settings, context.runtime)

        log = [line["threads"] for line in read_log(context.folder.metrics) if line["event"] == "threads"]
        if log and log[-1] == settings.run.threads:  # measured before this resume
            return ThreadWatch(log[-1], measure)
        if not are_chosen(settings, context.runtime) or context.folder.begun:
            return None
        found = measure()
        context.observer.on_note(found.describe())
        context.runtime = replace(context.runtime, threads=found.threads)
        self.settings = settings.with_flat(threads=found.threads)
        context.folder.write_settings(self.settings)
        return ThreadWatch(found.threads, measure)

    def _watcher(self, model: Transformer) -> Callable[[int], None] | None:
        watched, context = self.settings.run.watch, self.context
        if not watched:
            return None
        compiled = compiles(self.settings, context.runtime)
        tell = context.observer.on_note
        return Watcher(self._subject(model), watched, context.folder.watch, tell=tell, compiled=compiled)

    def _subject(self, model: Transformer) -> Subject:
        """The model with its tokenizers, for inspection."""
        tokenizers = (self.tokenizer, self.source_tokenizer)
        return Subject(model, *tokenizers, starts_with_bos=self.starts_with_bos, unseen=self.unseen)

    def _former(self) -> Former | None:
        """The model that this run had when it ended, if it was resumed with a larger budget; the same on every rank."""
        context = self.context
        if not context.resume or (self.settings.run.parallel == "sharded" and context.ranks.size > 1):
            return None
        step = context.ranks.share(self._former_step)
        weights = context.folder.model / "model.safetensors"
        return None if step is None else Former(step, lambda: read_weights_file(weights))

    def _former_step(self) -> int | None:
        folder = self.context.folder.model
        try:
            card = read_training(folder) if folder.is_dir() else {}
        except MingyueError:  # damaged: it will be written again
            return None
        step, ends = (
            card.get("steps"),
            [line for line in read_log(self.context.folder.metrics) if line["event"] == "end"],
        )
        reason = card.get(
            "reason", ends[-1].get("reason") if ends else None
        )  # earlier versions have it in the log only
        if reason not in ("finished", "patience") or not isinstance(step, int):
            return None
        self.context.observer.on_note(
            tr(
                "The run had ended: its model, of step {step:,}, stays in {folder} until the longer "
                "run has ended, and is kept if that ends worse.",
                step,
                folder,
            )
        )
        return step

    def _hand_over(self, model: Transformer, result: TrainResult, former: Former | None) -> Outcome:
        """Write the bundle, then judge the model: no failure of a report can cost the model.

        A run that ended before and is stopped now keeps the model that it had.
        """
        if former is not None and result.reason == "stopped":
            self.context.observer.on_note(
                tr("The model in {model} is still that of step {step:,}.", self.context.folder.model, former.step)
            )
            return Outcome("not measured", ())
        stage = self.context.observer.on_progress
        stage(tr("saving the model"), 0, 0)
        shared = self.source_tokenizer is self.tokenizer
        self.context.folder.check_in_place()
        save_bundle(
            self.context.folder.model,
            self.config,
            clean_state(model),
            self.tokenizer,
            self._card(result),
            source_tokenizer=None if shared else self.source_tokenizer,
        )
        outcome = self.attempt("verdict", lambda: self._judged(result), Outcome("not measured", ()))
        if result.reason != "stopped":
            stage(tr("generating texts"), 0, 0)
            outcome = self.show(model, outcome)
        verdict = {"verdict": outcome.verdict}
        self.attempt(tr("verdict in training.json"), lambda: add_to_training(self.context.folder.model, verdict), None)
        return outcome

    def _judged(self, result: TrainResult) -> Outcome:
        outcome = self.judge(result)
        compared = describe_comparison(read_log(self.context.folder.metrics))
        return replace(outcome, sentences=(*outcome.sentences, *compared))

    def attempt(self, what: str, report: Callable[[], T], otherwise: T) -> T:
        """The result of a report on the saved model; if it fails, `otherwise`, with a note about `what` is missing."""
        return attempt(what, report, otherwise, self.context.observer.on_note)

    def _card(self, result: TrainResult) -> dict[str, Any]:
        """The content of training.json. It has no paths, since a bundle may be given away."""
        card: dict[str, Any] = {
            "mingyue": __version__,
            "made": time.strftime("%Y-%m-%d", time.gmtime()),
            "preset": self.settings.model.preset,
            "optimiser": self.settings.optimiser.optimiser,
            "reason": result.reason,
            "steps": result.weights_step,
            "tokens": result.tokens,
            "seconds": round(result.seconds, 1),
            **self.card(),
        }
        if result.averaged:
            card["averaged_steps"] = list(result.averaged)
        if result.evaluation is not None:
            card |= result.evaluation.numbers()
        return card

    def epochs(self, result: TrainResult) -> float:
        """Epochs that were trained."""
        sizes = self.batches.sizes
        return result.step * sizes.rows / sizes.windows

    def describe_runtime(self) -> Words:
        """Device, number format and threads, in words."""
        runtime = self.context.runtime
        return runtime.describe(measured=not are_chosen(self.settings, runtime))

    def rates_to_try(self, result: TrainResult) -> str:
        """Learning rates to try after divergence, as options."""
        return rates_to_try(self.settings, self.config, result.plan.warmup_steps)

    def expected_time(self) -> str:
        """The budget in words; a note follows as soon as some steps are measured."""
        budget, sizes = self.settings.budget, self.batches.sizes
        if budget.steps is None and budget.epochs is None:
            return tr("{minutes:g} min, as set", budget.minutes or DEFAULT_MINUTES)
        steps = budget.steps or sizes.steps_of(budget.epochs or 1.0)
        return tr("follows once the first of {steps:,} steps are measured", steps)
