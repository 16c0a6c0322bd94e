"""JSON and TOML of a run and a model, replaced with hostile content: an error with the file's name, never a fault."""

from __future__ import annotations

import json
import shutil

import pytest

from mingyue.cli import main

DEEP = 100_000
TINY = "--depth 1 --d-model 32 --context 16 --batch-tokens 64 --threads 1 --tokenizer byte --sample-every 0"
HOSTILE = {
    "lists 100,000 deep": "[" * DEEP + "]" * DEEP,
    "objects 100,000 deep": '{"a":' * DEEP + "1" + "}" * DEEP,
    "an integer of 5,000 digits": f'{{"format": {"9" * 5_000}}}',
    "null": "null",
    "a list": "[]",
    "not UTF-8": b"\xff\xfe{}",
    "nothing": "",
}
READ_BY = {
    "model/config.json": "info",
    "model/training.json": "info",
    "model/tokenizer.json": "info",
    "run.toml": "resume",
}
"""Files without which the command cannot go on, and a command that reads them."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    text = "".join(f"The mill {i % 9} turns by the river {i % 7}.\n" for i in range(60))
    (folder / "a.txt").write_text(text, encoding="utf-8")
    assert main(["train", str(folder / "a.txt"), "--out", str(folder / "run"), "--steps", "4", *TINY.split()]) == 0
    return folder / "run"


@pytest.fixture
def run_copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def put(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.parametrize("name", READ_BY)
def test_a_hostile_file_is_refused_by_name(run_copy, capsys, name, how):
    """Deep nesting, huge integers and other types are errors of the file."""
    put(run_copy / name, HOSTILE[how])
    code = main([READ_BY[name], str(run_copy)])
    said = capsys.readouterr().err.replace("\n", "")
    assert code == 2, said
    assert name.rpartition("/")[2] in said


@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.parametrize(
    "name", ["plan.json", "metrics.jsonl", "data/corpus.json", "checkpoints/step-00000004/state.json"]
)
def test_a_hostile_file_of_a_run_to_resume_is_repaired_or_refused(run_copy, capsys, name, how):
    """What a resume can do without is set aside and reported; what it cannot is an error."""
    put(run_copy / name, HOSTILE[how])
    code = main(["resume", str(run_copy), "--steps", "6", "--threads", "1"])
    assert code in (0, 2), capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"model": None}),
        ("config.json", {"model": []}),
        ("config.json", {"format": True}),
        ("config.json", {"format": "1"}),
        ("training.json", {"starts_with_bos": "no"}),
        ("training.json", {"starts_with_bos": 1}),
        ("training.json", {"begin_id": "5"}),
        ("training.json", {"unseen": "5-9"}),
        ("training.json", {"unseen": [["a", "b"]]}),
        ("training.json", {"checksums": []}),
        ("training.json", {"checksums": {"config.json": 5}}),
    ],
)
def test_a_value_of_another_type_is_refused(run_copy, capsys, name, change):
    """The word "no" where true or false belongs is not true."""
    path = run_copy / "model" / name
    training = run_copy / "model" / "training.json"
    put(path, json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}))
    if name != "training.json":
        put(training, json.dumps({**json.loads(training.read_text(encoding="utf-8")), "checksums": {}}))
    code = main(["generate", str(run_copy), "--max-new-tokens", "1"])
    said = capsys.readouterr().err
    assert (code, name in said) == (2, True), said


@pytest.mark.parametrize(
    "change", [{"step": "4"}, {"seconds": None}, {"event": 5}, {"reason": 5}, {"tokens": 10**30}, {"step": True}]
)
def test_a_line_of_the_log_with_other_types_is_a_damaged_line(run_copy, capsys, change):
    path = run_copy / "metrics.jsonl"
    *lines, last = path.read_text(encoding="utf-8").splitlines()
    put(path, "\n".join([*lines, json.dumps({**json.loads(last), **change})]) + "\n")
    assert main(["resume", str(run_copy), "--steps", "5", "--threads", "1"]) == 0, capsys.readouterr().err
