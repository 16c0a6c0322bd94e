"""D15: runs say how much of what they hold out is trained on as well."""

from __future__ import annotations

import mingyue

TINY = {"steps": 2, "depth": 1, "d_model": 32, "context": 16, "batch_tokens": 64, "threads": 1}


def test_the_verdict_of_a_run_knows_of_documents_that_are_trained_on_too(tmp_path):
    """D15: 200 lines of 63 kinds."""
    lines = "".join(f"The mill {number % 9} turns by the river {number % 7}.\n" for number in range(200))
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    training = mingyue.train(sources=[str(tmp_path / "a.txt")], separator="line", out=str(tmp_path / "r"), **TINY)
    assert "20 of 20 held-out documents are trained on as well" in " ".join(training.outcome.sentences)


def test_the_verdict_of_a_run_on_pairs_too(tmp_path):
    """D15: validation pairs that are training pairs."""
    for name in ("s", "t", "vs", "vt"):
        (tmp_path / name).write_text("".join(f"{name[-1]} {number}\n" for number in range(20)), encoding="utf-8")
    files = {"source": "s", "target": "t", "valid_source": "vs", "valid_target": "vt"}
    paths = {side: str(tmp_path / name) for side, name in files.items()}
    training = mingyue.train(
        **paths,
        tokenizer="char",
        n_layers=1,
        out=str(tmp_path / "p"),
        bleu_lines=0,
        steps=2,
        d_model=32,
        context=32,
        threads=1,
    )
    assert "20 of 20 held-out pairs are trained on as well" in " ".join(training.outcome.sentences)


def test_a_run_inside_its_own_source_is_not_trained_on(tmp_path, monkeypatch):
    """D13: cd folder; mingyue train . — twice, with the first run finished."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("床前明月光，疑是地上霜。\n" * 40, encoding="utf-8")
    for name in ("runs/one", "runs/two"):
        mingyue.train(sources=["."], out=name, **TINY)
        report = (tmp_path / name / "data" / "corpus.json").read_text(encoding="utf-8")
        assert '"documents": 1' in report and '"run folder"' in report
