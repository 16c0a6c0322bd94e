"""`mingyue evaluate` with real models: what is measured, on which lines, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import mingyue
from mingyue.bundle import save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models import build_model
from mingyue.text import byte_tokenizer

SOURCES = ["one two", "", "a longer line of it", "x"]
FEW = ("--beam", "2", "--extra-tokens", "3")

needs_sacrebleu = pytest.mark.skipif(
    importlib.util.find_spec("sacrebleu") is None, reason="extra `translate` is not installed"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A model folder: bytes, a context of 24, weights never trained."""
    words = byte_tokenizer()
    config = EncoderDecoderConfig(
        vocab_size=words.vocab_size, context=24, d_model=16, n_layers=1, n_encoder_layers=1,
        n_heads=2, n_kv_heads=2, d_head=8, d_ff=16,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("pairs") / "model"
    weights = {name: 4 * value for name, value in build_model(config, seed=3).state_dict().items()}
    save_bundle(folder, config, weights, words, {"steps": 0})
    return str(folder)


@pytest.fixture(scope="module")
def references(model) -> list[str]:
    found = mingyue.load_translator(model).translate(SOURCES, beam=2, extra_tokens=3)
    return [mingyue.api.one_line(one[0].text) for one in found]


@pytest.fixture
def files(tmp_path):
    """Write lines into files; gives the options that name them."""

    def make(sources: list[str], targets: list[str]) -> tuple[str, ...]:
        for name, lines in (("test.en", sources), ("test.de", targets)):
            (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
        return "--source", str(tmp_path / "test.en"), "--target", str(tmp_path / "test.de")

    return make


@needs_sacrebleu
def test_the_models_own_translations_are_all_exact(run, model, references, files):
    code, out, _ = run("evaluate", model, *files(SOURCES, references), *FEW)
    assert code == 0
    for word in ("BLEU", "chrF", "100.00%", "4 of 4", "tok:13a", "loss", "perplexity", "lines/s"):
        assert word in out


@needs_sacrebleu
def test_json_holds_every_measure_and_its_signature(run, model, references, files):
    wrong = [*references[:-1], "never"]
    code, out, _ = run("evaluate", model, *files(SOURCES, wrong), *FEW, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["exact"] == 0.75
    assert found["lines"] == 4
    assert "version:" in found["bleu_signature"]
    expected = mingyue.load_translator(model).evaluate(SOURCES, wrong, beam=2, extra_tokens=3)
    assert found["loss"] == pytest.approx(expected.loss)
    assert found["chrf"] == pytest.approx(expected.scores.chrf)


@needs_sacrebleu
def test_the_translations_can_be_kept_line_for_line(run, model, references, files, tmp_path):
    """An empty source line has an empty translation: nothing after it moves."""
    options = files(SOURCES, ["r"] * len(SOURCES))
    code, _, err = run("evaluate", model, *options, *FEW, "--output", str(tmp_path / "out.txt"))
    assert code == 0
    assert (tmp_path / "out.txt").read_bytes().decode("utf-8").split("\n") == [*references, ""]
    assert references[1] == ""
    assert "1 with an empty side" in err


@needs_sacrebleu
def test_the_target_language_says_what_words_are(run, model, files):
    options = files(["a"], ["一二三四五"])
    for more, signature in (((), "tok:zh"), (("--target-language", "de"), "tok:13a")):
        found = json.loads(run("evaluate", model, *options, *FEW, *more, "--json")[1])
        assert signature in found["bleu_signature"]


@needs_sacrebleu
@pytest.mark.parametrize("form", ["columns", "named columns", "JSON"])
def test_a_test_set_may_be_records(run, model, references, tmp_path, form):
    both = [(SOURCES[number], references[number]) for number in (0, 2)]
    name, options = "test.tsv", ()
    if form == "columns":
        lines = ["\t".join(pair) for pair in both]
    elif form == "named columns":
        lines = ["de\ten", *(f"{target}\t{source}" for source, target in both)]
        options = ("--source-field", "en", "--target-field", "de")
    else:
        name, lines = "test.jsonl", [json.dumps({"source": source, "target": target}) for source, target in both]
    path = tmp_path / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    code, out, err = run("evaluate", model, "--pairs", str(path), *options, *FEW, "--json")
    assert code == 0, err
    assert (json.loads(out)["lines"], json.loads(out)["exact"]) == (2, 1.0)


@pytest.mark.parametrize(("n_sources", "n_targets", "longer"), [(3, 2, "test.en"), (1, 4, "test.de")])
def test_unequal_files_are_refused_with_both_counts_and_the_first_bad_line(
    run, model, files, n_sources, n_targets, longer
):
    """D6: refused."""
    code, out, err = run("evaluate", model, *files(["a"] * n_sources, ["b"] * n_targets))
    assert (code, out) == (2, "")
    text = " ".join(err.split())
    assert f"test.en has {n_sources} lines and" in text
    assert f"test.de has {n_targets}: line {min(n_sources, n_targets) + 1} of" in text
    assert f"{longer} has no partner" in text


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ((), "--source and --target"),
        (("--source", "a"), "--source and --target"),
        (("--pairs", "a", "--target", "b"), "one way"),
        (("--source", "-", "--target", "-"), "only once"),
    ],
)
def test_a_test_set_that_is_not_named_whole_is_refused(run, model, options, word):
    code, _, err = run("evaluate", model, *options)
    assert code == 2
    assert word in err


def test_a_missing_extra_is_named(run, model, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    code, _, err = run("evaluate", model, *files(["a"], ["b"]))
    assert code == 2
    assert "mingyue[translate]" in err


def test_a_model_of_one_text_is_sent_to_score(run, files, tmp_path):
    words = byte_tokenizer()
    small = ModelConfig(
        vocab_size=words.vocab_size, context=8, d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_head=8, d_ff=8
    )
    folder: Path = tmp_path / "model"
    save_bundle(folder, small, build_model(small, seed=1).state_dict(), words, {})
    code, out, err = run("evaluate", str(folder), *files(["a"], ["b"]))
    assert (code, out) == (2, "")
    assert "mingyue score" in err


def test_no_file_of_the_test_set_is_written_over(run, model, files):
    named = files(["one"], ["eins"])
    for name in (named[1], named[3]):
        before = Path(name).read_bytes()
        code, _, err = run("evaluate", model, *named, "--output", name)
        assert code == 2
        assert "would be lost" in err
        assert Path(name).read_bytes() == before


def test_a_broken_record_is_told_without_options_that_are_not_there(run, model, tmp_path):
    """D7: `evaluate` leaves no record out."""
    (tmp_path / "test.jsonl").write_text('{"source": "a", "target": "b"}\n{"source": "a"}\n', encoding="utf-8")
    code, _, err = run("evaluate", model, "--pairs", str(tmp_path / "test.jsonl"))
    assert code == 2
    assert "line 2" in err
    assert "--skip-bad" not in err
