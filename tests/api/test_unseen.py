"""What a model makes of characters that its training text does not have, and of an empty prompt."""

from __future__ import annotations

import random

import pytest

import mingyue

SENTENCE = "the mill wheel river stone water sings turns falls waits under over by and grey old low wide"
WORDS = SENTENCE.split(" ")
UNSEEN = ("It costs 5", "He paid 10", "é", "明月", "😀", "5 and 7 and 3", "#$%")
DRIFTING = {"preset": "modern", "tokenizer": "char", "steps": 300, "learning_rate": 0.1}
"""Rows of unseen ids drift as far in 300 steps at this rate as in thousands at the usual one."""


def text(separator: str, sentences: int = 400) -> str:
    draw = random.Random(1)
    drawn = (" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(sentences))
    return separator.join(f"{sentence.capitalize()}." for sentence in drawn)


def trained(folder, content: str, **settings):
    (folder / "text.txt").write_text(content, encoding="utf-8")
    small = {"d_model": 32, "n_layers": 1, "context": 32, "batch_tokens": 256, "threads": 1, "sample_every": 0}
    given = {"sources": [str(folder / "text.txt")], "out": str(folder / "run"), "seed": 1, **small, **settings}
    mingyue.train(**given)
    return mingyue.load(folder / "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("unseen")


@pytest.fixture(scope="module")
def model(folder):
    """One document of many lines, without digits."""
    return trained(folder, text("\n"), **DRIFTING)


def probability_of_seen(model, prompt: str) -> float:
    """Of the next token, over the ids that training has met."""
    unseen = set(model.unseen)
    seen = [index for index in range(model.tokenizer.vocab_size) if index not in unseen]
    return float(model.logits(prompt)[-1].double().softmax(-1)[seen].sum())


def check(model) -> None:
    assert model.unseen, "this text is meant to leave ids unseen"
    for prompt in (*UNSEEN, "The mill", "The 3 mills of 1905"):
        assert probability_of_seen(model, prompt) >= 0.95, prompt
    for generated in model.generate(UNSEEN, max_new_tokens=30, temperature=1.0):
        assert not set(generated.ids) & set(model.unseen), generated.prompt
        assert "\ufffd" not in generated.text


def test_an_unseen_character_does_not_ruin_the_text_after_it(model):
    check(model)


def test_without_substitution_it_does(tmp_path):
    """What the test above protects from: else it would show nothing."""
    model = trained(tmp_path, text("\n"), **DRIFTING, unseen_share=0.0)
    assert probability_of_seen(model, "It costs 5") < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("documents", ["\n", "\n\n"])
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
@pytest.mark.parametrize("tokenizer", ["char", "bpe", "byte"])
@pytest.mark.parametrize("preset", ["modern", "speed", "gpt2", "llama", "speed, tied"])
def test_no_preset_tokenizer_or_optimiser_lets_an_unseen_character_ruin_the_text(
    tmp_path, preset, tokenizer, optimiser, documents
):
    shape = {"preset": "speed", "tied_output": True} if preset == "speed, tied" else {"preset": preset}
    shape |= {"tokenizer_size": 300} if tokenizer == "bpe" else {}
    shape |= {"separator": "blank-line"} if documents == "\n\n" else {}
    shape |= {"batch_tokens": 1024, "tokenizer": tokenizer, "optimiser": optimiser}
    check(trained(tmp_path, text(documents), steps=1500, **shape))


def begins_like_a_sentence(model) -> bool:
    generated = model.generate("", max_new_tokens=20, samples=8, seed=3)
    assert all(not set(one.ids) & set(model.unseen) for one in generated)
    return sum(one.text.lstrip()[:1].isupper() for one in generated) >= 6


def test_an_empty_prompt_begins_like_a_line(model):
    assert begins_like_a_sentence(model)


@pytest.mark.parametrize("separator", [" ", ""])
def test_an_empty_prompt_begins_like_a_sentence_where_the_text_has_no_lines(tmp_path, separator):
    assert begins_like_a_sentence(trained(tmp_path, text(separator), steps=200, preset="modern", tokenizer="char"))


def test_an_empty_prompt_works_with_a_tokenizer_that_drops_white_space(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"<unk>": 0, ".": 1, **{word: 2 + i for i, word in enumerate(WORDS)}}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    content = text(" ").lower()
    model = trained(tmp_path, content, steps=40, preset="modern", tokenizer=str(tmp_path / "tokenizer.json"))
    (generated,) = model.generate("", max_new_tokens=20)
    assert not set(generated.ids) & set(model.unseen)


def test_unseen_tokens_are_generated_only_when_asked_for(tmp_path):
    model = trained(tmp_path, text("\n"), steps=3, preset="modern", tokenizer="char")  # it knows nothing yet
    assert not set(model.generate("The", max_new_tokens=200, temperature=5.0)[0].ids) & set(model.unseen)
    allowed = model.generate("The", max_new_tokens=200, temperature=5.0, allow_unseen=True)[0].ids
    assert set(allowed) & set(model.unseen)


def test_a_checkpoint_and_its_bundle_say_the_same(model, folder):
    checkpoint = mingyue.load(folder / "run", step=300)
    assert checkpoint.checkpoint == 300
    assert checkpoint.unseen == model.unseen
    assert checkpoint.generate("", max_new_tokens=30)[0].text == model.generate("", max_new_tokens=30)[0].text


def test_an_unseen_character_in_a_source_does_not_ruin_the_translation(tmp_path):
    draw = random.Random(2)
    sources = [" ".join(draw.choices(WORDS, k=4)) for _ in range(200)]
    (tmp_path / "s").write_text("\n".join(sources), encoding="utf-8")
    (tmp_path / "t").write_text("\n".join(source.upper() for source in sources), encoding="utf-8")
    settings = {"d_model": 32, "n_layers": 1, "context": 64, "steps": 60, "batch_tokens": 256, "threads": 1}
    files = {"source": [str(tmp_path / "s")], "target": [str(tmp_path / "t")], "out": str(tmp_path / "run")}
    mingyue.train(**files, **settings, tokenizer="char", bleu_lines=0, sample_every=0)
    translator = mingyue.load_translator(tmp_path / "run")
    seen = set("".join(sources) + "".join(sources).upper())
    lines = ["the 5 mill", "5", "明 wheel", "the mill turns"]
    for settings in ({"beam": 1}, {"beam": 4}, {"sample": True, "temperature": 3.0}):
        for found in translator.translate(lines, **settings, extra_tokens=4):
            assert set(found[0].text) <= seen
