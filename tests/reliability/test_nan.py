"""One number that is not a number, in the middle of a run: it stops in time, says where, and a resume goes on."""

from __future__ import annotations

import pytest

_KEPT = ("--checkpoint-every", "2", "--keep", "5", "--evaluate-every", "100")

_CASES = [
    ("text", "gradient", "blocks.0.attention.qkv.weight"),
    ("text", "weight", "blocks.0.feedforward.inner.weight"),
    ("text", "activation", "blocks.0.feedforward_norm"),
    ("pairs", "gradient", "decoder.blocks.0.cross_attention.output.weight"),
    ("pairs", "weight", "encoder.blocks.0.attention.qkv.weight"),
    ("pairs", "activation", "decoder.blocks.0.feedforward_norm"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "where", "name"), _CASES)
def test_nan_stops_the_run_before_the_update(program, trial, kind, where, name):
    """At step 5: the error names step and layer, the checkpoint of step 4 is the last, and from it all ends well."""
    trial = trial(kind, *_KEPT)
    out = program.folder / f"nan-{kind}-{where}"
    ended = program.run(*trial.command, "--out", str(out), nan=[where, 5, name])
    ended.refused("at step 5", name.rpartition(".")[0], "No weight was updated by this step", "Resume it")
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-00000002", "step-00000004"]
    program.run("resume", str(out)).well()
    trial.check(out)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_weight_that_an_update_spoilt_is_never_saved(program, trial, kind):
    """The update of step 4 leaves a NaN, and a save is due: no checkpoint is made of it; the one before is good."""
    name = {"text": "blocks.0.feedforward.inner.weight", "pairs": "encoder.blocks.0.feedforward.inner.weight"}[kind]
    trial = trial(kind, *_KEPT)
    out = program.folder / f"spoilt-{kind}"
    program.run(*trial.command, "--out", str(out), nan=["update", 4, name]).refused("step 4", name, "not finite")
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000002"]
    program.run("resume", str(out)).well()
    trial.check(out)
