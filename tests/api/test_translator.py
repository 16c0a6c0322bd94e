"""A model of pairs as a program uses it: translations, the likelihood of given ones, a test set, the right verb."""

from __future__ import annotations

import importlib.util
import math
import shutil
from pathlib import Path

import pytest
import torch

import mingyue
from mingyue.api import one_line, translates
from mingyue.bundle import save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig, TrainSettings
from mingyue.errors import BundleError, DataError, GenerationError, MissingExtraError, SettingsError
from mingyue.models import build_model
from mingyue.text import Tokenizer, byte_tokenizer, train_char
from mingyue.training import RunFolder

SOURCES = ["one two", "三", "a rather longer line", "x"]
TARGETS = ["eins zwei", "san", "eine", "yy"]
CONTEXT = 24

needs_sacrebleu = pytest.mark.skipif(
    importlib.util.find_spec("sacrebleu") is None, reason="extra `translate` is not installed"
)


def save_pairs(folder: Path, target: Tokenizer, source: Tokenizer | None = None) -> Path:
    config = EncoderDecoderConfig(
        vocab_size=target.vocab_size, source_vocab_size=None if source is None else source.vocab_size, context=CONTEXT,
        d_model=16, n_layers=1, n_encoder_layers=1, n_heads=2, n_kv_heads=2, d_head=8, d_ff=16,
    )  # fmt: skip
    weights = {name: 4 * value for name, value in build_model(config, seed=3).state_dict().items()}
    save_bundle(folder, config, weights, target, {"steps": 0}, source_tokenizer=source)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_pairs(tmp_path_factory.mktemp("pairs") / "model", byte_tokenizer())


@pytest.fixture
def translator(folder) -> mingyue.Translator:
    return mingyue.load_translator(folder)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory) -> Path:
    words = byte_tokenizer()
    config = ModelConfig(
        vocab_size=words.vocab_size, context=8, d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_head=8, d_ff=8
    )
    place = tmp_path_factory.mktemp("text") / "model"
    save_bundle(place, config, build_model(config, seed=1).state_dict(), words, {"starts_with_bos": False})
    return place


def nats_by_hand(translator: mingyue.Translator, source: str, target: str) -> float:
    """−Σ log P, one token after the other, each from a pass of its own over what stands before it."""
    words, others = translator.source_tokenizer, translator.tokenizer
    x = torch.tensor([[*words.encode(source), words.eos_id]])
    y = [*others.encode(target), others.eos_id]
    total = 0.0
    for place, token in enumerate(y):
        with torch.no_grad():
            logits = translator.module(x, torch.tensor([[others.bos_id, *y[:place]]]))[0, -1]
        total -= logits.double().log_softmax(dim=-1)[token].item()
    return total


# --- translate --------------------------------------------------------------------------------------------------------


def test_translations_come_in_the_order_of_the_lines(translator):
    together = translator.translate(SOURCES, beam=2, n_best=2, extra_tokens=3)
    assert [len(best) for best in together] == [2] * len(SOURCES)
    for source, best in zip(SOURCES, together, strict=True):
        assert best[0].score >= best[1].score
        alone = translator.translate(source, beam=2, n_best=2, extra_tokens=3)
        assert [one.text for one in alone[0]] == [one.text for one in best]


def test_settings_by_name_win_and_are_checked(translator):
    settings = mingyue.TranslateSettings(beam=3, extra_tokens=0)
    assert len(translator.translate("ab", settings, n_best=3)[0]) == 3
    with pytest.raises(SettingsError, match="n_best"):
        translator.translate("ab", settings, n_best=4)


def test_a_line_longer_than_the_context_is_named(translator):
    """S6: a documented crop with a warning."""
    translator.translate(["a", "b" * 50, "c"], beam=1, extra_tokens=0)
    assert translator.notes[0] == "Line 2 has more tokens than the context of 24: translated from the first ones."
    translator.translate(["b" * 50, "c" * 50], beam=1, extra_tokens=0, first_line=10)
    assert "2 lines (11, 12)" in translator.notes[0]
    translator.translate("a", beam=1)
    assert not any("more tokens" in note for note in translator.notes)


def test_draws_are_the_same_however_the_text_is_cut_into_calls(translator):
    asked = {"sample": True, "n_best": 2, "seed": 5, "extra_tokens": 4}
    whole = translator.translate(SOURCES * 2, **asked)
    cut = [
        best
        for start in range(0, len(whole), 3)
        for best in translator.translate((SOURCES * 2)[start : start + 3], first_line=start, **asked)
    ]
    assert [[one.text for one in best] for best in cut] == [[one.text for one in best] for best in whole]
    assert whole[0][0].text != whole[len(SOURCES)][0].text, "the same line drawn again is another draw"


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb", "a b"), ("a\r\nb", "a b"), ("a\rb\n", "a b "), ("a\u2028b", "a\u2028b"), ("", "")]
)
def test_a_line_end_inside_a_translation_becomes_a_space(text, line):
    assert one_line(text) == line


# --- loss -------------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_sum_over_every_target_token_whatever_the_padding(translator):
    """T6: padding adds nothing."""
    found = translator.loss(SOURCES, TARGETS)
    expected = math.fsum(nats_by_hand(translator, *pair) for pair in zip(SOURCES, TARGETS, strict=True))
    assert found.tokens == sum(len(target) + 1 for target in TARGETS)
    assert found.nats == pytest.approx(expected, rel=1e-5)
    assert found.loss == pytest.approx(expected / found.tokens, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    n_bytes = sum(len(target.encode()) for target in TARGETS)
    assert found.bits_per_byte == pytest.approx(expected / math.log(2) / n_bytes, rel=1e-5)


def test_empty_texts_have_a_likelihood_too(translator):
    assert translator.loss(["", "a"], ["b", ""]).nats == pytest.approx(
        nats_by_hand(translator, "", "b") + nats_by_hand(translator, "a", ""), rel=1e-5
    )
    assert math.isnan(translator.loss(["a"], [""]).bits_per_byte)


def test_each_side_is_read_with_its_own_tokenizer(tmp_path):
    source, target = train_char(["one two three"]), byte_tokenizer()
    translator = mingyue.load_translator(save_pairs(tmp_path / "model", target, source))
    assert (translator.source_tokenizer.kind, translator.tokenizer.kind) == ("char", "byte")
    found = translator.loss(["one"], ["eins"])
    assert found.nats == pytest.approx(nats_by_hand(translator, "one", "eins"), rel=1e-5)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (["a", "b"], ["a"], "2 source texts and 1 targets: number 2 has no partner"),
        ([], [], "no pairs"),
    ],
)
def test_texts_that_are_no_pairs_are_refused(translator, sources, targets, message):
    """D6: both counts and the first bad one."""
    for method in (translator.loss, translator.evaluate):
        with pytest.raises(DataError, match=message):
            method(sources, targets)


@pytest.mark.parametrize(("source", "target"), [("a" * 24, "b"), ("a", "b" * 24)])
def test_a_pair_that_does_not_fit_the_context_is_refused_with_both_numbers(translator, source, target):
    translator.loss([source[:23]], [target[:23]])
    with pytest.raises(GenerationError, match=r"pair 2 has .*25.*context holds 24"):
        translator.loss(["a", source], ["b", target])


# --- evaluate ---------------------------------------------------------------------------------------------------------


@needs_sacrebleu
def test_a_test_set_that_is_what_the_model_writes_is_exact(translator):
    asked = {"beam": 1, "extra_tokens": 3}
    references = [one_line(best[0].text) for best in translator.translate(SOURCES, **asked)]
    report = translator.evaluate(SOURCES, references, **asked)
    assert report.hypotheses == references
    assert report.scores.exact == 1.0
    assert report.scores.chrf == pytest.approx(100.0)
    assert report.lines == len(SOURCES)
    assert report.seconds > 0
    wrong = translator.evaluate(SOURCES, [*references[:-1], "never"], **asked)
    assert wrong.scores.exact == 1 - 1 / len(SOURCES)


@needs_sacrebleu
def test_the_loss_of_a_test_set_counts_the_pairs_that_training_would_use(translator):
    sources, targets = [*SOURCES, "", "a", "b" * 50], [*TARGETS, "b", "  ", "c"]
    report = translator.evaluate(sources, targets, beam=1, extra_tokens=0)
    assert (report.lines, report.counted) == (len(sources), len(SOURCES))
    assert report.loss == pytest.approx(translator.loss(SOURCES, TARGETS).loss)
    assert report.hypotheses[len(SOURCES)] == ""
    translator.evaluate(sources, targets, beam=1, extra_tokens=0)
    assert translator.notes[0].startswith("Line 7 has")
    assert "Not counted in the loss: 2 with an empty side, 1 with more than 24 tokens on a side." in translator.notes


@needs_sacrebleu
def test_a_test_set_without_a_pair_to_count_has_scores_and_no_loss(translator):
    report = translator.evaluate(["a"], [""], beam=1, extra_tokens=0)
    assert math.isnan(report.loss)
    values = report.to_dict()
    assert values["loss"] is values["perplexity"] is values["bits_per_byte"] is None
    assert values["lines"] == 1


def test_a_missing_extra_is_said_before_anything_is_translated(translator, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics", None)
    monkeypatch.setattr(translator, "translate", lambda *_, **__: pytest.fail("minutes of work first"))
    with pytest.raises(MissingExtraError, match="sacrebleu"):
        translator.evaluate(["a"], ["b"])


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> mingyue.RunResult:
    """A run of a few steps; digits to letters."""
    place = tmp_path_factory.mktemp("run")
    numbers = [str(number) for number in range(100, 400, 3)]
    letters = [number.translate({48 + i: 97 + i for i in range(10)}) for number in numbers]
    for name, lines in (("en", numbers), ("de", letters)):
        (place / f"train.{name}").write_text("".join(f"{line}\n" for line in lines[:80]), encoding="utf-8")
        (place / f"valid.{name}").write_text("".join(f"{line}\n" for line in lines[80:]), encoding="utf-8")
    return mingyue.train(
        source=str(place / "train.en"), target=str(place / "train.de"), valid_source=str(place / "valid.en"),
        valid_target=str(place / "valid.de"), out=str(place / "run"), steps=6, evaluate_every=3, tokenizer="char",
        d_model=16, depth=1, context=16, batch_tokens=64, bleu_lines=0, threads=1, device="cpu",
    )  # fmt: skip


def valid(trained: mingyue.RunResult) -> list[list[str]]:
    return [(trained.folder.parent / f"valid.{name}").read_text(encoding="utf-8").splitlines() for name in ("en", "de")]


def test_the_loss_of_the_validation_files_is_the_one_that_training_saw(trained):
    expected = trained.training.evaluation
    found = mingyue.load_translator(trained.folder).loss(*valid(trained))
    assert found.tokens == expected.tokens
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-5)


def test_a_run_that_has_not_ended_translates_with_its_best_checkpoint(trained, tmp_path):
    shutil.copytree(trained.folder, tmp_path / "run", ignore=shutil.ignore_patterns("model"))
    cut, whole = mingyue.load_translator(tmp_path / "run"), mingyue.load_translator(trained.folder)
    assert cut.config == whole.config
    assert cut.source_tokenizer.fingerprint == whole.source_tokenizer.fingerprint
    assert cut.loss(*valid(trained)).nats == whole.loss(*valid(trained)).nats
    assert translates(tmp_path / "run")


# --- the right verb ---------------------------------------------------------------------------------------------------


def test_each_kind_of_model_names_the_verb_that_uses_it(folder, text_model):
    with pytest.raises(BundleError, match="mingyue translate"):
        mingyue.load(folder)
    with pytest.raises(BundleError, match="mingyue generate"):
        mingyue.load_translator(text_model)
    assert translates(folder)
    assert not translates(text_model)


@pytest.mark.parametrize("pairs", [True, False])
def test_a_run_that_has_no_model_yet_names_it_too(tmp_path, pairs):
    settings = TrainSettings().with_flat(**({"source": ["a"], "target": ["b"]} if pairs else {"sources": ["a"]}))
    place, _ = RunFolder.create(tmp_path / "run", settings)
    place.unlock()
    assert translates(place.path) is pairs
    load, verb = (mingyue.load, "translate") if pairs else (mingyue.load_translator, "generate")
    with pytest.raises(BundleError, match=f"mingyue {verb}"):
        load(place.path)


def test_what_is_no_model_is_said_to_be_none(tmp_path):
    with pytest.raises(BundleError, match="neither a model folder nor a run folder"):
        mingyue.load_translator(tmp_path)
    with pytest.raises(BundleError, match="does not exist"):
        translates(tmp_path / "nowhere")


def test_a_translator_shows_what_it_is(translator):
    assert "depth 1+1, width 16, context 24" in repr(translator)
    assert translator.config.n_encoder_layers == 1
    assert translator.training["steps"] == 0
