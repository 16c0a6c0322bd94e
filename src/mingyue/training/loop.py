"""The loop: plan, step, log, evaluate, save, until the plan is done or someone asks to stop."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, TrainingError
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.batches import BatchSource
from mingyue.training.checkpoints import Checkpoint
from mingyue.training.distributed import LostRankError, Ranks
from mingyue.training.final_weights import take_average, take_best
from mingyue.training.loss import Evaluation, evaluate
from mingyue.training.names import clean_state
from mingyue.training.observer import EvaluationReport, Reason, StepReport, TrainResult
from mingyue.training.plan import Cadence, Plan
from mingyue.training.run import Caller, Run
from mingyue.training.run_folder import RunFolder
from mingyue.training.signals import StopRequests
from mingyue.training.start import describe_runtime, start
from mingyue.training.state import versions
from mingyue.training.step import StepResult

_SECONDS_BETWEEN_CHECKPOINTS = 60.0
_SAVING_SHARE = 0.03  # of the time, at most
_EVALUATIONS_BETWEEN_SAMPLES = 5


def train(
    model: Transformer,
    batches: BatchSource,
    settings: TrainSettings,
    *,
    folder: RunFolder,
    runtime: Runtime,
    caller: Caller | None = None,
    resume: bool = False,
    stop: StopRequests | None = None,
    ranks: Ranks | None = None,
) -> TrainResult:
    """Train until the plan is done, patience ends, or a stop is asked for (Ctrl-C, SIGTERM): saved in each case.

    `folder` is locked by the caller. With `resume` the run goes on from its latest checkpoint, and a run stopped
    anywhere and resumed equals one never stopped, bit for bit on a CPU with the same threads. With several `ranks` each
    calls this with the same arguments; only rank 0 has a say in `folder` and tells `caller`.

    Raises `TrainingError` when the loss or the gradient is not finite, `CheckpointError` when saving or loading fails,
    `SettingsError` for a changed setting that a resume refuses. What was saved before is whole in every case.
    """
    with stop or StopRequests() as requests:
        run = start(
            model,
            batches,
            settings,
            folder=folder,
            runtime=runtime,
            caller=caller or Caller(),
            resume=resume,
            ranks=ranks,
            stop=requests,
        )
        try:
            with run.ranks.in_touch_throughout():
                loop = _Loop(run, requests)
                result = loop.finish(loop.run())
        except TrainingError as error:
            run.write("end", reason="failed", error=error.message)
            if not isinstance(error, LostRankError):  # else there is nobody to finish it with
                with suppress(CheckpointError):
                    run.checkpoints.wait()
            raise
        finally:
            run.close()
    run.caller.observer.on_end(result)
    return result


class _Loop:
    def __init__(self, run: Run, stop: StopRequests) -> None:
        self._run = run
        self._ranks = run.ranks
        self._state = run.state
        self._clock = run.caller.clock
        self._observer = run.caller.observer
        self._stop = stop
        self._has_heldout = run.batches.sizes.heldout_tokens > 0
        self._cadence = Cadence(run.settings.run, run.batches.sizes, in_minutes=True)
        self._latest: Evaluation | None = None
        self._saved_step: int | None = run.state.step or None
        self._saved_at = self._clock.seconds()

    def run(self) -> Reason:
        self._watch()
        while True:
            course = self._ranks.share(self._decide)
            if course["save"]:
                self._save()
                continue
            if course["plan"] is not None and not self._ranks.is_main:
                self._run.adopt(Plan.from_json(course["plan"]))
            if course["end"] is not None:
                return course["end"]
            step = self._state.step
            self._step(step)
            if self._run.plan.evaluates_after(step) and self._has_heldout:
                self._evaluate()

    def finish(self, reason: Reason) -> TrainResult:
        run, state = self._run, self._state
        judged = reason != "stopped" and self._has_heldout
        if judged and state.evaluated_step != state.step:
            self._evaluate()
        if self._saved_step != state.step:
            self._save()
        run.checkpoints.wait()
        weights_step, evaluation = state.step, self._latest
        averaged: list[int] = []
        if judged:
            weights_step = take_best(run)
            read = run.plan.final_tokens(run.batches.sizes)
            if evaluation is None or run.plan.evaluate_tokens is not None or weights_step != state.step:
                evaluation = self._measure(read)
            if run.settings.run.average_last > 1:
                evaluation, averaged = take_average(run, evaluation, lambda: self._measure(read))
            if read is not None:
                self._observer.on_note(
                    f"The final loss is that of {evaluation.tokens:,} of {run.batches.sizes.heldout_tokens:,} held-out "
                    "tokens, spread evenly: all of them would take more than a fifth of the time."
                )
            self._observer.on_evaluate(
                EvaluationReport(weights_step, self._clock.seconds(), evaluation, best=True, final=True)
            )
        run.bring_home()
        numbers = evaluation.numbers() if evaluation else {}
        self._ranks.on_main(lambda: run.write("end", reason=reason, weights_step=weights_step, **numbers))
        seconds = self._clock.seconds()
        return TrainResult(
            reason, state.step, weights_step, evaluation, run.plan, state.tokens, seconds, tuple(averaged)
        )

    def _decide(self) -> dict[str, Any]:
        """What comes next, on rank 0: a checkpoint, the end, or a step by this plan (None = as before). JSON."""
        if self._checkpoint_is_due() or self._run.checkpoints.failed:  # the next save says how the one before failed
            return {"save": True}
        before = self._run.plan
        self._follow_plan()
        plan = self._run.plan
        end: Reason | None = None
        if self._state.step >= plan.total_steps:
            end = "finished"
        elif self._out_of_patience():
            end = "patience"
        elif self._stop.requested:
            end = "stopped"
        return {"save": False, "end": end, "plan": None if plan is before else plan.to_json()}

    # --- what happens in it -----------------------------------------------------------------------------------------

    def _follow_plan(self) -> None:
        """In a run of so many minutes: count the steps that fit, until the plan has to be fixed."""
        run, state = self._run, self._state
        plan = run.plan.follow(
            state.step, run.pace, self._clock.seconds(), cadence=self._cadence, evaluated=state.evaluations > 0
        )
        if plan.fixed and not run.plan.fixed:
            run.set_plan(plan)
        run.plan = plan

    def _step(self, step: int) -> None:
        run = self._run
        start = self._clock.seconds()
        batches = run.batches.step(step, rank=self._ranks.rank, ranks=self._ranks.size)
        result = run.stepper.step(step, batches, run.plan.multiplier(step))
        seconds = self._clock.seconds() - start
        run.pace.add_step(seconds)
        self._state.add(result, seconds)
        self._ranks.aside(lambda: self._tell(step, result))

    def _tell(self, step: int, result: StepResult) -> None:
        if self._run.plan.logs_after(step):
            self._log_steps(result)
        self._observer.on_step(self._report(result))

    def _evaluate(self) -> None:
        run = self._run
        start = self._clock.seconds()
        evaluation = self._measure(run.plan.evaluate_tokens)
        seconds = self._clock.seconds() - start
        if run.plan.evaluate_tokens is not None:
            run.pace.final_evaluation = run.plan.final_seconds(run.batches.sizes, seconds / evaluation.tokens)
        if run.caller.measure is not None or self._samples_now(after=1):
            run.bring_home()
        measures = self._ranks.share(self._measures)
        chosen_by = run.caller.select
        best = self._state.judge(evaluation.loss if chosen_by is None else -measures[chosen_by])
        self._latest = evaluation
        seconds = run.pace.evaluation = self._clock.seconds() - start

        def tell() -> None:
            run.write("evaluate", **evaluation.numbers(), **measures, evaluation_seconds=round(seconds, 3), best=best)
            self._observer.on_evaluate(
                EvaluationReport(self._state.step, self._clock.seconds(), evaluation, best, measures=measures)
            )
            self._sample()

        self._ranks.on_main(tell)
        if best:
            self._save(best=True)

    def _measures(self) -> dict[str, float]:
        """What the caller measures besides the loss."""
        run = self._run
        if run.caller.measure is None:
            return {}
        run.whole.eval()
        measures = run.caller.measure()
        run.model.train()
        return measures

    def _sample(self) -> None:
        run = self._run
        if run.caller.sample is None or not self._samples_now():
            return
        start = self._clock.seconds()
        run.whole.eval()
        text = run.caller.sample()
        run.model.train()
        run.pace.sample = (self._clock.seconds() - start) / self._evaluations_between_samples()
        run.write("sample", text=text)
        self._observer.on_sample(self._state.step, text)

    def _samples_now(self, *, after: int = 0) -> bool:
        """Whether a text is written at this evaluation, or `after` so many more."""
        every = self._evaluations_between_samples()
        return self._run.caller.sample is not None and every > 0 and (self._state.evaluations + after) % every == 0

    def _evaluations_between_samples(self) -> int:
        asked = self._run.settings.run.sample_every
        return _EVALUATIONS_BETWEEN_SAMPLES if asked is None else asked

    def _save(self, *, best: bool = False) -> None:
        run, state = self._run, self._state
        start = self._clock.seconds()
        if run.checkpoints.shared:
            self._write(start, best=best)
        else:
            self._ranks.check_replicas(clean_state(run.model), state.step)
            self._ranks.on_main(lambda: self._write(start, best=best))
        self._watch()
        self._saved_step, self._saved_at = state.step, self._clock.seconds()
        run.pace.save = self._saved_at - start

    def _watch(self) -> None:
        """Let the caller look at the model as it is, for the film."""
        run, watch = self._run, self._run.caller.watch
        if watch is None:
            return
        run.bring_home()

        def look() -> None:
            run.whole.eval()
            watch(self._state.step)
            run.model.train()

        self._ranks.on_main(look)

    def _write(self, start: float, *, best: bool) -> None:
        run, state = self._run, self._state
        state.seconds, state.log_bytes = start, 0 if run.log is None else run.log.size()  # of rank 0 is what is kept
        content = {
            "counters": state.to_json(),
            "pace": run.pace.to_json(),
            "scaler": None if run.stepper.scaler is None else run.stepper.scaler.state_dict(),
            "settings": run.settings.model_dump(mode="json"),
            "data": run.batches.identity,
            "runtime": describe_runtime(run.runtime),
            "versions": versions(),
        }
        checkpoint = Checkpoint(state.step, clean_state(run.model), run.optimisers.named_state(), content)
        path = run.checkpoints.save(checkpoint, best=state.best_step)
        self._observer.on_checkpoint(path, state.step, best)

    # --- questions --------------------------------------------------------------------------------------------------

    def _measure(self, tokens: int | None) -> Evaluation:
        run, bytes_per_token = self._run, self._run.batches.bytes_per_token
        own = run.held_out(tokens)
        chunked = run.settings.batch.chunked_loss
        return evaluate(
            run.model, own, run.runtime, bytes_per_token=bytes_per_token, ranks=self._ranks, chunked=chunked
        )

    def _out_of_patience(self) -> bool:
        patience = self._run.settings.run.patience
        return patience is not None and self._state.without_better >= patience

    def _checkpoint_is_due(self) -> bool:
        every = self._run.settings.run.checkpoint_every
        if self._state.step in (0, self._saved_step):  # before the first step there is nothing to keep
            return False
        if every is None:
            pause = max(_SECONDS_BETWEEN_CHECKPOINTS, self._run.pace.save / _SAVING_SHARE)
            return self._clock.seconds() - self._saved_at >= pause
        return self._state.step % every == 0

    def _log_steps(self, result: StepResult) -> None:
        run = self._run
        loss, tokens_per_second = self._state.take_since_log()
        multiplier = run.plan.multiplier(self._state.step - 1)
        values: dict[str, Any] = {
            "train_loss": loss,
            "learning_rate": run.optimisers.rates.adamw * multiplier,
            "gradient_norm": result.gradient_norm,
            "tokens_per_second": round(tokens_per_second, 1),
        }
        if run.optimisers.muon is not None:
            values["muon_learning_rate"] = run.optimisers.rates.muon * multiplier
        share = self._share_of_peak(tokens_per_second)
        if share is not None:
            values["share_of_peak"] = round(share, 4)
        run.write("train", **values)

    def _report(self, result: StepResult) -> StepReport:
        run, step = self._run, self._state.step
        seconds = run.pace.step_seconds
        tokens_per_second = run.batches.sizes.step_tokens / max(seconds, 1e-9)
        return StepReport(
            step=step,
            total_steps=run.plan.total_steps,
            loss=result.loss,
            learning_rate=run.optimisers.rates.adamw * run.plan.multiplier(step - 1),
            gradient_norm=result.gradient_norm,
            tokens_per_second=tokens_per_second,
            seconds=self._clock.seconds(),
            seconds_left=run.pace.seconds_for(run.plan.total_steps - step, run.plan.evaluate_every),
            share_of_peak=self._share_of_peak(tokens_per_second),
        )

    def _share_of_peak(self, tokens_per_second: float) -> float | None:
        caller = self._run.caller
        if caller.flops_per_token is None or not caller.peak_flops:
            return None
        return caller.flops_per_token * tokens_per_second / caller.peak_flops
