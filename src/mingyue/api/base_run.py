"""One run, whatever it trains on: describe, train, judge, hand over. `text_run` and `pair_run` fill it in."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mingyue import __version__
from mingyue.api.outcome import Outcome
from mingyue.config import DEFAULT_MINUTES, TrainSettings
from mingyue.models import Transformer, TransformerConfig, build_model, make_model
from mingyue.runtime import Runtime, processes
from mingyue.training import BatchSource, Caller, Clock, Observer, RunFolder, TrainResult, measure_peak
from mingyue.training import train as run_training
from mingyue.training.distributed import Ranks
from mingyue.training.memory import StepMemory
from mingyue.training.memory_check import check_memory, free_memory
from mingyue.training.sizing import EFFICIENCY
from mingyue.training.start import compiles, weights_seed

if TYPE_CHECKING:
    from mingyue.inspection import Subject

ENDING = 2.0
"""Seconds for the bundle, the last texts and the copy report."""


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
    of_pairs: bool = False
    """Whether the model translates; else it writes."""


@dataclass(kw_only=True)
class Place:
    """Where a run lives and what it runs on."""

    folder: RunFolder
    runtime: Runtime
    clock: Clock
    observer: Observer
    peak: float = 0.0
    """Floating-point operations a second of all ranks, as `measure_peak` gives them; 0 until it was asked."""
    ranks: Ranks = field(default_factory=Ranks)

    def measure(self) -> None:
        """Ask `measure_peak`."""
        self.peak = measure_peak(self.runtime.device, dtype=self.runtime.dtype) * self.ranks.size


class Run(ABC):
    """The parts of one run, and what is done with them."""

    config: TransformerConfig
    batches: BatchSource
    flops_per_token: float
    """Forward and backward, a target token."""

    def __init__(self, settings: TrainSettings, place: Place) -> None:
        self.settings = settings
        self.place = place

    # --- what each kind of run has of its own -------------------------------------------------------------------

    @abstractmethod
    def describe(self) -> list[str]:
        """What will be trained, what it costs, and what it has to beat."""

    @abstractmethod
    def memory(self, settings: TrainSettings) -> StepMemory:
        """What a step takes with these settings, which may differ from the run's."""

    @abstractmethod
    def prepare(self, model: Transformer, caller: Caller) -> Caller:
        """Give the caller what is written and measured during training with `model`."""

    @abstractmethod
    def judge(self, model: Transformer, result: TrainResult) -> Outcome:
        """The verdict on the trained model, in eval mode."""

    @abstractmethod
    def save(self, model: Transformer, card: dict[str, Any]) -> None:
        """Write the bundle with what training.json says."""

    @abstractmethod
    def card(self) -> dict[str, Any]:
        """What this kind of run has to say in training.json."""

    @abstractmethod
    def subject(self, model: Transformer) -> Subject:
        """The model with its tokenizers, to be looked at."""

    # --- what all have in common --------------------------------------------------------------------------------

    def introduce(self) -> None:
        """Say what will be trained."""
        for line in self.describe():
            self.place.observer.on_note(line)
        self.check()

    def check(self) -> None:
        """Raise `SettingsError` for what this machine or this model cannot do, before any time is spent on it."""
        self.check_memory()
        if self.settings.run.watch:
            from mingyue.api.watching import check_watched

            with torch.device("meta"):
                check_watched(self.subject(make_model(self.config)), self.settings.run.watch)

    def check_memory(self) -> None:
        """Raise `SettingsError` when the run would take more memory than is free, with what would fit."""
        free = free_memory(self.place.runtime.device, processes=processes().local_size)
        check_memory(self.settings, lambda settings: self.memory(settings).total, free)

    def go(self, *, resume: bool) -> RunResult:
        """Train to the end (or until stopped), and hand the model over."""
        settings, place = self.settings, self.place
        if resume:  # a new run has asked already
            place.ranks.together(self.check)
        model = self._make_model()
        caller = Caller(
            clock=place.clock,
            observer=place.observer,
            ending=ENDING,
            flops_per_token=self.flops_per_token,
            peak_flops=place.peak,
            watch=self._watcher(model),
        )
        result = run_training(
            model,
            self.batches,
            settings,
            folder=place.folder,
            runtime=place.runtime,
            caller=self.prepare(model, caller),
            resume=resume,
            ranks=place.ranks,
        )
        model.eval()
        outcome = place.ranks.on_main(lambda: self._hand_over(model, result))
        if outcome is None:  # another rank knows the words of it
            outcome = Outcome("not measured", ())
        verdict, sentences, texts = place.ranks.share(lambda: (outcome.verdict, outcome.sentences, outcome.texts))
        if not place.ranks.is_main:
            outcome = Outcome(verdict, tuple(sentences), tuple(texts))
        return RunResult(place.folder.path, place.folder.model, result, outcome, of_pairs=settings.pairs.given)

    def _watcher(self, model: Transformer) -> Callable[[int], None] | None:
        settings, place = self.settings, self.place
        if not settings.run.watch:
            return None
        from mingyue.api.watching import Watcher  # what looks inside is loaded where somebody looks

        compiled = compiles(settings, place.runtime)
        subject, tell = self.subject(model), place.observer.on_note
        return Watcher(subject, settings.run.watch, place.folder.watch, tell=tell, compiled=compiled)

    def _make_model(self) -> Transformer:
        """A model with its first weights; without any where no rank has to hold it whole before it is trained."""
        settings, place = self.settings, self.place
        if settings.run.parallel == "sharded" and place.ranks.size > 1:
            with torch.device("meta"):
                return make_model(self.config)
        return build_model(self.config, seed=weights_seed(settings)).to(place.runtime.device)

    def _hand_over(self, model: Transformer, result: TrainResult) -> Outcome:
        outcome = self.judge(model, result)
        self.save(model, self._card(result, outcome))
        return outcome

    def epochs(self, result: TrainResult) -> float:
        """Passes over the training text that were made."""
        step = self.batches.sizes
        return result.step * step.rows / step.windows

    def expected_time(self) -> str:
        """The budget in words, in minutes by this machine's speed."""
        budget, step = self.settings.budget, self.batches.sizes
        if budget.steps is None and budget.epochs is None:
            return f"{budget.minutes or DEFAULT_MINUTES:g} min, as asked"
        steps = budget.steps or step.steps_of(budget.epochs or 1.0)
        seconds = steps * step.step_tokens * self.flops_per_token / (EFFICIENCY * self.place.peak)
        spoken = f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return f"about {spoken} for {steps:,} steps, by this machine's speed"

    def _card(self, result: TrainResult, outcome: Outcome) -> dict[str, Any]:
        """What training.json says. No paths: a bundle may be given away."""
        card: dict[str, Any] = {
            "mingyue": __version__,
            "made": time.strftime("%Y-%m-%d", time.gmtime()),
            "preset": self.settings.model.preset,
            "optimiser": self.settings.optimiser.optimiser,
            "steps": result.weights_step,
            "tokens": result.tokens,
            "seconds": round(result.seconds, 1),
            "verdict": outcome.verdict,
            **self.card(),
        }
        if result.averaged:
            card["averaged_steps"] = list(result.averaged)
        if result.evaluation is not None:
            card |= result.evaluation.numbers()
        return card


def chosen_threads(settings: TrainSettings, runtime: Runtime) -> int | None:
    """Threads that run.toml keeps: those of a run of one process; of several, whose share follows their number, only
    what was asked for."""
    return runtime.threads if runtime.world_size == 1 else settings.run.threads


def run_path(settings: TrainSettings) -> Path:
    """Where a run goes: `--out`, or runs/<name of the first source>."""
    if settings.run.out is not None:
        return Path(settings.run.out)
    pairs = settings.pairs
    files: Sequence[str] = settings.data.sources or pairs.source or pairs.pairs
    first = files[0].removesuffix(".gz")
    names = ["stdin"] if first == "-" else [Path(first).stem, Path(first).parent.name]
    cleaned = (re.sub(r"[^\w.-]+", "-", name).strip("-.") for name in names)
    return Path("runs") / next(filter(None, cleaned), "run")
