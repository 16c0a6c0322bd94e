"""Held-out texts and counts of a run, from its token files; and what a view says where they are not at hand."""

from __future__ import annotations

import json
import shutil

import pytest

import mingyue
from mingyue.bundle import save_bundle
from mingyue.config import DataSettings, EncoderDecoderConfig, ModelConfig, PairSettings, TokenizerSettings
from mingyue.data import prepare_corpus, prepare_pairs
from mingyue.inspection import Subject
from mingyue.inspection.neighbours import FEWEST_SEEN, neighbours_view
from mingyue.inspection.run_texts import LONGEST, RunTexts
from mingyue.models import build_model
from mingyue.text import train_char

SIZES = {"d_model": 16, "n_heads": 2, "n_kv_heads": 2, "d_head": 8, "d_ff": 16, "n_layers": 1}


@pytest.fixture
def text_run(tmp_path):
    """`text_run(lines, context)`: a run folder with token files and a model of random weights, and its subject."""

    def made(text, context=32, separator="line", held_out=0.25):
        run = tmp_path / "run"
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        data = DataSettings(sources=[str(tmp_path / "a.txt")], separator=separator, held_out=held_out)
        tokenizer, corpus, _ = prepare_corpus(data, TokenizerSettings(tokenizer="char"), run / "data")
        config = ModelConfig(vocab_size=tokenizer.vocab_size, context=context, **SIZES)
        model = build_model(config, seed=0).eval()
        training = {"starts_with_bos": corpus.starts_with_bos}
        save_bundle(run / "model", config, model.state_dict(), tokenizer, training)
        (run / "run.toml").write_text("", encoding="utf-8")
        subject = Subject(model, tokenizer, starts_with_bos=corpus.starts_with_bos, unseen=corpus.unseen)
        return run, subject, corpus

    return made


LINES = "".join(f"The mill {number % 9} turns by the river {number % 7}.\n" for number in range(200))


def test_held_out_texts_are_those_of_the_run_and_begin_with_bos(text_run):
    """V1: probe texts that the model never learnt from."""
    run, subject, corpus = text_run(LINES, context=64)
    texts = RunTexts.of(run / "data", subject)
    held_out = subject.tokenizer.decode(corpus.held_out.read().tolist())
    found = texts.held_out(600)
    assert 500 <= sum(len(reading.targets_T) for reading in found) <= 640
    assert len(found) > 10
    for reading in found:
        assert reading.text in held_out
        assert reading.ids_T[0] == subject.tokenizer.bos_id
        assert reading.ids_T[1:].tolist() == reading.targets_T[: len(reading.ids_T) - 1].tolist()
    everything = texts.held_out(10**9)
    assert sum(len(reading.targets_T) for reading in everything) <= len(corpus.held_out)
    assert len({reading.text for reading in found}) > 5, "evenly spread, not the first again and again"


def test_one_long_text_is_read_in_windows_without_overlap(text_run):
    run, subject, corpus = text_run("".join(map(chr, range(0x4E00, 0x4E00 + 900))) * 2, 1000, separator="none")
    found = RunTexts.of(run / "data", subject).held_out(10**9)
    ids = [int(index) for reading in found for index in reading.ids_T]
    assert ids == corpus.held_out.read().tolist()
    assert max(len(reading.ids_T) for reading in found) == LONGEST


def test_counts_are_those_of_the_training_part(text_run):
    """V2: neighbours of a token seen 27 times look like those of one seen 10,000 times."""
    run, subject, corpus = text_run(LINES)
    counts = RunTexts.of(run / "data", subject).counts()
    text = subject.tokenizer.decode(corpus.train.read().tolist())
    for letter in "Tmx9":
        ids = subject.tokenizer.encode(letter)
        if len(ids) == 1:
            assert counts[ids[0]] == text.count(letter), letter
    assert counts.shape == (subject.tokenizer.vocab_size,)


@pytest.mark.parametrize("shared", [True, False])
def test_pairs_have_held_out_pairs_and_counts_of_each_side(tmp_path, shared):
    numbers = [f"{number:02}" for number in range(40)]  # one b to each source, two to each target
    for name, lines in (("s", [f"b{n}" for n in numbers]), ("t", [f"b{n[::-1]}b" for n in numbers])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    source, target, corpus, _ = prepare_pairs(
        PairSettings(source=[str(tmp_path / "s")], target=[str(tmp_path / "t")], shared_vocabulary=shared),
        DataSettings(held_out=0.2),
        TokenizerSettings(tokenizer="char"),
        tmp_path / "data",
        max_tokens=20,
    )
    own = {} if shared else {"source_vocab_size": source.vocab_size}
    config = EncoderDecoderConfig(vocab_size=target.vocab_size, context=8, n_encoder_layers=1, **SIZES, **own)
    subject = Subject(build_model(config, seed=0).eval(), target, source)
    texts = RunTexts.of(tmp_path / "data", subject)
    found = texts.held_out(10**9)
    assert len(found) == len(corpus.valid) == 8
    assert (found[1].source, found[1].text) == ("b33", "b33b")
    assert found[1].targets_T[-1] == target.eos_id
    assert found[1].source_ids_S[-1] == source.eos_id
    (of_targets,), (of_sources,) = target.encode("b"), source.encode("b")
    assert texts.counts()[of_targets] == (96 if shared else 64)
    assert texts.counts(of_sources=True)[of_sources] == (96 if shared else 32)


def test_data_of_another_tokenizer_damaged_or_missing_are_not_used(text_run):
    run, subject, _ = text_run(LINES)
    other = train_char(["another text"])
    assert RunTexts.of(run / "data", Subject(subject.module, other)) is None
    next((run / "data").glob("held_out-*.tokens")).write_bytes(b"damaged")
    assert RunTexts.of(run / "data", subject) is None
    assert RunTexts.of(run / "nothing", subject) is None


def test_a_run_and_its_model_folder_use_the_text_of_the_run_and_a_bundle_alone_says_what_it_used(text_run, tmp_path):
    """V1, V2: `inspect heads` without texts, and the counts of `inspect neighbours`."""
    run, _, corpus = text_run(LINES, context=64)
    alone = shutil.copytree(run / "model", tmp_path / "bundle")
    for folder in (run, run / "model"):
        look = mingyue.inspect(folder)
        assert len(corpus.held_out) / 2 < look.heads().measured.tokens <= 1200
        assert "held-out texts of the run" in look.heads().tables()[0].note
    assert mingyue.inspect(alone).run_texts is None
    view = mingyue.inspect(alone).heads()
    assert "random sequences" in view.tables()[0].note
    assert mingyue.inspect(mingyue.load(run / "model")).run_texts is None, "a loaded model has no folder"
    given = mingyue.inspect(run, "The mill").heads()
    assert given.measured.tokens == len("The mill")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_neighbours_show_how_often_each_token_occurs_and_warn_of_rare_ones(text_run, language):
    """V2: a token seen 27 times had neighbours at 0.97, all alike, without a word."""
    run, subject, _ = text_run("".join(f"The mill {n} turns{'q' if n % 20 == 0 else ''}.\n" for n in range(300)))
    texts = RunTexts.of(run / "data", subject)
    counts = texts.counts()
    view = neighbours_view(subject, "l", top=50, run=texts)
    (table,) = view.tables(language)
    shown = {row[1]: row[3] for row in table.rows}
    for index, piece in zip(view.nearest[0].ids_K, view.nearest[0].pieces_K, strict=True):
        assert shown[piece] == f"{counts[index]:,}"
    (l_count,) = counts[subject.tokenizer.encode("l")]
    assert f"{l_count:,}" in table.note
    assert str(FEWEST_SEEN) not in table.note
    labels = [row["token"] for row in view.charts(language)[0].rows]
    rare = [label.endswith("*") for label in labels]
    assert rare == [count < FEWEST_SEEN for count in view.nearest[0].counts_K]
    assert any(rare) and not all(rare)
    assert "* " in view.charts(language)[0].note
    seldom = neighbours_view(subject, "q", run=texts)
    assert str(FEWEST_SEEN) in seldom.tables(language)[0].note
    assert json.loads(json.dumps(seldom.to_dict()))["nearest"][0]["count"] == counts[subject.tokenizer.encode("q")[0]]


@pytest.mark.parametrize(("language", "said"), [("en", "is unknown: the run"), ("zh", "找不到")])
def test_without_the_run_counts_are_said_to_be_unknown(text_run, language, said):
    """V2: a bundle alone does not know its training text."""
    run, _, _ = text_run(LINES)
    known = mingyue.inspect(run).neighbours("m")
    assert said not in known.tables(language)[0].note
    alone = mingyue.inspect(mingyue.load(run)).neighbours("m")
    assert said in alone.tables(language)[0].note
    assert {row[3] for row in alone.tables(language)[0].rows} == {"?"}
    assert alone.to_dict()["nearest"][0]["counts_K"] is None
