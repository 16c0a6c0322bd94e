"""`mingyue inspect` with real models: every view of both kinds of model, what is printed and written, every refusal."""

from __future__ import annotations

import inspect
import io
import json
import re
import sys

import numpy as np
import pytest

import mingyue
from mingyue.bundle import save_bundle
from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models import build_model
from mingyue.text import byte_tokenizer, train_char

POEM = "床前明月光，疑是地上霜。举头望明月"
OTHER = POEM[:-1] + "霜"
SIZES = {"context": 32, "d_model": 16, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "d_head": 8, "d_ff": 16}
VIEWS = (
    "attention",
    "lens",
    "surprise",
    "trace",
    "heads",
    "vectors",
    "neighbours",
    "logits",
    "head",
    "lines",
    "attended",
    "contexts",
    "patch",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder: characters, a context of 32, weights never trained."""
    tokenizer = train_char([POEM])
    config = ModelConfig(vocab_size=tokenizer.vocab_size, **SIZES)
    folder = tmp_path_factory.mktemp("model") / "poems" / "model"
    save_bundle(folder, config, build_model(config, seed=3).state_dict(), tokenizer, {"starts_with_bos": False})
    return str(folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder of pairs: bytes, an encoder of one layer and a decoder of two, weights never trained."""
    tokenizer = byte_tokenizer()
    config = EncoderDecoderConfig(vocab_size=tokenizer.vocab_size, n_encoder_layers=1, **SIZES)
    weights = {name: 4 * value for name, value in build_model(config, seed=3).state_dict().items()}
    folder = tmp_path_factory.mktemp("pairs") / "model"
    save_bundle(folder, config, weights, tokenizer, {"steps": 0})
    return str(folder)


def arguments(view: str, of_pairs: bool = False) -> list[str]:
    """What a person would give a view."""
    if view == "neighbours":
        return ["--word", "a" if of_pairs else "月"]
    if view == "vectors":
        return ["--word", "b", "--texts", "a b", "c b"] if of_pairs else ["--word", "月", "--texts", POEM, "望明月"]
    if view == "heads":
        return []
    if view == "contexts":
        corpus = ["--corpus", __file__, "--tokens", "200"]
        return ["--text", "one two", "--target", "eins", *corpus] if of_pairs else ["--text", POEM, *corpus]
    if view == "patch":
        pair = ["--text", "one two", "--other", "one six", "--target", "eins"]
        return pair if of_pairs else ["--text", POEM, "--other", OTHER]
    return ["--text", "one two", "--target", "eins"] if of_pairs else ["--text", POEM]


# --- every view -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("of_pairs", [False, True])
def test_every_view_prints_tables_in_both_languages(run, model, pairs, view, of_pairs):
    command = ("inspect", view, pairs if of_pairs else model, *arguments(view, of_pairs))
    english, chinese = run(*command, "--language", "en"), run(*command, "--language", "zh")
    for code, out, err in (english, chinese):
        assert (code, err) == (0, "")
        assert len(out.splitlines()) > 3
    assert english[1] != chinese[1]


@pytest.mark.parametrize("view", VIEWS)
def test_json_has_the_named_arrays_of_the_view(run, model, view):
    code, out, err = run("inspect", view, model, *arguments(view), "--json")
    assert (code, err) == (0, "")
    looked = mingyue.inspect(model, None if view == "heads" else POEM)
    given = {"vectors": ("月", [POEM, "望明月"]), "neighbours": ("月",), "patch": (OTHER,)}
    options = {"corpus": __file__, "tokens": 200} if view == "contexts" else {}
    assert json.loads(out) == json.loads(json.dumps(getattr(looked, view)(*given.get(view, ()), **options).to_dict()))


def test_the_numbers_of_surprise_are_those_of_score(run, model):
    _, out, _ = run("inspect", "surprise", model, "--text", POEM, "--language", "en")
    for one in mingyue.load(model).score(POEM).tokens[1:]:
        assert one.logprob is not None
        assert f" {-one.logprob:.3f} " in out


def test_the_rows_of_a_head_are_those_of_the_forward_pass(run, model):
    _, out, _ = run("inspect", "attention", model, "--text", POEM, "--layer", "1", "--head", "0", "--json")
    found = np.array(json.loads(out)["self"]["weights_LHTS"])
    taps = mingyue.inspect(model, POEM).capture("blocks.1.attention.weights").values["blocks.1.attention.weights"]
    assert found.shape == (1, 1, len(POEM), len(POEM))
    np.testing.assert_allclose(found[0, 0], taps[0].numpy(), atol=1e-6)


def test_lens_shows_as_many_words_as_are_asked_for_and_says_where_more_are(run, model):
    command = ("inspect", "lens", model, "--text", "明月", "--language", "en")
    one, two, many = (run(*command, *more)[1] for more in ((), ("--top", "2"), ("--top", "9999")))
    assert one.count("%") < two.count("%") < many.count("%")
    assert "3 of the" not in two and "3 of the" in many


def test_a_word_that_is_not_in_the_text_of_a_report_is_remarked(run, model, tmp_path):
    pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    out = str(tmp_path / "r.html")
    code, _, err = run("inspect", "report", model, "--text", "床前", "--word", "月", "--out", out, "--language", "zh")
    assert code == 0
    assert "没有“月”" in "".join(err.split())


def test_a_narrow_terminal_spares_columns_and_says_which(run, model, monkeypatch):
    command = ("inspect", "trace", model, "--text", "明月", "--language", "en")
    assert "Left out" not in run(*command)[1]
    monkeypatch.setattr("mingyue.cli.screen._WIDE", 80)
    narrow = run(*command)[1]
    assert "Left out in 80 columns: formula, source line." in narrow
    assert "attention.py:" not in narrow
    assert max(map(len, narrow.split("Formulas")[0].splitlines()[1:20])) <= 80


def test_a_picture_of_a_very_long_text_is_announced(run, model, tmp_path, monkeypatch):
    pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    monkeypatch.setattr("mingyue.cli.inspect._MANY", 3)
    command = ("inspect", "surprise", model, "--text", "床前明月", "--language", "en", "--out")
    assert "takes its time" in run(*command, str(tmp_path / "s.png"))[2]
    assert "takes its time" not in run(*command, str(tmp_path / "s.html"))[2]


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_text_may_come_from_a_file_or_standard_input(run, model, tmp_path, monkeypatch):
    """A line end that `echo` or an editor put there is no part of the text."""
    expected = run("inspect", "surprise", model, "--text", "明月")[1]
    (tmp_path / "text.txt").write_text("明月\n", encoding="utf-8")
    assert run("inspect", "surprise", model, "--file", str(tmp_path / "text.txt"))[1] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("明月\n".encode()), encoding="ascii"))
    assert run("inspect", "surprise", model, "--text", "-")[1] == expected


def test_the_texts_of_vectors_may_be_given_either_way(run, model):
    command = ("inspect", "vectors", model, "--word", "月", "--json")
    assert run(*command, "--texts", "明月", "望月")[1] == run(*command, "--text", "明月", "--text", "望月")[1]


def test_without_a_target_the_own_translation_is_told_beside_the_result(run, pairs):
    code, out, err = run("inspect", "surprise", pairs, "--text", "ab", "--json")
    assert code == 0
    assert "own translation (beam 4" in " ".join(err.split())
    own = mingyue.inspect(pairs, "ab").reading
    assert json.loads(out)["pieces_N"] == list(own.target_pieces)


def test_text_and_source_are_the_same_of_a_pair(run, pairs):
    command = ("inspect", "surprise", pairs, "--target", "c", "--json")
    assert run(*command, "--text", "ab")[1] == run(*command, "--source", "ab")[1]


@pytest.mark.parametrize(
    ("variables", "chinese"),
    [
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "de_DE.UTF-8"}, False),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "en_GB", "LC_MESSAGES": "zh_TW"}, True),
        ({}, False),
    ],
)
def test_the_language_is_that_of_the_system_unless_given(run, model, monkeypatch, variables, chinese):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = ("inspect", "neighbours", model, "--word", "月")
    assert (run(*command)[1] == run(*command, "--language", "zh")[1]) is chinese


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["surprise", "--text", "月", "--head", "0"], ["no use for --head", "attention"]),
        (["lens", "--text", "月", "--texts", "a", "b"], ["no use for --texts", "vectors"]),
        (["neighbours", "--word", "月", "--text", "a"], ["no use for --text", "surprise"]),
        (["trace", "--text", "月", "--top", "3"], ["no use for --top", "lens"]),
        (["attention"], ["no text", "--text", "--file"]),
        (["attention", "--text", "明", "--text", "月"], ["one text", "2 are given"]),
        (["attention", "--text", "明", "--source", "月"], ["one text", "2 are given"]),
        (["neighbours"], ["needs a word", "--word"]),
        (["vectors", "--texts", "明月", "望月"], ["needs a word", "--word"]),
        (["vectors", "--word", "月"], ["needs texts", "--texts"]),
        (["vectors", "--word", "月", "--texts", "明月", "床前"], ["床前"]),
        (["attention", "--source", "月"], ["no source and no target"]),
        (["attention", "--text", "月" * 40], ["40 tokens", "32"]),
        (["attention", "--text", ""], ["empty"]),
        (["attention", "--text", POEM, "--layer", "2"], ["no layer 2", "0 to 1"]),
        (["attention", "--text", POEM, "--head", "-1"], ["head"]),
        (["lens", "--text", POEM, "--step", "5"], ["not the folder of a run", "step 5"]),
        (["lens", "--text", POEM, "--out", "lens.pdf"], ["lens.pdf", ".html"]),
        (["report", "--text", POEM, "--out", "report.png"], ["report.png", ".html"]),
        (["report", "--text", POEM, "--json"], ["no use for --json"]),
        (["lens", "--text", POEM, "--out", "nowhere/lens.html"], ["there is no folder nowhere"]),
        (["lens", "--file", "nowhere.txt"], ["nowhere.txt cannot be read"]),
        (["atention", "--text", POEM], ["atention", "attention"]),
        (["film"], ["run"]),
    ],
)
def test_what_cannot_be_shown_is_refused_with_what_to_do(run, model, options, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("inspect", options[0], model, *options[1:])
    assert (code, out) == (2, "")
    shown = " ".join(err.split())
    for words in told:
        assert words in shown
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_no_model_is_named(run, tmp_path):
    code, out, err = run("inspect", "lens", str(tmp_path), "--text", "a")
    assert (code, out) == (2, "")
    assert str(tmp_path) in "".join(err.split("\n"))


def test_help_has_every_view_and_its_own_help_an_example_that_the_program_takes(run):
    from mingyue.cli.app import app
    from mingyue.cli.inspect import VIEWS as LISTED

    code, out, _ = run("inspect", "--help")
    assert code == 0
    assert sorted(LISTED) == sorted((*VIEWS, "relations", "film", "curve", "report"))
    for view in LISTED:
        assert re.search(rf"│ {view} +[A-Z]", out), view
        code, own, _ = run("inspect", view, "--help")
        assert code == 0
        line = next(line for line in own.splitlines() if f"mingyue inspect {view} runs/poems" in line)
        app.parse_args(line.split()[2:], exit_on_error=False, print_error=False)


def test_help_of_a_view_has_its_own_options_only(run):
    def shown(view: str) -> set[str]:
        return set(re.findall(r"(--[a-z]+) ", run("inspect", view, "--help")[1]))

    common = {"--out", "--device", "--threads"}
    text = {"--text", "--file", "--source", "--target", "--step"}
    help_and_debug = {"--help", "--debug", "--language"}
    expected = {
        "attention": {*text, "--layer", "--head", "--json"},
        "lens": {*text, "--top", "--json"},
        "trace": {*text, "--json"},
        "relations": {"--text", "--file", "--step", "--seed", "--json"},
        "vectors": {"--word", "--texts", "--text", "--file", "--step", "--seed", "--json"},
        "neighbours": {"--word", "--top", "--step", "--json"},
        "logits": {*text, "--token", "--instead", "--position", "--json"},
        "head": {*text, "--layer", "--head", "--part", "--position", "--json"},
        "lines": {*text, "--layer", "--head", "--part", "--json"},
        "attended": {*text, "--position", "--layer", "--head", "--part", "--json"},
        "contexts": {*text, "--position", "--layer", "--top", "--tokens", "--corpus", "--seed", "--json"},
        "patch": {*text, "--other", "--answer", "--instead", "--tap", "--position", "--json"},
        "film": {"--text", "--file", "--source", "--json"},
        "report": {*text, "--word", "--seed"},
    }
    for view, own in expected.items():
        assert shown(view) - help_and_debug == own | common, view


def test_defaults_that_help_shows_are_those_of_the_views():
    from mingyue.api.inspecting import view_command

    compared = 0
    for view in VIEWS:
        command = view_command(view)
        taken = inspect.signature(command.make).parameters
        for option in command.options:
            if isinstance(option.default, int):
                compared += 1
                assert taken[option.name].default in (option.default, None), (view, option.name)
        assert set(command.arguments) <= set(taken)
    assert compared >= 4


def test_without_a_view_or_with_an_unknown_one_the_views_are_listed(run, model):
    for given, told in (
        ((), "needs a view"),
        (("--text", "x"), "needs a view"),
        (("atention", model), "Did you mean attention?"),
        ((model, "atention"), "Did you mean attention?"),
        (("x" * 5000,), "is not a view"),
        ((model,), "the view is missing: mingyue inspect VIEW"),
    ):
        code, out, err = run("inspect", *given)
        assert (code, out) == (2, "")
        assert told in err
        for view in (*VIEWS, "film", "curve", "report"):
            assert re.search(rf"^  {view} +[A-Z]", err, flags=re.MULTILINE), view


@pytest.mark.parametrize("view", VIEWS)
def test_the_former_order_of_model_and_view_still_works_with_a_note(run, model, view):
    code, out, err = run("inspect", model, view, *arguments(view), "--language", "en")
    assert (code, out) == (0, run("inspect", view, model, *arguments(view), "--language", "en")[1])
    assert "`mingyue inspect RUN VIEW` is deprecated: use `mingyue inspect VIEW RUN`" in " ".join(err.split())


def test_the_former_order_takes_options_in_front_and_standard_input(run, model, monkeypatch):
    expected = run("inspect", "surprise", model, "--text", "明月", "--json")[1]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("明月\n".encode()), encoding="ascii"))
    code, out, err = run("--debug", "inspect", "--text", "-", model, "surprise", "--json")
    assert (code, out) == (0, expected)
    assert err.count("deprecated") == 1
    code, _, err = run("inspect", model, "surprise", "--text", "月", "--head", "0")
    assert code == 2
    assert "no use for --head" in " ".join(err.split())


def test_relations_needs_one_long_text_and_a_decoder_only_model(run, model, pairs):
    code, out, err = run("inspect", "relations", model, "--text", POEM * 3, "--language", "en")
    assert (code, err) == (0, "") and "previous token" in out
    looked = mingyue.inspect(model, POEM * 3).relations()
    code, out, _ = run("inspect", "relations", model, "--text", POEM * 3, "--json")
    assert code == 0 and json.loads(out) == json.loads(json.dumps(looked.to_dict()))
    code, _, err = run("inspect", "relations", model, "--text", POEM)
    assert code == 2 and "17 tokens" in err
    code, _, err = run("inspect", "relations", pairs, "--text", "one two", "--target", "eins")
    assert code == 2
