"""Looking inside from Python: any model, any step of a run, and numbers that are those of the model in use."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mingyue
from mingyue.api import RunResult
from mingyue.errors import BundleError, CheckpointError, GenerationError, SettingsError
from mingyue.training import Checkpoints

POEM = "床前明月光，疑是地上霜。"
TINY = {"d_model": 32, "n_heads": 2, "context": 32, "batch_tokens": 128, "threads": 1, "evaluate_every": 4, "steps": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run on text: two layers, checkpoints of steps 4 and 8."""
    place = tmp_path_factory.mktemp("text")
    (place / "poems.txt").write_text(
        "".join(f"{POEM}举头望明月，低头思故乡。{number}\n" for number in range(60)), encoding="utf-8"
    )
    return mingyue.train(sources=[str(place / "poems.txt")], out=str(place / "run"), depth=2, keep=3, **TINY)


@pytest.fixture(scope="module")
def pair_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run on pairs: letters, and the same backwards."""
    place, draw = tmp_path_factory.mktemp("pairs"), random.Random(1)
    lines = ["".join(draw.choices("abcdef", k=draw.randint(1, 9))) for _ in range(200)]
    for name, side in (("a", lines), ("b", [line[::-1] for line in lines])):
        (place / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    return mingyue.train(
        source=str(place / "a"), target=str(place / "b"), out=str(place / "run"), n_layers=2, n_encoder_layers=1,
        bleu_lines=0, tokenizer="char", keep=3, **TINY,
    )  # fmt: skip


# --- what is opened ---------------------------------------------------------------------------------------------------


def test_a_folder_a_bundle_and_a_loaded_model_are_the_same_to_look_at(run: RunResult) -> None:
    of_folder = mingyue.inspect(run.folder, POEM).run()
    assert torch.equal(of_folder, mingyue.inspect(str(run.model_folder), POEM).run())
    assert torch.equal(of_folder, mingyue.inspect(mingyue.load(run.folder), POEM).run())


def test_logits_are_those_of_the_model_in_use(run: RunResult) -> None:
    assert torch.equal(mingyue.inspect(run.folder, POEM).run(), mingyue.load(run.folder).logits(POEM))


def test_the_logits_of_a_pair_give_the_loss_that_the_translator_tells(pair_run: RunResult) -> None:
    looked = mingyue.inspect(pair_run.folder, "abc", target="cba")
    nats = torch.nn.functional.cross_entropy(looked.run(), looked.reading.targets_T, reduction="sum")
    assert nats.item() == pytest.approx(mingyue.load_translator(pair_run.folder).loss(["abc"], ["cba"]).nats, abs=1e-4)


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_step_of_a_run_is_that_checkpoint(run: RunResult, pair_run: RunResult, of_pairs: bool) -> None:
    folder = (pair_run if of_pairs else run).folder
    weights = Checkpoints(folder / "checkpoints").load(4).model
    looked = mingyue.inspect(folder, "abc", target="cba", step=4) if of_pairs else mingyue.inspect(folder, POEM, step=4)
    for name, value in looked.subject.module.state_dict().items():
        assert torch.equal(value, weights[name]), name
    other = mingyue.inspect(folder, "abc", target="cba") if of_pairs else mingyue.inspect(folder, POEM)
    assert not torch.equal(looked.run(), other.run())


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_step_that_is_not_kept_is_answered_with_those_that_are(
    run: RunResult, pair_run: RunResult, of_pairs: bool
) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of step 5: there are those of steps 4, 8"):
        mingyue.inspect((pair_run if of_pairs else run).folder, "a", step=5)


def test_only_a_run_has_steps(run: RunResult, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not the folder of a run"):
        mingyue.inspect(run.model_folder, POEM, step=4)
    with pytest.raises(BundleError, match="does not exist"):
        mingyue.inspect(tmp_path / "nowhere", POEM, step=4)
    with pytest.raises(SettingsError, match="step"):
        mingyue.inspect(mingyue.load(run.folder), POEM, step=4)
    with pytest.raises(SettingsError, match="device, threads"):
        mingyue.inspect(mingyue.load(run.folder), POEM, device="cpu", threads=1)


def test_whoever_does_not_look_inside_does_not_wait_for_the_views() -> None:
    code = (
        "import sys, mingyue.api; rooms = ('mingyue.inspection.charts', 'mingyue.inspection.lens'); "
        "print([name for name in sys.modules if name.startswith(rooms)])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert found.stdout.strip() == "[]"


# --- what is read -----------------------------------------------------------------------------------------------------


def test_without_a_target_the_own_translation_is_looked_at_and_said_to_be(pair_run: RunResult) -> None:
    looked = mingyue.inspect(pair_run.folder, "abc")
    own = mingyue.load_translator(pair_run.folder).translate("abc", beam=4)[0][0].text
    assert (looked.reading.source, looked.reading.text) == ("abc", own)
    for told in (looked.remarks[0].en, looked.remarks[0].zh):
        assert repr(own) in told
    assert "own translation (beam 4" in looked.remarks[0].en
    given = mingyue.inspect(pair_run.folder, "abc", target="cba")
    assert given.reading.text == "cba"
    assert given.remarks == []


def test_a_pair_may_be_given_by_any_names_that_say_the_same(pair_run: RunResult) -> None:
    model = mingyue.load_translator(pair_run.folder)
    one = mingyue.inspect(model, "abc", target="cba").reading
    for other in (
        mingyue.inspect(model, source="abc", target="cba").reading,
        mingyue.inspect(model, "cba", source="abc").reading,
    ):
        assert (other.source, other.text) == (one.source, one.text)
    with pytest.raises(SettingsError, match="three texts"):
        mingyue.inspect(model, "a", source="b", target="c")


def test_a_model_of_one_text_has_no_source(run: RunResult) -> None:
    for given in ({"source": "a"}, {"target": "a"}):
        with pytest.raises(SettingsError, match="no source and no target"):
            mingyue.inspect(run.folder, POEM, **given)


def test_what_cannot_be_read_is_said_with_both_numbers(run: RunResult, pair_run: RunResult) -> None:
    with pytest.raises(GenerationError, match="no text to look at"):
        mingyue.inspect(run.folder).run()
    with pytest.raises(GenerationError, match="no text to look at"):
        mingyue.inspect(pair_run.folder, target="a").run()
    with pytest.raises(GenerationError, match="empty"):
        mingyue.inspect(run.folder, "").run()
    with pytest.raises(GenerationError, match=r"40 tokens .* holds 32"):
        mingyue.inspect(run.folder, "月" * 40).run()
    with pytest.raises(GenerationError, match=r"source text has 41 tokens .* holds 32"):
        mingyue.inspect(pair_run.folder, "a" * 40, target="b").run()


# --- intervening ------------------------------------------------------------------------------------------------------


def test_an_edit_changes_what_comes_after_it_and_nothing_before(run: RunResult) -> None:
    looked = mingyue.inspect(run.folder, POEM)

    def silence_place_5(x_BTM: torch.Tensor) -> torch.Tensor:
        x_BTM = x_BTM.clone()
        x_BTM[:, 5] = 0
        return x_BTM

    before, after = looked.run(), looked.run({"blocks.0.output": silence_place_5})
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5], after[5])
    assert torch.equal(looked.run(), before), "nothing stays in the model"


def test_captured_values_are_named_and_rows_of_weights_sum_to_1(run: RunResult) -> None:
    found = mingyue.inspect(run.folder, POEM).capture(["blocks.*.attention.weights"])
    assert set(found.values) == {"blocks.0.attention.weights", "blocks.1.attention.weights"}
    for weights_HTS in found.values.values():
        assert weights_HTS.shape == (2, len(POEM), len(POEM))
        assert torch.allclose(weights_HTS.sum(dim=-1), torch.tensor(1.0), atol=1e-6)
        assert not weights_HTS.triu(1).any()
