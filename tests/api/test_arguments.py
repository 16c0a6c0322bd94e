"""Wrong arguments are clear errors in Python's own words; models can be sent to other processes."""

from __future__ import annotations

import copy
import pickle

import pytest

import mingyue
from mingyue.api.caller import for_caller, speaks_python
from mingyue.cli import main
from mingyue.errors import MingyueError, SettingsError, names_options
from mingyue.text import byte_tokenizer, train_char

MODEL = {"vocab_size": 259, "context": 24, "d_model": 16, "n_heads": 2, "n_kv_heads": 2, "d_head": 8, "d_ff": 16}


def saved(tmp_path, config_class, **layers):
    from mingyue.bundle import save_bundle
    from mingyue.models import build_model

    config = config_class(**MODEL, **layers)
    save_bundle(tmp_path / "model", config, build_model(config, seed=3).state_dict(), byte_tokenizer(), {"steps": 0})
    return tmp_path / "model"


@pytest.fixture
def model(tmp_path):
    from mingyue.config import ModelConfig

    return mingyue.load(saved(tmp_path, ModelConfig, n_layers=1), threads=1)


@pytest.fixture
def translator(tmp_path):
    from mingyue.config import EncoderDecoderConfig

    return mingyue.load_translator(saved(tmp_path, EncoderDecoderConfig, n_layers=1, n_encoder_layers=1), threads=1)


@pytest.mark.parametrize("wrong", [None, 3, ["a", None], b"bytes"])
def test_what_is_no_text_is_named(model, translator, wrong):
    for call in (model.generate, translator.translate, lambda value: list(model.stream(value))):
        with pytest.raises(SettingsError, match="not a text"):
            call(wrong)
    for call in (model.score, model.logits):
        with pytest.raises(SettingsError, match=r"text is .*, not a text"):
            call(wrong)


@pytest.mark.parametrize("call", [mingyue.load, mingyue.load_translator, mingyue.resume])
def test_what_is_no_path_is_named(call):
    with pytest.raises(SettingsError, match="None is not the name of a file or folder"):
        call(None)


def test_models_and_tokenizers_can_be_pickled_and_copied(model, translator):
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin.generate("ab", max_new_tokens=9)[0].text == model.generate("ab", max_new_tokens=9)[0].text
    twin = pickle.loads(pickle.dumps(translator))
    assert twin.translate(["ab"])[0][0].text == translator.translate(["ab"])[0][0].text
    rare = train_char(["abc" * 999 + "".join(map(chr, range(0x4E00, 0x5700)))], min_count=None)
    other = pickle.loads(pickle.dumps(rare))
    assert (other.notes, other.fingerprint, other.encode("ab一")) == (rare.notes, rare.fingerprint, rare.encode("ab一"))


@pytest.mark.parametrize(
    ("message", "python"),
    [
        ("Use --top-p 0.95.", "Use top_p 0.95."),
        ("leave --n-encoder-layers out", "leave n_encoder_layers out"),
        ("--no-attend-across-documents has no effect", "attend_across_documents=False has no effect"),
        ("Run `mingyue train a.txt --out runs/a` again.", "Run `mingyue train a.txt --out runs/a` again."),
        ("Start it again: mingyue train --config run.toml", "Start it again: mingyue train --config run.toml"),
        ("a--b, x --", "a--b, x --"),
    ],
)
def test_settings_are_named_as_the_caller_names_them(message, python):
    assert for_caller(message) == python
    assert not names_options()


def test_errors_name_options_on_the_command_line_only(tmp_path, capsys, monkeypatch):
    text = tmp_path / "a.jsonl"
    text.write_text('{"message": "a text of some words"}\n' * 9, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MingyueError, match=r"Name the key with field\. skip_bad leaves such records out"):
        mingyue.train(sources=[str(text)])
    assert main(["train", str(text)]) == 2
    assert "Name the key with --field. --skip-bad leaves" in " ".join(capsys.readouterr().err.split())
    assert not names_options()

    @speaks_python()
    def refuse() -> None:
        raise SettingsError("--top-k is 0", advice="Give --top-k 1.")

    with pytest.raises(SettingsError, match=r"^top_k is 0\nGive top_k 1\.$"):
        refuse()


def test_a_single_token_without_bos_has_nothing_to_score_and_says_so(model):
    found = model.score("a")
    assert found.scored == 0
    assert "no probability of a first token" in model.notes[0]
    model.score("ab")
    assert model.notes == []


def test_a_line_of_white_space_stays_empty_and_is_said(translator):
    found = translator.translate(["ab", "   ", "", "\t"])
    assert [best[0].text for best in found][1:] == ["", "", ""]
    assert "Lines of white space only, which stay empty: 2, 4." in translator.notes


def test_a_damaged_model_of_a_run_says_how_it_is_written_again(tmp_path):
    from mingyue.config import ModelConfig

    run = tmp_path / "run"
    run.mkdir()
    folder = saved(run, ModelConfig, n_layers=1)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MingyueError) as alone:
        mingyue.load(folder)
    assert "resume" not in (alone.value.advice or "")
    (run / "run.toml").touch()
    (run / "checkpoints" / "step-2").mkdir(parents=True)
    (run / "plan.json").touch()
    for path in (folder, run):
        with pytest.raises(MingyueError, match=r"tokenizer\.json missing") as found:
            mingyue.load(path)
        assert found.value.advice == f"`mingyue resume {run}` writes the model of a run again."


def test_an_output_that_is_no_folder_is_named(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("a text of some words\n" * 9, encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(MingyueError, match=r"it is a link to .*nowhere, which does not exist\nMake that folder"):
        mingyue.train(sources=[str(text)], out=str(tmp_path / "link"), steps=1)
    with pytest.raises(MingyueError, match="not a folder"):
        mingyue.train(sources=[str(text)], out="/dev/null", steps=1)
