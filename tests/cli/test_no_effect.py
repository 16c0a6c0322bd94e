"""Options without effect are refused before any work. (All of `mingyue train`: tests/config/test_effect.py.)"""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("translate x --text a --temperature 0.5", "temperature"),
        ("translate x --text a --top-k 3", "top_k"),
        ("translate x --text a --top-p 0.5", "top_p"),
        ("translate x --text a --seed 5", "seed"),
        ("translate x --text a --sample --beam 8", "beam"),
        ("translate x --text a --sample --length-penalty 1", "length_penalty"),
        ("translate x --text a --encoding gbk", "--encoding"),
        ("evaluate x --source s --target t --seed 5", "seed"),
        ("evaluate x --source s --target t --sample --beam 8", "beam"),
        ("evaluate x --source s --target t --source-field en", "--source-field"),
        ("evaluate x --source s --target t --target-field de", "--target-field"),
        ("train a.txt --tokenizer-size 1000", "--tokenizer-size"),
        ("train a.txt --tokenizer bpe --min-count 3", "--min-count"),
        ("train a.txt --positions learned --rotary-base 500", "--rotary-base"),
        ("train a.txt --preset gpt2 --rotary-base 500", "--rotary-base"),
        ("train a.txt --optimiser adamw --muon-learning-rate 0.1", "--muon-learning-rate"),
        ("train a.txt --schedule cosine --decay-share 0.3", "--decay-share"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(run, tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a b\n" * 100, encoding="utf-8")
    code, _, err = run(*command.split())
    assert code == 2
    assert name in err
    assert "effect" in err
