"""The verbs with real models: what goes in, what is printed where, and the exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mingyue
from mingyue.bundle import save_bundle
from mingyue.config import ModelConfig
from mingyue.models import build_model
from mingyue.text import byte_tokenizer

POEM = "床前明月光，疑是地上霜。"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A model folder: bytes, a context of 24, weights never trained."""
    tokenizer = byte_tokenizer()
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context=24, d_model=16, n_layers=1, n_heads=2, n_kv_heads=2, d_head=8, d_ff=16
    )
    folder = tmp_path_factory.mktemp("model") / "model"
    weights = build_model(config, seed=3).state_dict()
    save_bundle(folder, config, weights, tokenizer, {"starts_with_bos": False, "steps": 0})
    return str(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run folder that `mingyue train` made, in a process of its own, off a terminal."""
    place = tmp_path_factory.mktemp("run")
    (place / "poems.txt").write_text(f"{POEM}\n" * 60, encoding="utf-8")
    command = [
        sys.executable, "-m", "mingyue", "train", "poems.txt", "--steps", "6", "--depth", "1", "--d-model", "16",
        "--context", "16", "--batch-tokens", "32", "--threads", "1", "--evaluate-every", "3", "--sample-every", "1",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=place, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8")
    (place / "screen.txt").write_bytes(done.stdout)
    assert done.stderr == b""
    return place


# --- train and resume -------------------------------------------------------------------------------------------------


def test_training_off_a_terminal_prints_plain_lines(trained):
    screen = (trained / "screen.txt").read_bytes()
    assert b"\x1b" not in screen
    lines = screen.decode("utf-8").splitlines()
    for beginning in (
        "read 1 file",
        "model: ",
        "to beat",
        "step 3 ",
        "step 6 ",
        "sample at step 3",
        "final ",
        "Verdict: ",
    ):
        assert any(line.startswith(beginning) for line in lines), beginning
    assert lines[-1] == f"The model is in {Path('runs') / 'poems' / 'model'}. Generate: " + (
        f"mingyue generate {Path('runs') / 'poems'}"
    )


def test_a_run_that_is_there_is_not_overwritten(run, trained, monkeypatch):
    monkeypatch.chdir(trained)
    code, _, err = run("train", "poems.txt", "--steps", "1")
    assert code == 2
    assert "already holds a run" in err
    assert "mingyue resume" in err


def test_resume_goes_on_and_tells_what_changed(run, trained, monkeypatch):
    monkeypatch.chdir(trained)
    code, out, err = run("resume", str(Path("runs") / "poems"), "--steps", "8", "--learning-rate", "0.001")
    assert code == 0, err
    assert "learning_rate: " in out
    assert "step 8 " in out


def test_resume_refuses_aloud_what_it_cannot_follow(run, trained):
    """T1: a changed setting wins and is said, or is refused; never ignored."""
    code, _, err = run("resume", str(trained / "runs" / "poems"), "--d-model", "32")
    assert code == 2
    assert "d_model" in err


def test_a_stopped_run_is_saved_and_its_exit_code_is_that_of_ctrl_c(run, api, ended):
    api.resume = lambda *args, **kwargs: ended("stopped")
    code, out, _ = run("resume", "runs/x")
    assert code == 130
    assert out == f"Stopped at step 7, and saved. Resume with: mingyue resume {Path('runs') / 'x'}\n"


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX pipe")
def test_a_run_outlives_the_reader_of_its_output(tmp_path):
    (tmp_path / "poems.txt").write_text(f"{POEM}\n" * 60, encoding="utf-8")
    command = [
        sys.executable, "-m", "mingyue", "train", "poems.txt", "--steps", "4", "--depth", "1", "--d-model", "16",
        "--context", "16", "--batch-tokens", "32", "--threads", "1",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) in (0, 141)
    assert errors == b""
    assert mingyue.load(tmp_path / "runs" / "poems" / "model").training["steps"] == 4


# --- generate ---------------------------------------------------------------------------------------------------------


def test_streamed_or_not_the_same_text_is_printed(run, model):
    arguments = ("generate", model, "--prompt", "床前", "--max-new-tokens", "20", "--seed", "5")
    streamed, whole = run(*arguments), run(*arguments, "--no-stream")
    assert streamed[0] == whole[0] == 0
    assert streamed[1] == whole[1]
    written = mingyue.load(model).generate("床前", max_new_tokens=20, seed=5)[0].text
    assert streamed[1] == f"床前{written}\n"


def test_json_is_one_object_a_line_for_each_text_in_order(run, model):
    arguments = ("--prompt", "a", "--prompt", "b", "--samples", "2", "--max-new-tokens", "3", "--logprobs", "--json")
    code, out, _ = run("generate", model, *arguments)
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["prompt"], one["sample"]) for one in found] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for one in found:
        assert len(one["logprobs"]) == len(one["ids"]) == 3
        assert all(value <= 0 for value in one["logprobs"])


def test_several_texts_are_told_apart(run, model):
    _, out, _ = run("generate", model, "--samples", "2", "--max-new-tokens", "2")
    assert out.startswith("--- 1 of 2 ---\n")
    assert "\n--- 2 of 2 ---\n" in out


def test_log_probabilities_are_shown_with_their_tokens(run, model):
    """V5: as −log P, which the heading says, with the sign of `score` and of every view."""
    arguments = ("--prompt", "a", "--max-new-tokens", "2", "--logprobs")
    _, out, _ = run("generate", model, *arguments)
    result = mingyue.load(model).generate("a", max_new_tokens=2, logprobs=True)[0]
    assert result.logprobs is not None
    for value in result.logprobs:
        assert f" {-value:.4f}" in out
    assert "−log P, nats" in out
    assert "−log P, nats" in run("score", model, "--text", "ab")[1]


def test_a_prompt_may_come_from_a_file_or_standard_input(run, model, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text("床前\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("床前\n".encode()), encoding="ascii"))
    arguments = ("generate", model, "--max-new-tokens", "0")
    assert run(*arguments, "--prompt", "-")[:2] == (0, "床前\n")
    assert run(*arguments, "--prompt-file", str(tmp_path / "prompt.txt"))[:2] == (0, "床前\n")


def test_no_prompt_and_no_new_tokens_work(run, model):
    """S12: an empty prompt; 0 new tokens."""
    assert run("generate", model, "--max-new-tokens", "0")[:2] == (0, "\n")
    assert run("generate", model, "--prompt", "a", "--max-new-tokens", "0")[:2] == (0, "a\n")


def test_a_stop_text_may_be_a_line_end(run, model):
    arguments = ("generate", model, "--seed", "6", "--max-new-tokens", "250")
    assert run(*arguments)[1].count("\n") > 1
    assert run(*arguments, "--stop", "\\n")[1].count("\n") == 1


def test_a_prompt_past_the_context_is_said_beside_the_text_not_in_it(run, model):
    """S6: a documented crop with a warning; writing past the window works."""
    code, out, err = run("generate", model, "--prompt", "a" * 50, "--max-new-tokens", "30")
    assert code == 0
    assert "context of 24" in err
    assert "context" not in out


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
@pytest.mark.parametrize(("verb", "option"), [("generate", "--prompt"), ("score", "--text")])
def test_a_text_that_the_terminal_lacks_characters_for_is_still_printed(model, monkeypatch, encoding, verb, option):
    """D5: the encoding of the platform never ends the program."""
    from mingyue.cli import main

    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    screens = {name: Terminal(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
    for name, screen in screens.items():
        monkeypatch.setattr(sys, name, screen)
    assert main([verb, model, option, "床é😀"]) == 0
    for screen in screens.values():
        screen.flush()
    shown = screens["stdout"].buffer.getvalue()
    expected = "床é😀" if verb == "generate" else "perplexity"
    assert expected.encode(encoding, "replace") in shown
    assert b"error" not in screens["stderr"].buffer.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX pipe")
def test_writing_into_a_closed_pipe_ends_quietly(model):
    command = [sys.executable, "-m", "mingyue", "generate", model, "--max-new-tokens", "2000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read().count(b"Traceback") == 0
    assert process.wait(timeout=60) == 141


# --- score, info, doctor, data ----------------------------------------------------------------------------------------


def test_score_prints_each_token_and_what_they_come_to(run, model):
    code, out, _ = run("score", model, "--text", "ab\n")
    result = mingyue.load(model).score("ab\n")
    assert code == 0
    for one in result.tokens[1:]:
        assert one.logprob is not None
        assert f"{-one.logprob:.4f}" in out
    for value in (-result.total, result.perplexity, result.bits_per_byte):
        assert f"{value:,.4f}" in out
    assert "windows" not in out


def test_the_stride_over_a_long_text_is_stated(run, model):
    _, out, _ = run("score", model, "--text", "a" * 60, "--stride", "7", "--no-tokens")
    assert "tokens, stride 7" in out
    assert "−log P, nats" not in out


def test_score_as_json_names_where_each_text_came_from(run, model, tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text(POEM, encoding="utf-8")
    code, out, _ = run("score", model, "--text", POEM, "--file", str(path), "--json")
    assert code == 0
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["source"] is None
    assert second["source"] == str(path)
    assert first["total"] == second["total"] == pytest.approx(mingyue.load(model).score(POEM).total)


def test_scoring_nothing_says_what_to_give(run, model):
    code, _, err = run("score", model)
    assert code == 2
    assert "--text" in err


def test_info_counts_what_the_module_holds(run, model):
    total = sum(weight.numel() for weight in mingyue.load(model).module.parameters())
    code, out, _ = run("info", model)
    assert code == 0
    assert f"{total:,}" in out
    for word in ("embedding", "FLOPs per token", "vocab_size", "rotary"):
        assert word in out
    assert json.loads(run("info", model, "--json")[1])["parameters"]["total"] == total


@pytest.mark.parametrize("verb", ["info", "generate", "score"])
def test_a_folder_that_is_not_a_model_is_said_to_be_none(run, tmp_path, verb):
    arguments = ("--text", "a") if verb == "score" else ()
    code, out, err = run(verb, str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert str(tmp_path) in err


def test_doctor_finds_this_machine_fit_and_exits_0(run):
    code, out, _ = run("doctor")
    assert code == 0
    for topic in ("python", "torch", "cores", "GFLOP/s", "memory", "disk", "data folder", "extra: hf"):
        assert topic in out


def test_doctor_lists_warnings_and_still_exits_0(run, monkeypatch):
    import mingyue.diagnostics as diagnostics

    monkeypatch.setattr(diagnostics, "_LOW_MEMORY", float("inf"))
    code, out, err = run("doctor", "--json")
    assert code == 0
    report = json.loads(out)
    assert any("memory" in warning for warning in report["warnings"])
    assert err == ""
    assert "note: Only" in run("doctor")[2]


def test_data_list_names_the_known_corpora(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MINGYUE_DATA", str(tmp_path))
    code, out, _ = run("data", "list")
    assert code == 0
    for name in ("python-docs", "tang", "shakespeare", "multi30k"):
        assert name in out
    assert {one["name"] for one in json.loads(run("data", "list", "--json")[1])} >= {"python-docs", "tang"}


def test_data_get_prints_the_path_and_nothing_else(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MINGYUE_DATA", str(tmp_path / "known"))
    code, out, _ = run("data", "get", "python-docs")
    assert code == 0
    assert Path(out.strip()).is_file()
    code, out, _ = run("data", "get", "python-docs", "--out", str(tmp_path / "here"))
    assert Path(out.strip()).parent == tmp_path / "here"


def test_an_unknown_corpus_is_answered_with_the_nearest_name(run):
    code, _, err = run("data", "get", "shakespear")
    assert code == 2
    assert "shakespeare" in err
