"""What a run stands on: chosen once, told, and never silently other than asked."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mingyue.errors import SettingsError
from mingyue.runtime import (
    Processes,
    Runtime,
    available_cores,
    choose_runtime,
    derive_seed,
    processes,
    seconds_since_process_start,
)


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_cpu_in_fp32_with_the_threads_asked_for():
    runtime = choose_runtime("cpu", "fp32", 1)
    assert (runtime.device, runtime.dtype, runtime.threads, runtime.notes) == (
        torch.device("cpu"), torch.float32, 1, (),
    )  # fmt: skip
    with runtime.applied():
        assert torch.get_num_threads() == 1
    assert runtime.describe() == "cpu, float32, 1 thread"
    assert runtime.describe().zh == "cpu，float32，1 个线程"
    assert runtime.describe(measured=False) == "cpu, float32, threads to be measured"
    assert runtime.describe(measured=False).zh == "cpu，float32，线程数待测"


@pytest.mark.parametrize("threads", [0, -3])
def test_less_than_one_thread_is_refused(threads):
    with pytest.raises(SettingsError, match=f"threads = {threads}: Input should be greater than or equal to 1"):
        choose_runtime("cpu", threads=threads)


def test_threads_default_to_the_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert choose_runtime("cpu").threads == available_cores() >= 1


@pytest.mark.parametrize(
    ("given", "expected"), [("3", 3), ("3,1", 3), ("1", 1), ("0", 7), ("", 7), ("many", 7), ("-2", 7), ("1.5", 7)]
)
def test_omp_num_threads_is_the_default_and_an_argument_overrides_it(monkeypatch, given, expected):
    """T22: what is no number of threads is ignored, as OpenMP ignores it."""
    monkeypatch.setattr("mingyue.runtime.available_cores", lambda: 7)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert choose_runtime("cpu").threads == expected
    assert choose_runtime("cpu", threads=2).threads == 2


def test_the_single_thread_that_torchrun_sets_for_its_processes_is_not_taken_for_a_choice(monkeypatch):
    monkeypatch.setattr("mingyue.runtime.available_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    set_launch(monkeypatch, RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2, TORCHELASTIC_RUN_ID="x")
    assert choose_runtime("cpu").threads == 4
    monkeypatch.setenv("MINGYUE_LAUNCH", "folder")  # our own launcher leaves the variable as the user has it
    assert choose_runtime("cpu").threads == 1


@pytest.mark.parametrize("fails", [False, True])
def test_an_applied_runtime_changes_the_process_within_its_block_only(fails):
    """T22: thread count and denormals, on every thread of PyTorch, are the caller's again, also after an error."""
    code = f"""
import contextlib, torch
from mingyue.runtime import choose_runtime

def kept():  # share of denormal numbers that PyTorch does not take for 0, over all of its threads
    return float((torch.full((1 << 20,), 1e-40) * 1.0).count_nonzero()) / (1 << 20)

torch.set_num_threads(3)
print(kept(), 5e-324 > 0)
with contextlib.suppress(KeyError), choose_runtime("cpu", None, 2).applied():
    print(torch.get_num_threads(), kept(), 5e-324 > 0)
    with choose_runtime("cpu", None, 1).applied():
        print(torch.get_num_threads(), kept())
    print(torch.get_num_threads(), kept())
    if {fails}:
        raise KeyError
print(torch.get_num_threads(), kept(), 5e-324 > 0)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["1.0 True", "2 0.0 False", "1 0.0", "2 0.0", "3 1.0 True"]


@pytest.mark.parametrize("asked", ["bf16", "fp16"])
def test_a_number_format_that_the_device_is_not_fast_in_falls_back_and_says_so(asked):
    """T9: 16 bits asked on a CPU gives fp32 and a note that names both."""
    runtime = choose_runtime("cpu", asked, 1)
    assert runtime.dtype is torch.float32
    (note,) = runtime.notes
    assert asked in note
    assert "fp32" in note
    with runtime.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_bf16_is_chosen_and_kept_on_a_device_that_is_fast_in_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for asked in (None, "bf16"):
        runtime = choose_runtime(None, asked, 1)
        assert (runtime.device.type, runtime.dtype, runtime.notes) == ("cuda", torch.bfloat16, ())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert choose_runtime("cuda", None, 1).dtype is torch.float32
    runtime = choose_runtime("cuda", "bf16", 1)
    assert runtime.dtype is torch.float32
    assert len(runtime.notes) == 1


def test_autocast_is_on_in_16_bits():
    with Runtime(torch.device("cpu"), torch.bfloat16, 1).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match="device 'cuda:1' is not available here"):
        choose_runtime("cuda:1")
    with pytest.raises(SettingsError, match="device 'gpu' is not a device name"):
        choose_runtime("gpu")
    with pytest.raises(SettingsError, match="device 'meta' is not available here"):
        choose_runtime("meta")


def test_the_best_device_that_is_there_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for mps, expected in ((True, "mps"), (False, "cpu")):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert choose_runtime(threads=1).device.type == expected


@given(st.integers(0, 2**40), st.lists(st.integers(0, 2**20) | st.sampled_from(["order", "dropout"]), max_size=4))
def test_a_seed_is_a_pure_function_of_its_parts_and_fits_63_bits(seed, parts):
    found = derive_seed(seed, *parts)
    assert found == derive_seed(seed, *parts)
    assert 0 <= found < 2**63
    assert derive_seed(seed, *parts, 0) != found
    assert derive_seed(seed + 1, *parts) != found


def test_parts_of_a_seed_do_not_run_into_each_other_and_stay_the_same_for_ever():
    """Recorded runs rely on the value."""
    assert len({derive_seed(1, 2, 3), derive_seed(1, 23), derive_seed(12, 3), derive_seed(1, 3, 2)}) == 4
    assert derive_seed(1, "order", 0) == 316895810261109963


def test_seconds_since_the_process_started_count_imports_too():
    code = "import time; time.sleep(0.3); from mingyue.runtime import *; print(seconds_since_process_start())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0.25 < float(found) < 60
    assert seconds_since_process_start() > 0


def test_importing_the_runtime_imports_no_torch_and_changes_nothing():
    code = "import sys, mingyue.runtime; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_numbers_that_fade_away_count_as_nothing_on_every_thread():
    """CPUs are many times slower in numbers below 1e-38, where the momentum of a dead unit ends after 2,000 steps."""
    code = (
        "import torch; from mingyue.runtime import choose_runtime; fading = torch.full((1 << 20,), 1.5e-38)\n"
        "with choose_runtime('cpu', None, 2).applied():\n"
        "  print(int((fading * 0.25).count_nonzero()), int((fading * 1.0).count_nonzero()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", str(1 << 20)]


def set_launch(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_processes_are_what_torchrun_says(monkeypatch):
    """Nothing in the environment is a run of one process; else rank, size, place on the machine, restarts, launch."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert processes() == Processes()
    set_launch(monkeypatch, RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4)
    set_launch(monkeypatch, TORCHELASTIC_RESTART_COUNT=2, TORCHELASTIC_RUN_ID="x")
    assert processes() == Processes(5, 8, 1, 4, 2, "x")


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), ("one", 2)])
def test_processes_that_cannot_be_are_refused(monkeypatch, rank, size):
    set_launch(monkeypatch, RANK=rank, WORLD_SIZE=size)
    with pytest.raises(SettingsError, match=f"RANK={rank}, WORLD_SIZE={size}"):
        processes()


def test_each_process_of_a_machine_takes_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr("mingyue.runtime.available_cores", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    set_launch(monkeypatch, RANK=1, WORLD_SIZE=6, LOCAL_RANK=1, LOCAL_WORLD_SIZE=3)
    runtime = choose_runtime("cpu")
    assert (runtime.threads, runtime.rank, runtime.world_size) == (2, 1, 6)
    assert "2 threads in each of 6 processes" in runtime.describe()
    assert runtime.describe().zh == "cpu，float32，2 个线程（6 个进程各自）"
    assert choose_runtime("cpu", threads=5).threads == 5


def test_each_process_of_a_machine_takes_the_gpu_of_its_number(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    set_launch(monkeypatch, RANK=3, WORLD_SIZE=4, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)
    assert choose_runtime().device == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]
    with pytest.raises(SettingsError, match="cuda:0 is one GPU, and this run has 4 processes"):
        choose_runtime("cuda:0")
    set_launch(monkeypatch, LOCAL_WORLD_SIZE=3)
    with pytest.raises(SettingsError, match="3 processes on this machine need a GPU each, and it has 2"):
        choose_runtime("cuda")


def test_a_run_does_not_load_the_compiler_or_the_parts_for_many_ranks() -> None:
    """They take two seconds of imports; what a run on one process needs is loaded and no more."""
    program = """
import sys
import mingyue.api.run, mingyue.training
from mingyue.config import OptimiserSettings
from mingyue.models import build_model, resolve_config
from mingyue.config import ModelSettings
from mingyue.training.optimisers import Optimisers, Rates
model = build_model(resolve_config(ModelSettings(), vocab_size=9, depth=1, context=8), seed=1)
Optimisers(model, OptimiserSettings(), Rates(0.1, 0.1)).zero_grad()
heavy = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.tensor", "transformers")
print(*(name for name in heavy if name in sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not found.stdout.split()
