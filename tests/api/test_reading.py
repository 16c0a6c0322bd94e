"""Programs that only read a run or a model: they change nothing on the disk, and say which checkpoint they use."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mingyue
from mingyue.cli import main
from mingyue.errors import CheckpointError, MingyueError
from mingyue.training import Checkpoints, RunFolder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
TINY: dict[str, Any] = {
    "d_model": 32, "context": 32, "batch_tokens": 128, "threads": 1, "steps": 6, "evaluate_every": 2,
    "checkpoint_every": 2, "sample_every": 0, "keep": 3, "tokenizer": "char",
}  # fmt: skip
NOBODY = 65534


@pytest.fixture(scope="module")
def runs() -> Iterator[Path]:
    """Two finished runs in a folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="mingyue-reading-"))
    folder.chmod(0o755)
    (folder / "a.txt").write_text("".join(f"The mill {i % 9} turns.\n" for i in range(60)), encoding="utf-8")
    for name in ("s.txt", "t.txt"):
        (folder / name).write_text("".join(f"word {i}\n" for i in range(60)), encoding="utf-8")
    mingyue.train(sources=[str(folder / "a.txt")], out=str(folder / "text"), depth=1, watch="The mill", **TINY)
    sides = {"source": (str(folder / "s.txt"),), "target": (str(folder / "t.txt"),)}
    small = {"n_layers": 1, "n_encoder_layers": 1, "n_heads": 2, "bleu_lines": 0}
    mingyue.train(out=str(folder / "pairs"), **sides, **small, **TINY)
    # Another user may not be allowed to enter the folder that the program is in, or Python's own: imported now.
    for module in pkgutil.walk_packages(mingyue.__path__, "mingyue."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for kind, verbs in VERBS.items():
        for verb in verbs:
            assert main([part.format(run=folder / kind, runs=folder) for part in verb]) == 0
    assert main(["score", str(folder / "nowhere"), "--text", "x"]) == 2
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def copy(runs: Path) -> Iterator[Callable[[str], Path]]:
    """A copy of a run, of which anything may be damaged."""
    folder = Path(tempfile.mkdtemp(prefix="mingyue-copy-"))
    folder.chmod(0o755)
    yield lambda kind: shutil.copytree(runs / kind, folder / kind)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def snapshot(folder: Path) -> dict[str, Any]:
    """Everything on the disk below a folder, and the names beside it."""
    found: dict[str, Any] = {"beside": sorted(path.name for path in folder.parent.iterdir())}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        content = path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else None
        found[str(path.relative_to(folder))] = (seen.st_mode, seen.st_mtime_ns, seen.st_ino, content)
    return found


@contextmanager
def another_user() -> Iterator[None]:
    """The files of root are not ours; a user who is not root has none that root's permissions open."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def unfinished(run: Path) -> None:
    shutil.rmtree(run / "model")


def damaged(name: str, number: int = -1) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        unfinished(run)
        flip(checkpoints(run)[number] / name)

    return damage


def without(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        unfinished(run)
        (checkpoints(run)[-1] / name).unlink()

    return damage


def read_only(run: Path) -> None:
    for path in [*run.rglob("*"), run]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def read_only_unfinished(run: Path) -> None:
    unfinished(run)
    read_only(run)


def closed(name: str, mode: int = 0) -> Callable[[Path], None]:
    def close(run: Path) -> None:
        unfinished(run)
        (checkpoints(run)[-1] / name).chmod(mode)

    return close


def closed_checkpoints(run: Path) -> None:
    unfinished(run)
    (run / "checkpoints").chmod(0)


def closed_model(name: str) -> Callable[[Path], None]:
    return lambda run: (run / "model" / name).chmod(0)


def closed_model_folder(run: Path) -> None:
    (run / "model").chmod(0o600)


def damaged_model(run: Path) -> None:
    flip(run / "model" / "model.safetensors")


def between_renames(run: Path) -> None:
    (run / "model").rename(run / ".model-old.tmp")


def left_over(run: Path) -> None:
    unfinished(run)
    (run / "checkpoints" / "tmp-step-00000008-1").mkdir()
    (run / "metrics.jsonl").write_text("no log\n", encoding="utf-8")
    (run / "plan.json").write_text("{", encoding="utf-8")


SITUATIONS: dict[str, tuple[Callable[[Path], None], bool]] = {
    "finished": (lambda run: None, True),
    "unfinished": (unfinished, True),
    "read-only": (read_only, True),
    "read-only, unfinished": (read_only_unfinished, True),
    "latest weights damaged": (damaged("model.safetensors"), True),
    "latest optimiser damaged": (damaged("optimiser.safetensors"), True),
    "latest state damaged": (damaged("state.json"), True),
    "latest weights missing": (without("model.safetensors"), True),
    "latest state missing": (without("state.json"), True),
    "latest weights of another user": (closed("model.safetensors"), False),
    "latest state of another user": (closed("state.json"), False),
    "checkpoints of another user": (closed_checkpoints, False),
    "weights of another user": (closed_model("model.safetensors"), False),
    "training.json of another user": (closed_model("training.json"), False),
    "model folder of another user": (closed_model_folder, False),
    "model damaged": (damaged_model, False),
    "killed between two renames": (between_renames, True),
    "left-overs": (left_over, True),
}
VERBS: dict[str, list[list[str]]] = {
    "text": [
        ["generate", "{run}", "--prompt", "The", "--max-new-tokens", "2"],
        ["score", "{run}", "--text", "The mill"],
        ["info", "{run}"],
        ["inspect", "{run}", "surprise", "--text", "The mill"],
    ],
    "pairs": [
        ["translate", "{run}", "--text", "word 3"],
        ["evaluate", "{run}", "--source", "{runs}/s.txt", "--target", "{runs}/t.txt"],
    ],
}


WHILE_TRAINED = ("unfinished", "latest weights damaged", "left-overs")


@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize(
    ("situation", "locked"), [*((one, False) for one in SITUATIONS), *((one, True) for one in WHILE_TRAINED)]
)
def test_reading_changes_nothing(
    copy: Callable[[str], Path], runs: Path, capsys: pytest.CaptureFixture[str], situation: str, kind: str, locked: bool
) -> None:
    """T20: whatever state a run is in; and what was trained can be used if it can be read at all."""
    prepare, works = SITUATIONS[situation]
    run = copy(kind)
    prepare(run)
    if locked:
        folder = RunFolder(run)  # holds the lock until the end of the test
        folder.lock()
    before = snapshot(run)
    for verb in VERBS[kind] if works or kind == "text" else VERBS[kind][:1]:
        arguments = [part.format(run=run, runs=runs) for part in verb]
        with another_user():
            code = main([*arguments, "--threads", "1"] if verb[0] != "info" else arguments)
        said = capsys.readouterr().err
        assert code == (0 if works else 2), (verb, said)
        flat = " ".join(said.split())
        if "of another user" in situation:
            assert "cannot be read: permission denied" in flat and "damaged" not in flat
        assert "Unexpected" not in flat
        assert snapshot(run) == before, (situation, verb)


def test_the_checkpoint_that_is_used_is_said(copy: Callable[[str], Path]) -> None:
    """T20: also which one was damaged."""
    run = copy("text")
    unfinished(run)
    best = Checkpoints(run / "checkpoints").read_run(6)["counters"]["best_step"]
    model = mingyue.load(run)
    assert model.checkpoint == best and f"step {best:,}" in model.loading_notes[0] and len(model.loading_notes) == 1
    flip(run / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    model = mingyue.load(run)
    assert model.checkpoint is not None and model.checkpoint != best
    assert f"step {model.checkpoint:,}" in model.loading_notes[0]
    assert f"step-{best:08d}/model.safetensors is damaged" in model.loading_notes[1]


def test_a_reader_without_permission_does_not_set_the_owner_back(copy: Callable[[str], Path]) -> None:
    """T20: the owner's run is resumed from its latest checkpoint."""
    run = copy("text")
    unfinished(run)
    for path in run.glob("checkpoints/*/*.safetensors"):
        path.chmod(0o600 if os.geteuid() == 0 else 0)
    with another_user(), pytest.raises(CheckpointError, match="permission denied"):
        mingyue.load(run)
    for path in run.glob("checkpoints/*/*.safetensors"):
        path.chmod(0o600)
    assert mingyue.resume(run, steps=8).training.step == 8
    resumed = [line for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if '"resume"' in line]
    assert '"step": 6' in resumed[-1].replace('"step":6', '"step": 6')


def test_a_resume_without_permission_sets_nothing_aside(copy: Callable[[str], Path]) -> None:
    """T20: permission denied is no damage."""
    run = copy("text")
    for path in [*run.rglob("*"), run]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    for name in ("model/model.safetensors", "plan.json", f"checkpoints/{checkpoints(run)[-1].name}/state.json"):
        (run / name).chmod(0)
        names = {str(path.relative_to(run)) for path in run.rglob("*")}
        with another_user(), pytest.raises(MingyueError, match=r"[Pp]ermission denied"):
            mingyue.resume(run, **({} if name.startswith("model") else {"steps": 7}))
        assert names <= {str(path.relative_to(run)) for path in run.rglob("*")}
        (run / name).chmod(0o666)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002, 0o077])
def test_every_file_of_a_run_has_the_permissions_that_the_umask_gives(tmp_path: Path, mask: int) -> None:
    """T20: another user can read the run of one who lets him."""
    (tmp_path / "a.txt").write_text("The mill turns.\n" * 60, encoding="utf-8")
    before = os.umask(mask)
    try:
        run = {**TINY, "steps": 2, "watch": "The mill"}
        mingyue.train(sources=[str(tmp_path / "a.txt")], out=str(tmp_path / "run"), depth=1, **run)
    finally:
        os.umask(before)
    for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]:
        expected = (0o777 if path.is_dir() else 0o666) & ~mask
        assert path.stat().st_mode & 0o777 == expected, path
