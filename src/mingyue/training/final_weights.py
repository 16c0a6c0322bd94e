"""The weights that a run hands over: the last, the best by evaluation, or the mean of the last checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mingyue.training.averaging import average_weights
from mingyue.training.checkpoints import DamagedCheckpointError
from mingyue.training.loss import Evaluation
from mingyue.training.names import clean_state, load_clean_state
from mingyue.training.run import Run


def take_best(run: Run) -> int:
    """Put the best evaluated weights into the model; returns their step."""
    step, best = run.state.step, run.state.best_step
    if best is None or best == step:
        return step

    def load() -> dict[str, Tensor] | None:
        try:
            return run.checkpoints.load(best).model
        except DamagedCheckpointError as error:
            run.caller.observer.on_note(f"{error.message}. The last weights are kept instead of the best.")
            return None

    weights = run.load_together(load)
    if weights is None:
        return step
    load_clean_state(run.model, weights)
    return best


def take_average(run: Run, before: Evaluation, measure: Callable[[], Evaluation]) -> tuple[Evaluation, list[int]]:
    """Put the mean of the last checkpoints into the model, if it predicts no worse by `measure` than `before` says.

    Returns the evaluation of what the model then holds, and the steps that went into it: none if it is no mean.
    """
    tell = run.caller.observer.on_note
    kept = {name: weight.clone() for name, weight in clean_state(run.model).items()}
    found: list[int] = []

    def load() -> dict[str, Tensor] | None:
        try:
            average, steps = average_weights(run.checkpoints, run.settings.run.average_last)
        except DamagedCheckpointError as error:
            tell(f"{error.message}. Nothing is averaged.")
            return None
        found.extend(steps)
        return average

    average = run.load_together(load)
    if average is None:
        return before, []
    steps = run.ranks.share(lambda: found)
    load_clean_state(run.model, average)
    after = measure()
    taken = after.loss <= before.loss
    which = f"The mean of the last {len(steps)} checkpoints (steps {', '.join(f'{step:,}' for step in steps)})"
    tell(
        f"{which} has a held-out loss of {after.loss:.4f}, the best single one {before.loss:.4f}: "
        f"{'the mean' if taken else 'the single one'} is kept."
    )
    run.ranks.on_main(lambda: run.write("average", steps=steps, taken=taken, **after.numbers()))
    if not taken:
        load_clean_state(run.model, kept)
    return (after, steps) if taken else (before, [])
