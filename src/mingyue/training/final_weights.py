"""The final weights of a run: those of the best evaluation, or the mean of the last checkpoints; and their loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from mingyue.errors import MingyueError
from mingyue.training.averaging import average_weights
from mingyue.training.checkpoints import DamagedCheckpointError
from mingyue.training.distributed import Ranks
from mingyue.training.loss import Evaluation
from mingyue.training.names import clean_state, load_clean_state
from mingyue.training.observer import Former
from mingyue.training.placement import Placement
from mingyue.training.plan import Plan, RunSizes
from mingyue.training.resuming import Tell
from mingyue.training.state import RunState
from mingyue.words import tr


def choose_final(
    placement: Placement,
    state: RunState,
    latest: Evaluation | None,
    *,
    plan: Plan,
    sizes: RunSizes,
    last: int,
    measure: Callable[[int | None], Evaluation],
    ranks: Ranks,
    tell: Tell,
    log: Callable[..., None],
    former: Former | None = None,
) -> tuple[Evaluation, int, list[int]]:
    """Leave the final weights in the model: those of the best step, or the mean of the `last` checkpoints.

    If the run has ended before, its `former` weights are kept instead if they are better on the same text.

    `latest` is the evaluation of the current weights; `measure` takes a number of held-out tokens (None: all). Returns
    (evaluation, step of the weights, steps that were averaged).
    """
    weights_step, tokens, averaged = load_best(placement, state, tell), plan.final_tokens(sizes), list[int]()
    if latest is None or plan.evaluate_tokens is not None or weights_step != state.step:
        latest = measure(tokens)
    if last > 1:
        latest, averaged = try_average(
            placement, last, latest, measure=partial(measure, tokens), ranks=ranks, tell=tell, log=log
        )
    if former is not None and former.step != weights_step:
        latest, kept = try_former(
            placement, former, latest, measure=partial(measure, tokens), ranks=ranks, tell=tell, log=log
        )
        weights_step, averaged = (former.step, list[int]()) if kept else (weights_step, averaged)
    if tokens is not None:
        tell(
            tr(
                "The final loss is that of {tokens:,} of {heldout_tokens:,} held-out tokens, spread "
                "evenly: all of them would take more than a fifth of the time.",
                latest.tokens,
                sizes.heldout_tokens,
            )
        )
    return latest, weights_step, averaged


def load_best(placement: Placement, state: RunState, tell: Tell) -> int:
    """Load the weights of the best evaluation into the model; returns their step."""
    best = state.best_step
    if best is None or best == state.step:
        return state.step

    def read() -> dict[str, Tensor] | None:
        try:
            return placement.checkpoints.load(best).model
        except DamagedCheckpointError as error:
            tell(tr("{message}. The last weights are kept instead of the best.", error.message))
            return None

    weights = placement.load(read)
    if weights is None:
        return state.step
    load_clean_state(placement.model, weights)
    return best


def try_former(
    placement: Placement,
    former: Former,
    before: Evaluation,
    *,
    measure: Callable[[], Evaluation],
    ranks: Ranks,
    tell: Tell,
    log: Callable[..., None],
) -> tuple[Evaluation, bool]:
    """Load the `former` weights into the model if their loss by `measure` is below that of `before`.

    Returns (evaluation of the weights that are kept, whether these are the former ones).
    """
    kept = {name: weight.clone() for name, weight in clean_state(placement.model).items()}

    def read() -> dict[str, Tensor] | None:
        try:
            return former.weights()
        except MingyueError as error:
            tell(tr("The former model cannot be compared: {message}.", error.message))
            return None

    weights = placement.load(read)
    if weights is None:
        return before, False
    load_clean_state(placement.model, weights)
    after = measure()
    taken = after.loss < before.loss
    if taken:
        tell(
            tr(
                "The run has become worse: held-out loss {loss:.4f}, before it was resumed "
                "{former_loss:.4f}, on the same text. The former model, of step {step:,}, is kept.",
                before.loss,
                after.loss,
                former.step,
            )
        )
    else:
        load_clean_state(placement.model, kept)
        tell(
            tr(
                "The new model replaces the former one, of step {step:,}: held-out loss {loss:.4f} "
                "instead of {former_loss:.4f}, on the same text.",
                former.step,
                before.loss,
                after.loss,
            )
        )
    ranks.on_main(lambda: log("former", former_step=former.step, taken=taken, **after.numbers()))
    return (after, True) if taken else (before, False)


def try_average(
    placement: Placement,
    last: int,
    before: Evaluation,
    *,
    measure: Callable[[], Evaluation],
    ranks: Ranks,
    tell: Tell,
    log: Callable[..., None],
) -> tuple[Evaluation, list[int]]:
    """Load the mean of the `last` checkpoints into the model if its loss by `measure` is not above that of `before`.

    Returns (evaluation of the weights that are kept, steps that were averaged: none if the mean is not kept).
    """
    kept = {name: weight.clone() for name, weight in clean_state(placement.model).items()}
    steps: list[int] = []

    def read() -> dict[str, Tensor] | None:
        try:
            average, found = average_weights(placement.checkpoints, last)
        except DamagedCheckpointError as error:
            tell(tr("{message}. Nothing is averaged.", error.message))
            return None
        steps.extend(found)
        return average

    average = placement.load(read)
    if average is None:
        return before, []
    steps = ranks.share(lambda: steps)
    load_clean_state(placement.model, average)
    after = measure()
    taken = after.loss <= before.loss
    which = tr(
        "The mean of the last {n_steps} checkpoints (steps {steps})",
        len(steps),
        ", ".join(f"{step:,}" for step in steps),
    )
    tell(
        tr(
            "{which} has a held-out loss of {loss:.4f}, the best single one {single_loss:.4f}: {value} is kept.",
            which,
            after.loss,
            before.loss,
            tr("the mean") if taken else tr("the single one"),
        )
    )
    ranks.on_main(lambda: log("average", steps=steps, taken=taken, **after.numbers()))
    if not taken:
        load_clean_state(placement.model, kept)
    return (after, steps) if taken else (before, [])
