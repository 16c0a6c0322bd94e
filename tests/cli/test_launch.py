"""`--nproc`: the processes of a run, what becomes of them, and what is said when one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from mingyue.cli import launch
from mingyue.config import RunSettings, TrainSettings
from mingyue.errors import SettingsError, TrainingError

COMMAND = [sys.executable, "-m", "mingyue"]
OPTIONS = """
    --nproc 2 --threads 1 --n-layers 1 --d-model 32 --n-heads 1 --context 32 --batch-tokens 256
    --sample-every 0 --evaluate-every 1000 --checkpoint-every 5
""".split()  # noqa: SIM905


def failure(exitcode, pid=7):
    return SimpleNamespace(exitcode=exitcode, pid=pid, signal_name=lambda: signal.Signals(-exitcode).name)


def test_the_one_that_died_is_named_and_not_those_that_missed_it():
    """Rank 0 lost touch (and handed its code over), rank 2 was ended by the launcher: rank 1 is the one."""
    settings = RunSettings(nproc=3)
    failures = {0: failure(1), 1: failure(-9, pid=41), 2: failure(-15)}
    with pytest.raises(TrainingError) as caught:
        launch._explain(failures, {0: 1}, settings, "my runs/x")
    assert "rank 1 of 3 (process 41) was killed by signal 9 (SIGKILL); the others were ended" in caught.value.message
    assert "mingyue resume 'my runs/x'" in caught.value.advice
    assert "memory ran out" in caught.value.advice
    with pytest.raises(TrainingError, match=r"rank 2 of 3 .* ended with exit code 70, after 2 restarts"):
        launch._explain({2: failure(70)}, {}, RunSettings(nproc=3, restarts=2), "x")


def test_what_the_processes_said_themselves_is_not_said_again():
    """All that ended did so with a code of their own: theirs counts, before that of one that lost touch."""
    assert launch._explain({0: failure(1)}, {0: 1, 1: 2}, RunSettings(nproc=2), "x") == 2
    assert launch._explain({1: failure(1)}, {0: 1, 1: 1}, RunSettings(nproc=2), "x") == 1


def test_exit_codes_are_those_since_the_last_restart(tmp_path, monkeypatch):
    """A process leaves its code, and ends with 0 unless the program is at fault: nothing is started again for it."""
    monkeypatch.setenv("MINGYUE_LAUNCH", str(tmp_path))
    for restart, rank, code in ((0, 0, 1), (0, 1, 1), (1, 1, 2)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        assert launch.hand_over(code) == (1 if code == 1 else 0)
    assert launch._codes(tmp_path) == {1: 2}


def test_processes_are_started_only_by_one_that_was_not_started_so(monkeypatch):
    assert launch.needs_launch(RunSettings(nproc=2))
    assert not launch.needs_launch(RunSettings())
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not launch.needs_launch(RunSettings(nproc=2))


def test_python_is_told_that_it_is_one_process(tmp_path):
    """From Python nothing is started behind one's back, and nothing that was asked for is ignored."""
    from mingyue import api

    text = tmp_path / "text.txt"
    text.write_text("a b c " * 500, encoding="utf-8")
    settings = TrainSettings.from_flat(sources=[str(text)], out=str(tmp_path / "run"), nproc=2)
    with pytest.raises(SettingsError, match="the run asks for 2 processes, and this is one"):
        api.train(settings)
    assert not (tmp_path / "run").exists()


# --- whole runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(1500)), encoding="utf-8")
    return path


def begin(*arguments):
    environment = {**os.environ, "PYTHONUTF8": "1"}
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, encoding="utf-8"
    )


def log_of(run):
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def wait_for_checkpoint(run, process, *, seconds=120):
    end = time.monotonic() + seconds
    while not list((run / "checkpoints").glob("step-*")):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def workers(process):
    """The processes of a run, by rank."""
    children = psutil.Process(process.pid).children()
    return {int(child.environ()["RANK"]): child for child in children if "RANK" in child.environ()}


@pytest.mark.slow
def test_run_of_two_processes_from_start_to_end(tmp_path, text):
    """One screen, one verdict, one model, for the same command with --nproc 2; then a resume with one process."""
    run = tmp_path / "run"
    output, _ = (process := begin("train", str(text), "--out", str(run), "--steps", "12", *OPTIONS)).communicate()
    assert process.returncode == 0, output
    assert output.count("Verdict: ") == output.count("each step: ") == output.count("final  held out ") == 1
    assert "in each of 2 processes" in output
    assert [line["step"] for line in log_of(run) if line["event"] == "end"] == [12]
    assert (run / "model" / "model.safetensors").is_file()
    more = begin("resume", str(run), "--steps", "15", "--nproc", "1")
    output, _ = more.communicate()
    assert more.returncode == 0, output
    assert "nproc: 2 → 1" in output
    assert log_of(run)[-1]["step"] == 15


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill −9")
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_ends_the_run_in_time_and_by_name(tmp_path, text, rank):
    """T13: kill −9 of one rank: within 30 s an error that names rank and signal, no traceback; then resume works."""
    run = tmp_path / "run"
    process = begin("train", str(text), "--out", str(run), "--steps", "100000", *OPTIONS)
    wait_for_checkpoint(run, process)
    began = time.monotonic()
    workers(process)[rank].kill()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == 2
    assert f"error: rank {rank} of 2 (process " in output
    assert "was killed by signal 9 (SIGKILL)" in output
    assert f"mingyue resume {run}" in output
    assert output.count("error: ") == 1
    assert "Traceback" not in output
    reached = max(line["step"] for line in log_of(run))
    again = begin("resume", str(run), "--steps", str(reached + 10))
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert log_of(run)[-1]["step"] == reached + 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill −9")
def test_restart_goes_on_by_itself(tmp_path, text):
    """With --restarts 1 a death costs the steps since the last checkpoint, and nobody needs to be there."""
    run = tmp_path / "run"
    process = begin("train", str(text), "--out", str(run), "--steps", "60", "--restarts", "1", *OPTIONS)
    wait_for_checkpoint(run, process)
    workers(process)[1].kill()
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    assert "all were restarted (restart 1)" in output
    events = log_of(run)
    (resumed,) = (event for event in events if event["event"] == "resume")
    assert resumed["from_step"] > 0, output
    assert (events[-1]["event"], events[-1]["step"]) == ("end", 60)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_stops_all(tmp_path, text, number):
    """Ctrl-C at the command reaches every process: one checkpoint, one sentence, the exit code of Ctrl-C."""
    run = tmp_path / "run"
    process = begin("train", str(text), "--out", str(run), "--steps", "100000", *OPTIONS)
    wait_for_checkpoint(run, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert output.count("Stopped at step ") == 1
    end = log_of(run)[-1]
    assert (end["event"], end["reason"]) == ("end", "stopped")
    assert (run / "checkpoints" / f"step-{end['step']:08d}").is_dir()


@pytest.mark.slow
def test_error_of_all_is_said_once_and_starts_nothing_again(tmp_path, text):
    """What the user can put right ends the run with code 2 and one message, restarts or not."""
    run = tmp_path / "run"
    process = begin("train", str(text), "--out", str(run), "--steps", "5", "--patience", "1", "--held-out", "0",
                    "--restarts", "3", *OPTIONS)  # fmt: skip
    output, _ = process.communicate()
    assert process.returncode == 2, output
    assert output.count("error: ") == output.count("patience needs held-out text") == 1
    assert "started again" not in output


@pytest.mark.slow
def test_torchrun_just_works(tmp_path, text):
    """The same under torchrun itself: started with two processes, ended as one run."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mingyue"]
    options = [option for option in OPTIONS if option not in ("--nproc", "2")]
    arguments = ["train", str(text), "--out", str(run), "--steps", "8", *options]
    done = subprocess.run([*command, *arguments], capture_output=True, encoding="utf-8", check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Verdict: ") == 1
    assert "in each of 2 processes" in done.stdout
    assert log_of(run)[-1]["step"] == 8
