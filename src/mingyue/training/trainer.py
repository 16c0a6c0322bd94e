"""The training loop: plan, step, log, evaluate, save, until the plan is done or a stop is requested."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, DivergedError, LostRankError, SettingsError, TrainingError
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.batches import BatchSource
from mingyue.training.checkpoints import Checkpoint
from mingyue.training.comparing import EVENT, describe_before
from mingyue.training.distributed import Ranks
from mingyue.training.final_weights import choose_final
from mingyue.training.first_plan import first_plan
from mingyue.training.held_out import HeldOutLoss
from mingyue.training.log import open_log
from mingyue.training.loss import Evaluation
from mingyue.training.names import clean_state
from mingyue.training.observer import Callbacks, EvaluationReport, Reason, TrainResult
from mingyue.training.optimisers import Optimisers, peak_rates
from mingyue.training.pace import Pace
from mingyue.training.placement import place_model
from mingyue.training.plan import Cadence, Plan
from mingyue.training.prepare import prepare_model
from mingyue.training.reports import ExpectedTime, attempt, log_values, step_report
from mingyue.training.resume_rules import Change
from mingyue.training.resuming import find_checkpoint, match_runtime, recorded_plan, restore, settings_of
from mingyue.training.run_folder import RunFolder
from mingyue.training.signals import StopRequests
from mingyue.training.state import RunState, checkpoint_content, plan_key
from mingyue.training.step import Stepper, StepResult
from mingyue.words import tr

T = TypeVar("T")


class Trainer:
    """Trains a model on the batches of a source, from the start or from the latest checkpoint of a run folder.

    A run that is stopped anywhere and resumed is identical to an uninterrupted run, bit for bit on a CPU with the same
    threads. The caller has locked `folder` and entered `stop`. With several `ranks` each makes a trainer with the same
    arguments; only rank 0 writes to the folder, makes decisions and calls back. Raises `CheckpointError` or
    `SettingsError` when the run cannot be resumed as asked, `TrainingError` when no step fits into the budget.
    """

    def __init__(
        self,
        model: Transformer,
        batches: BatchSource,
        settings: TrainSettings,
        *,
        folder: RunFolder,
        runtime: Runtime,
        callbacks: Callbacks | None = None,
        resume: bool = False,
        stop: StopRequests | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.batches, self.sizes, self.settings, self.folder = batches, batches.sizes, settings, folder
        self.callbacks = callbacks = callbacks or Callbacks()
        self.clock, self.observer = callbacks.clock, callbacks.observer
        self.stop, self.ranks = stop, ranks = stop or StopRequests(), ranks or Ranks()
        self.has_heldout, tell = self.sizes.heldout_tokens > 0, self.observer.on_note
        if settings.run.patience is not None and not self.has_heldout:
            raise SettingsError(
                tr("patience needs held-out text, and nothing is held out"), advice=tr("Leave --patience out.")
            )

        # The model, on its device, and what it resumes from.
        self.whole, self.placement = model, place_model(model, settings, folder.checkpoints, runtime, ranks)
        self.model = model = self.placement.model  # not the caller's `whole` if it is divided over the ranks
        self.checkpoints = self.placement.checkpoints
        found, changes = None, list[Change]()
        if resume:
            found, changes = find_checkpoint(self.checkpoints, settings, batches.identity, ranks, tell)
        if found is not None:
            runtime = match_runtime(found, settings, runtime, tell)
        self.runtime = runtime
        if self.model is self.whole:
            prepare_model(model, settings, runtime)
        if batches.unseen:
            self.placement.equalise_rows(batches.unseen)
        self.optimisers = Optimisers(model, settings.optimiser, peak_rates(settings, model.config, 1), ranks=ranks)
        self.stepper = Stepper.of(model, self.optimisers, runtime, settings, batches.unseen, ranks=ranks, stop=stop)
        self.held_out = HeldOutLoss(self.placement, batches, settings, runtime, ranks)
        self.state, self.pace = RunState(), Pace(ending=callbacks.ending)
        if found is not None:
            self.state, self.pace = restore(found, self.stepper, changes, settings, ending=callbacks.ending, tell=tell)
            self.clock.add(self.state.seconds)

        # The plan, and the log of it. A damaged plan.json is read from the log before that is cut.
        before = settings if found is None else settings_of(found)
        old, same = recorded_plan(folder, before, settings, ranks, tell) if resume else (None, False)
        state, board = self.state, folder.tensorboard if settings.run.tensorboard else None
        self.metrics = ranks.on_main(
            lambda: open_log(folder.metrics, size=state.log_bytes, board=board, from_step=state.step, tell=tell)
        )
        self.plan_stands = old is not None and same and old.fixed
        counted = {"state": state, "pace": self.pace, "clock": self.clock}
        self.plan = first_plan(old, self.stepper, batches, settings, same=same, tell=tell, **counted)
        self.optimisers.rates = peak_rates(settings, model.config, self.plan.warmup_steps)
        ranks.on_main(lambda: self._record_start(changes, resume=resume))
        self.cadence = Cadence(settings.run, self.sizes, in_minutes=True)
        self.latest: Evaluation | None = None
        self.tie_told, self.expected_time = False, ExpectedTime(tell)
        self.saved_step, self.saved_at = self.state.step or None, self.clock.seconds()

    def _record_start(self, changes: list[Change], *, resume: bool) -> None:
        if resume:
            self.folder.cut_watch(self.state.step)
            self._log("resume", from_step=self.state.step, changes=[change.describe() for change in changes])
            if self.folder.read_settings() != self.settings:
                self.folder.write_settings(self.settings)
        if not resume and self.callbacks.threads is not None:
            self._log("threads", threads=self.callbacks.threads.threads)
        self._record_plan(self.plan)

    def _record_plan(self, plan: Plan) -> None:
        """Record a plan before anything depends on it."""
        self.folder.write_plan({"key": plan_key(self.settings), "plan": plan.to_json()})
        self._log("plan", **plan.to_json())
        if plan.revised:
            self.observer.on_note(plan.describe_revision(self.state.step, self.pace))
        self.observer.on_plan(plan)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def train(self) -> TrainResult:
        """Train until the plan is done, patience ends, or a stop is requested; the run is saved in each case.

        Raises `TrainingError` when the loss or the gradient is not finite, and `CheckpointError` when saving or loading
        fails. Earlier checkpoints are whole in every case.
        """
        state, ranks = self.state, self.ranks
        try:
            with ranks.in_touch_throughout():
                self._watch()
                self._compare(before=True)
                while True:
                    decision = ranks.share(self._decide)
                    if decision["save"]:
                        self._save()
                        continue
                    if decision["plan"] is not None:
                        self.plan = Plan.from_json(decision["plan"])
                    if decision["end"] is not None:
                        break
                    step, start = state.step, self.clock.seconds()
                    micro_batches = self.batches.step(step, rank=ranks.rank, ranks=ranks.size)
                    result = self.stepper.step(step, micro_batches, self.plan.multiplier(step))
                    seconds = self.clock.seconds() - start
                    self.pace.add_step(seconds)
                    state.add(result, seconds)
                    ranks.aside(partial(self._report_step, result))
                    self._look_at_threads()
                    if self.plan.evaluates_after(step) and self.has_heldout:
                        self._evaluate()
                outcome = self._finish(decision["end"])
        except TrainingError as error:
            self._log("end", reason="failed", error=error.message)
            if not isinstance(error, LostRankError):  # without that rank a save cannot complete
                with suppress(CheckpointError):
                    self.checkpoints.wait()
            if not isinstance(error, DivergedError):
                raise
            raise error.advised(self.saved_step) from error
        finally:
            if self.metrics is not None:
                self.metrics.close()
        self.observer.on_end(outcome)
        return outcome

    def _look_at_threads(self) -> None:
        """Take another number of threads where that became faster; the run is saved with it, and a resume keeps it."""
        watch = self.callbacks.threads
        found = None if watch is None else watch.look(self.pace, self.clock.seconds())
        if found is None:
            return
        self.observer.on_note(tr("Steps take more than twice as long as before. {describe}", found.describe()))
        if found.threads != self.runtime.threads:
            self.runtime = replace(self.runtime, threads=found.threads)
            self.settings = self.settings.with_flat(threads=found.threads)
            self.folder.write_settings(self.settings)
            self._log("threads", threads=found.threads)
            self._save()

    def _decide(self) -> dict[str, Any]:
        """What comes next, decided by rank 0: a save, the end, or a step by this plan (None: as before). JSON."""
        state, seconds = self.state, self.clock.seconds()
        since = seconds - self.saved_at
        due = state.step not in (0, self.saved_step) and self.cadence.saves(state.step, since, self.pace)
        if due or self.checkpoints.failed:  # the next save raises the error of the one before
            return {"save": True}
        known = {"evaluated": state.evaluations > 0, "stands": self.plan_stands}
        plan = self.plan.follow(state.step, self.pace, seconds, cadence=self.cadence, **known)
        if plan.fixed and plan != self.plan:
            if plan.revised and self.saved_step != state.step:
                return {"save": True}  # what was trained by the old plan: a resume follows the new one
            self._record_plan(plan)
        end: Reason | None = None
        patience = self.settings.run.patience
        if state.step >= plan.total_steps:
            end = "finished"
        elif patience is not None and state.without_better >= patience:
            end = "patience"
        elif self.stop.requested:
            end = "stopped"
        return {"save": False, "end": end, "plan": None if plan is self.plan else plan.to_json()}

    def _evaluate(self) -> None:
        """Measure the held-out loss, and save the model if it is the best so far."""
        state, pace, callbacks, start = self.state, self.pace, self.callbacks, self.clock.seconds()
        tell = self.observer.on_note
        evaluation = self.latest = self.held_out(self.plan.evaluate_tokens)
        if self.plan.evaluate_tokens is not None:
            seconds_per_token = pace.steady(tr("held-out token"), (self.clock.seconds() - start) / evaluation.tokens)
            pace.final_evaluation = self.plan.final_seconds(self.sizes, seconds_per_token)
        if callbacks.measure is not None or self._samples_at(state.evaluations + 1):
            self.placement.gather_weights()
        measures = self.ranks.share(lambda: self._in_eval_mode(callbacks.measure) if callbacks.measure else {})
        value = evaluation.loss if callbacks.select is None else -measures[callbacks.select]
        tied, best = value == state.best_loss, state.judge(value, evaluation.loss)
        seconds = self.clock.seconds() - start
        pace.evaluation = pace.steady("evaluation", seconds)

        def report() -> None:
            values = {**evaluation.numbers(), **measures, "evaluation_seconds": round(seconds, 3), "best": best}
            self._log("evaluate", **values)
            now = self.clock.seconds()
            self.observer.on_evaluate(EvaluationReport(state.step, now, evaluation, best, measures=measures))
            if callbacks.select is not None and tied and not self.tie_told:
                self.tie_told = True
                tell(
                    tr(
                        "{select} {value:.2f} again: the lower held-out loss decides between equals.",
                        callbacks.select.upper(),
                        -value,
                    )
                )
            if callbacks.sample is not None and self._samples_at(state.evaluations):
                self._sample(callbacks.sample)

        self.ranks.on_main(report)
        if best:
            self._save(best=True)

    def _compare(self, *, before: bool) -> None:
        """Measure a run that starts from a trained model on its old and its new text."""
        if self.callbacks.compare is None or (before and self.state.step):
            return
        start, found = self.clock.seconds(), self.callbacks.compare.measure(self.held_out)
        self.ranks.on_main(lambda: self._log(EVENT, **found))
        if before:
            self.pace.ending += self.clock.seconds() - start  # the same is measured at the end
            if (sentence := describe_before(found)) is not None:
                self.observer.on_note(sentence)

    def _samples_at(self, evaluations: int) -> bool:
        """Whether a text is generated at the evaluation of this number, counted from 1."""
        if self.callbacks.sample is None or (self.callbacks.shows_last and self.state.step >= self.plan.total_steps):
            return False
        every = self.cadence.sample_every
        return every > 0 and evaluations % every == 0

    def _sample(self, generate: Callable[[], str]) -> None:
        start = self.clock.seconds()
        text = attempt("sample", lambda: self._in_eval_mode(generate), None, self.observer.on_note)
        self.pace.sample = self.pace.steady("sample", (self.clock.seconds() - start) / self.cadence.sample_every)
        if text is not None:
            self._log("sample", text=text)
            self.observer.on_sample(self.state.step, text)

    def _in_eval_mode(self, work: Callable[[], T]) -> T:
        """Call back with the caller's model in eval mode."""
        self.whole.eval()
        try:
            return work()
        finally:
            self.model.train()

    def _watch(self) -> None:
        """Let the caller look at the current model, for the film of the run."""
        watch = self.callbacks.watch
        if watch is not None:
            self.placement.gather_weights()
            self.ranks.on_main(lambda: self._in_eval_mode(lambda: watch(self.state.step)))

    def _save(self, *, best: bool = False) -> None:
        start = self.clock.seconds()
        self.ranks.on_main(self.folder.check_in_place)
        self.placement.save(lambda: self._write_checkpoint(start, best=best), self.state.step)
        self._watch()
        self.saved_step, self.saved_at = self.state.step, self.clock.seconds()
        self.pace.save = self.pace.steady("save", self.saved_at - start)

    def _write_checkpoint(self, seconds: float, *, best: bool) -> None:
        state = self.state
        state.seconds = seconds
        state.log_bytes = 0 if self.metrics is None else self.metrics.size()
        content = checkpoint_content(state, self.pace, self.settings, self.runtime)
        content |= {"scaler": self.stepper.scaler_state(), "data": self.batches.identity}
        checkpoint = Checkpoint(state.step, clean_state(self.model), self.optimisers.named_state(), content)
        path = self.checkpoints.save(checkpoint, best=state.best_step)
        self.observer.on_checkpoint(path, state.step, best)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, reason: Reason) -> TrainResult:
        """Save, and leave the best weights, or the mean of the last checkpoints, in the caller's model."""
        state, plan = self.state, self.plan
        evaluates = reason != "stopped" and self.has_heldout
        if evaluates and state.evaluated_step != state.step:
            self._evaluate()
        if self.saved_step != state.step:
            self._save()
        self.checkpoints.wait()
        evaluation, weights_step, averaged = self.latest, state.step, list[int]()
        if evaluates:
            evaluation, weights_step, averaged = choose_final(
                self.placement,
                state,
                evaluation,
                plan=plan,
                sizes=self.sizes,
                last=self.settings.run.average_last,
                measure=partial(self.held_out, progress=partial(self.observer.on_progress, tr("final evaluation"))),
                former=self.callbacks.former,
                ranks=self.ranks,
                tell=self.observer.on_note,
                log=self._log,
            )
            report = EvaluationReport(weights_step, self.clock.seconds(), evaluation, best=True, final=True)
            self.observer.on_evaluate(report)
        if reason != "stopped":
            self._compare(before=False)
        self.placement.gather_weights()
        end = {"reason": reason, "weights_step": weights_step, **(evaluation.numbers() if evaluation else {})}
        self.ranks.on_main(lambda: self._log("end", **end))
        seconds = self.clock.seconds()
        return TrainResult(reason, state.step, weights_step, evaluation, plan, state.tokens, seconds, tuple(averaged))

    def _log(self, event: str, **values: object) -> None:
        if self.metrics is not None:
            step, tokens, seconds = self.state.step, self.state.tokens, self.clock.seconds()
            self.metrics.write(event, step=step, tokens=tokens, seconds=seconds, **values)

    def _report_step(self, result: StepResult) -> None:
        state, plan, optimisers, callbacks = self.state, self.plan, self.optimisers, self.callbacks
        if plan.logs_after(state.step - 1):
            self._log("train", **log_values(result, state, plan, optimisers, callbacks))
        self.expected_time.look(self.pace, plan, self.sizes, step=state.step, seconds=self.clock.seconds())
        report = step_report(result, state, plan, optimisers, callbacks, pace=self.pace, sizes=self.sizes)
        self.observer.on_step(report)
