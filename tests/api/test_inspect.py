"""Looking inside from Python: any model, any step of a run, and numbers that are those of the model in use."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mingyue
from mingyue.api import RunResult
from mingyue.errors import BundleError, CheckpointError, DataError, GenerationError, SettingsError
from mingyue.inspection.interventions import switch_off
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
    with pytest.raises(CheckpointError, match="no checkpoint of step 5: the steps kept are 4, 8"):
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


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_run_that_has_not_ended_says_so_and_which_step_is_shown(
    run: RunResult, pair_run: RunResult, of_pairs: bool, tmp_path: Path
) -> None:
    folder = (pair_run if of_pairs else run).folder
    ended = mingyue.inspect(folder, "a")
    assert ended.remarks == []
    assert ended.model.checkpoint is None
    live = tmp_path / "live"
    shutil.copytree(folder, live, ignore=shutil.ignore_patterns("model"))
    looked = mingyue.inspect(live, "a", target="b" if of_pairs else None)
    loaded = (mingyue.load_translator if of_pairs else mingyue.load)(folder, step=4)
    assert mingyue.inspect(loaded).remarks[0].en == "The model as it was after 4 steps."
    assert looked.model.checkpoint in (4, 8)
    assert f"has not ended: this is its model after {looked.model.checkpoint} steps" in looked.remarks[0].en
    assert f"训练 {looked.model.checkpoint} 步之后" in looked.remarks[0].zh
    weights = Checkpoints(live / "checkpoints").load(looked.model.checkpoint).model
    assert all(torch.equal(value, weights[name]) for name, value in looked.subject.module.state_dict().items())


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_run_that_is_being_prepared_or_takes_its_first_steps_is_waited_for(
    run: RunResult, pair_run: RunResult, of_pairs: bool, tmp_path: Path
) -> None:
    """Not the file that is missing is told, but what is going on and what to do."""
    young = tmp_path / "young"
    young.mkdir()
    shutil.copy((pair_run if of_pairs else run).folder / "run.toml", young)
    for step in (None, 4):
        with pytest.raises(BundleError, match=r"being prepared, or was stopped before(.|\n)*Wait .* `mingyue train`"):
            mingyue.inspect(young, "a", step=step)
    with pytest.raises(BundleError, match="being prepared"):
        (mingyue.load_translator if of_pairs else mingyue.load)(young)
    shutil.copy((pair_run if of_pairs else run).folder / "plan.json", young)
    with pytest.raises(BundleError, match=r"no checkpoint yet(.|\n)*Wait"):
        mingyue.inspect(young, "a")


def test_a_prepared_text_that_is_lost_is_made_again_by_a_command_that_there_is(run: RunResult, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(run.folder, bare, ignore=shutil.ignore_patterns("model", "data"))
    with pytest.raises(DataError, match="mingyue resume"):
        mingyue.inspect(bare, "a")


def test_what_is_no_text_and_no_model_is_said_at_once(run: RunResult) -> None:
    model = mingyue.load(run.folder)
    for given in (5, ["明", "月"], b"a"):
        with pytest.raises(SettingsError, match=rf"text must be a string, not .* \({type(given).__name__}\)"):
            mingyue.inspect(model, given)
    with pytest.raises(SettingsError, match="int is neither a model"):
        mingyue.inspect(5, POEM)


def test_whoever_does_not_look_inside_does_not_wait_for_the_views() -> None:
    code = (
        "import sys, mingyue.api; rooms = ('mingyue.charts', 'mingyue.inspection.lens'); "
        "print([name for name in sys.modules if name.startswith(rooms)])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert found.stdout.strip() == "[]"


# --- what is read -----------------------------------------------------------------------------------------------------


def test_without_a_target_the_own_translation_is_looked_at_and_said_to_be(pair_run: RunResult) -> None:
    looked = mingyue.inspect(pair_run.folder, "abc")
    own = mingyue.load_translator(pair_run.folder).translate("abc", beam=4)[0][0].text
    assert (looked.reading.source, looked.reading.text) == ("abc", own)
    assert repr(own) in looked.remarks[0].en and f"“{own}”" in looked.remarks[0].zh
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
    with pytest.raises(GenerationError, match="no text to inspect"):
        mingyue.inspect(run.folder).run()
    with pytest.raises(GenerationError, match="no text to inspect"):
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


def test_edits_that_return_what_cannot_stand_there_are_named(run: RunResult) -> None:
    looked = mingyue.inspect(run.folder, POEM)
    wrong = {
        r"no tensor \(NoneType\)": lambda value: None,
        r"got \[1, 12, 32\] float32 .* returned \[1, 12, 3\]": lambda value: value[..., :3],
        "returned .* float64": lambda value: value.double(),
    }
    for told, edit in wrong.items():
        for call in (looked.run, lambda edits: looked.capture("final", edits)):
            with pytest.raises(SettingsError, match=f"edit of blocks.0.output .*{told}"):
                call({"blocks.0.output": edit})


def test_of_a_translator_switching_off_asks_which_part(pair_run: RunResult, run: RunResult) -> None:
    looked = mingyue.inspect(pair_run.folder, "abc", target="cba")
    with pytest.raises(SettingsError, match=r'part="encoder", "decoder" .* or "cross"'):
        looked.run(switch_off(layer=0, head=0))
    for part in ("encoder", "decoder", "cross"):
        assert not torch.equal(looked.run(switch_off(layer=0, head=0, part=part)), looked.run())
    with pytest.raises(SettingsError, match="neither encoder nor decoder"):
        mingyue.inspect(run.folder, POEM).run(switch_off(layer=0, head=0, part="encoder"))
