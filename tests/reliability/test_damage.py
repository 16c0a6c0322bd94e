"""Files that were cut, emptied, lost, or have one bit or one number changed: named, set aside, and the run goes on."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

KEEPING = ("--keep", "3")
_AT = {"start": 0.0, "middle": 0.5, "end": 1.0}
_HARMS = ["empty", "gone", *(f"{what} {where}" for what in ("flip", "cut") for where in _AT)]


def harm(path: Path, how: str) -> None:
    """Damage a file. "flip": one bit; "cut": the rest is lost, at the end one character; "number": still good JSON."""
    content = path.read_bytes()
    what, _, where = how.partition(" ")
    place = min(int(len(content) * _AT.get(where, 0.0)), len(content.rstrip(b"\n")) - 1)
    if how == "gone":
        path.unlink()
    elif how == "number":
        numbers = list(re.finditer(r"(?<=: )\d+(?=,?\n)", content.decode("utf-8")))
        found = numbers[len(numbers) // 2]
        text = content.decode("utf-8")
        path.write_text(text[: found.start()] + str(int(found[0]) + 1) + text[found.end() :], encoding="utf-8")
        json.loads(path.read_text(encoding="utf-8"))
    else:
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        path.write_bytes({"empty": b"", "cut": content[:place], "flip": flipped}[what])


@pytest.fixture
def stopped(program, trial):
    """A run that was killed after its last checkpoint but before its end: three checkpoints, no model."""

    def make(kind, name="damaged"):
        whole = trial(kind, *KEEPING)
        base = program.folder / f"stopped-{kind}"
        if not base.exists():
            program.run(*whole.command, "--out", str(base)).well()
            shutil.rmtree(base / "model")
        out = program.folder / name
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(base, out)
        return whole, out

    return make


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(program, stopped, tell):
    """Every file of the latest checkpoint, every harm: named, set aside, and the end is the same bit for bit."""
    seen, wrong = Counter(), []
    for name in ("model.safetensors", "optimiser.safetensors", "state.json"):
        for how in (*_HARMS, *(["number"] if name == "state.json" else [])):
            whole, out = stopped("text")
            step = sorted((out / "checkpoints").glob("step-*"))[-1]
            harm(step / name, how)
            ended = program.run("resume", str(out))
            flat = ended.said.replace("\n", "")
            aside = step.parent / f"damaged-{step.name}.1"
            if ended.code or name not in flat or aside.name not in flat or not aside.is_dir():
                wrong.append((name, how, ended))
                continue
            shutil.rmtree(aside)
            whole.check(out)
            seen[f"{how.partition(' ')[0]}"] += 1
    assert wrong == []
    tell("damaged checkpoints", seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_only_damaged_checkpoints_the_error_names_them_and_nothing_is_deleted(program, stopped):
    _, out = stopped("text")
    steps = sorted((out / "checkpoints").glob("step-*"))
    for step in steps:
        harm(step / "model.safetensors", "flip middle")
    ended = program.run("resume", str(out)).refused(
        "no sound checkpoint", "mingyue train", *(step.name for step in steps)
    )
    assert ended.said.count("model.safetensors") == len(steps)
    assert {path.name for path in (out / "checkpoints").iterdir()} == {f"damaged-{step.name}.1" for step in steps}
    program.run("resume", str(out))  # asked again, it has nothing to go on from: the start, or an error; never a fault
    assert {path.name for path in (out / "checkpoints").glob("damaged-*")} == {
        f"damaged-{step.name}.1" for step in steps
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_damage_to_any_other_file_of_a_run(program, stopped, tell, kind):
    """Named or without effect; where the run goes on, it ends as if nothing had been."""
    seen, wrong = Counter(), []
    manifest = {"text": "corpus.json", "pairs": "pairs.json"}[kind]
    tokens = {"text": "train-00000.tokens", "pairs": "valid_target-00000.tokens"}[kind]
    names = ["plan.json", "metrics.jsonl", f"data/{manifest}", "data/tokenizer.json", f"data/{tokens}"]
    for name in names:
        for how in (*_HARMS, *(["number"] if name in ("plan.json", f"data/{manifest}") else [])):
            whole, out = stopped(kind)
            harm(out / name, how)
            ended = program.run("resume", str(out))
            is_log = name == "metrics.jsonl"  # what is behind the last checkpoint is cut off anyway
            named = name.rpartition("/")[2] in ended.said.replace("\n", "")
            if ended.code or not (named or is_log):
                wrong.append((name, how, ended))
                continue
            for aside in out.glob("damaged-*"):
                shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
            found = whole.differences(out)
            if [path for path in found if not (is_log and path == "log")]:
                wrong.append((name, how, ended, found))
            seen[f"{name}: {'named' if named else 'without effect'}"] += 1
    assert wrong == []
    tell(f"damage to other files, {kind}", seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damage_to_run_toml(program, stopped, tell):
    """An error that names file and place, or a change that is told or refused; a lost one comes back."""
    seen, wrong = Counter(), []
    for how in _HARMS:
        whole, out = stopped("text")
        before = (out / "run.toml").read_text(encoding="utf-8")
        harm(out / "run.toml", how)
        ended = program.run("resume", str(out))
        if ended.code not in (0, 2) or "Traceback" in ended.said or (ended.code == 2 and "run.toml" not in ended.said):
            wrong.append((how, ended))
            continue
        if ended.code == 2:
            (out / "run.toml").unlink()  # what the error advises
            ended = program.run("resume", str(out)).well()
            seen["refused, deleted as advised, taken from the checkpoint"] += 1
        else:
            seen["taken from the checkpoint" if "was missing" in ended.said else "without effect"] += 1
        whole.check(out)
        assert (out / "run.toml").read_text(encoding="utf-8") == before
    assert wrong == []
    tell("damage to run.toml", seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sources_that_are_gone_or_changed_do_not_take_the_place_of_damaged_tokens(program, stopped):
    """Prepared text is made again only from the same sources; otherwise what is there stays, and the error says why."""
    _, out = stopped("text")
    source = program.folder / "poems.txt"
    text = source.read_bytes()
    harm(out / "data" / "train-00000.tokens", "flip end")
    damaged = (out / "data" / "train-00000.tokens").read_bytes()
    try:
        source.unlink()
        program.run("resume", str(out)).refused(
            "train-00000.tokens is damaged", "cannot be prepared again", "poems.txt"
        )
        assert (out / "data" / "train-00000.tokens").read_bytes() == damaged
        source.write_bytes(text.replace(b"moon", b"noom"))  # the same letters and length, another text
        program.run("resume", str(out)).refused("The text or the tokenizer has changed")
    finally:
        source.write_bytes(text)
    assert len(list((out / "checkpoints").glob("step-*"))) == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_damaged_model_is_named_and_made_anew_by_resume(program, trial, tell, kind):
    """Every file of the bundle, every harm: writing with it names the file, `resume` makes the same model again."""
    whole, seen, wrong = trial(kind), Counter(), []
    out = program.folder / "bundle"
    shutil.rmtree(out, ignore_errors=True)
    program.run(*whole.command, "--out", str(out)).well()
    sound = program.folder / "sound"
    shutil.rmtree(sound, ignore_errors=True)
    shutil.copytree(out, sound)
    use = ["generate", str(out), "--max-new-tokens", "1"]
    if kind == "pairs":
        use = ["translate", str(out), "--text", "moon"]
    program.run(*use).well()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "training.json"):
        for how in _HARMS:
            shutil.rmtree(out)
            shutil.copytree(sound, out)
            harm(out / "model" / name, how)
            ended = program.run(*use)
            readable = (
                name == "training.json" and ended.code == 0
            )  # a changed letter of the verdict, a lost last line end
            if not readable and (ended.code != 2 or name not in ended.said.replace("\n", "")):
                wrong.append((name, how, ended))
                continue
            seen["named" if not readable else "readable all the same"] += 1
            if how in ("flip middle", "gone", "empty") and not readable:
                program.run("resume", str(out)).well()
                for aside in out.glob("damaged-model.*"):
                    shutil.rmtree(aside)
                program.run(*use).well()
                whole.check(out)
                seen["made anew"] += 1
    assert wrong == []
    tell(f"damaged models, {kind}", seen)
