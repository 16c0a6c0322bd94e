"""lm-evaluation-harness over HTTP finds the log-probabilities that `score` finds (complaint: it finds chance)."""

from __future__ import annotations

import json

import pytest

from mingyue import api
from mingyue.scoring.likelihood import token_logprobs

pytest.importorskip("lm_eval")

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{context}"
doc_to_target: "{target}"
{choices}
metric_list: [{metric}]
"""
DOCUMENTS = [
    {"context": "床前明月", "answer": "光", "choices": ["光", "霜", "明月光"], "text": "床前明月光，疑是地上霜。"},
    {
        "context": "举头望",
        "answer": "明月",
        "choices": ["明月", "故乡", "the fox"],
        "text": "举头望明月，低头思故乡。" * 12,
    },
    {"context": "the quick", "answer": "fox", "choices": ["fox", "dog", "月"], "text": "the quick brown fox " * 2},
]


@pytest.fixture
def harness(server, tmp_path, monkeypatch):
    """`harness(kind, …)`: the samples of a task of that kind, with the answers of the server."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in DOCUMENTS), encoding="utf-8")

    def run(kind, name, *, ids=True, **fields):
        fields = {"choices": "", **fields}
        tasks = tmp_path / "tasks"
        tasks.mkdir(exist_ok=True)
        (tasks / f"{kind}.yaml").write_text(TASK.format(name=kind, kind=kind, data=data, **fields), encoding="utf-8")
        model = f"model={name},base_url={server.url}/v1/completions,tokenizer_backend=remote,tokenized_requests={ids}"
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=f"{model},num_concurrent=1,max_length=64,max_retries=1",
            tasks=[kind],
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            bootstrap_iters=0,
            log_samples=True,
        )
        return sorted(found["samples"][kind], key=lambda one: one["doc_id"])

    return run


def logprob(model, text: str, after: str) -> float:
    """log P of the end of `text` after its beginning `after`."""
    tokens = model.score(text).tokens[len(model.tokenizer.encode(after)) :]
    return sum(one.logprob for one in tokens)


@pytest.mark.parametrize(("name", "ids"), [("plain", True), ("plain", False), ("begun", False)])
def test_the_choices_of_a_task(harness, folders, name, ids):
    """Ids are read as they are, so a BOS token precedes them only where the harness adds it; it precedes every text."""
    model = api.load(folders[name], device="cpu", threads=1)
    choices = 'doc_to_choice: "{{choices}}"'
    samples = harness(
        "multiple_choice", name, ids=ids, context="{{context}}", target="0", choices=choices, metric="{metric: acc}"
    )
    for document, sample in zip(DOCUMENTS, samples, strict=True):
        context = document["context"]
        expected = [logprob(model, f"{context} {choice}", context) for choice in document["choices"]]
        assert [response[0] for response in sample["filtered_resps"]] == pytest.approx(expected, abs=1e-4)


def test_rolling(harness, folders):
    model = api.load(folders["begun"], device="cpu", threads=1)
    samples = harness(
        "loglikelihood_rolling", "begun", context="", target="{{text}}", metric="{metric: word_perplexity}"
    )
    for document, sample in zip(DOCUMENTS, samples, strict=True):
        assert sample["filtered_resps"] == pytest.approx([rolling(model, document["text"])], abs=1e-4)


def rolling(model, text: str) -> float:
    """log P of a text in the windows of the harness: 62 new tokens each, after as much as fits before them."""
    ids = model.tokenizer.encode(text)
    first = model.score(text[:62]).total
    if len(ids) <= 62:
        return first
    assert len(text) == len(ids)
    total = first
    for start in range(62, len(ids), 62):
        end = min(start + 62, len(ids))
        window = [1, *ids][end - 62 : end + 1]
        total += sum(token_logprobs(model.module, window, stride=64)[-(end - start) :])
    return total
