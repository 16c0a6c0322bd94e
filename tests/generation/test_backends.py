"""The onnxruntime back end computes what the model computes, and is used only where it does."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mingyue
from mingyue.bundle import save_bundle
from mingyue.config import GenerateSettings, TranslateSettings
from mingyue.errors import SettingsError
from mingyue.generation import Engine, Request, TokenRules, TorchBackend, finished, stream_prompts, translate_ids
from mingyue.generation.backends import check_decoder, check_graph, is_plain, missing_package
from mingyue.text import train_char

if missing_package() is not None:
    pytest.skip("onnxruntime is not installed", allow_module_level=True)
pytest.importorskip("onnx")

from mingyue.generation.onnx_backend import OnnxBackend, OnnxModel
from mingyue.generation.onnx_decoding import OnnxDecoder
from mingyue.graphs import GraphError, kept_graph
from mingyue.graphs.decoder import decoder_graph
from mingyue.graphs.encoder_decoder import decoder_step_graph, encoder_graph
from mingyue.graphs.weights import BLOCK, quantised

GREEDY = GenerateSettings(temperature=0, max_new_tokens=40)
PARTS = {
    "relu2": {"feedforward": "relu2", "embedding_scale": True, "tied_output": False},
    "silu": {"feedforward": "silu", "d_head": 8, "bias_output": True, "bias_feedforward": True},
    "gelu-tanh": {"feedforward": "gelu-tanh", "d_head": 16, "n_kv_heads": 1, "bias_qkv": True},
    "wide heads": {"d_head": 32, "qk_norm": True, "window": 4},
    "scaled": {"rotary_scaling": {"kind": "linear", "factor": 2.0}, "norm": "layer"},
    "post": {"norm_placement": "post", "n_layers": 3},
    "tiny context": {"context": 1},
    "two": {"context": 2, "positions": "learned"},
}


def tensors(model) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def opened(model, kind: str = "fp32") -> OnnxModel:
    graph = decoder_graph(model, kind).SerializeToString()
    return OnnxModel(model.config, graph, tensors(model), threads=1, kind=kind)


def test_every_kind_of_model_gives_the_logits_of_the_torch_model(lively, kind):
    assert check_graph(opened(lively(kind)), lively(kind)) < 5e-5


@pytest.mark.parametrize("parts", PARTS)
def test_every_choice_of_parts_too(lively, parts):
    model = lively(**PARTS[parts])
    assert check_graph(opened(model), model) < 5e-5


def test_texts_are_those_of_the_plain_rules_past_the_context(lively, letters, plainly, same_text, kind):
    model, tokenizer = lively(kind), letters()
    rules = TokenRules(tokenizer, model.config.vocab_size, starts_with_bos=True)
    prompts = ["hijk", "a", "", "abcabcabcabcabcabcabcabc", "mnopqrst"]
    backend = OnnxBackend(opened(model))
    for asked in (GREEDY, GREEDY.replace(prefill_chunk=5, batch_size=2), GREEDY.replace(temperature=1.3, seed=3)):
        for result in finished(stream_prompts(backend, rules, prompts, asked)):
            ids = rules.prompt_ids(result.prompt)
            expected = plainly(model, tokenizer, ids, asked, result.prompt_index)
            same_text.check(model, tokenizer, ids, expected, result.ids, asked, index=result.prompt_index)
    assert same_text.ties <= 1


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_no_bit_of_a_text_depends_on_who_shares_its_batch(lively, letters, weights):
    """200 random mixes: ids and log-probabilities are equal to the last bit, greedy and seeded, near ties or not."""
    draw, tokenizer = random.Random(2), letters()
    models = [lively(kind, context=32, d_model=72, d_ff=96) for kind in ("rotary", "learned", "rotary, window")]
    graphs = [opened(model, weights) for model in models]
    rules = TokenRules(tokenizer, models[0].config.vocab_size, starts_with_bos=True)
    requests = [
        Request(
            prompt,
            tuple(rules.prompt_ids(prompt)),
            GenerateSettings(
                temperature=draw.choice([0.0, 1.0]), seed=number, max_new_tokens=draw.randrange(1, 50), prefill_chunk=8
            ),
            top_logprobs=2,
        )
        for number, prompt in enumerate(["hijk", "a", "", "abcabcabcabcabcabcabcabc", "abcabcabcdd", "mnopqrst"] * 2)
    ]

    def run(graph: OnnxModel, asked: list[Request], *, max_rows: int, join: float) -> dict[int, list[tuple]]:
        engine, left, found = Engine(OnnxBackend(graph), max_rows=max_rows), list(asked), {}
        while left or not engine.idle:
            if left and (engine.idle or draw.random() < join):
                engine.add([rules.sequence(left.pop())])
            for sequence, event in engine.step():
                seed = sequence.request.settings.seed
                found.setdefault(seed, []).append((event.token, event.logprob, event.top))
        return found

    alone = [
        {seed: events for one in requests for seed, events in run(graph, [one], max_rows=1, join=1.0).items()}
        for graph in graphs
    ]
    for number in range(200):
        mix = draw.sample(requests, draw.randrange(2, 8))
        found = run(graphs[number % 3], mix, max_rows=draw.randrange(1, 7), join=draw.choice([0.2, 0.6, 1.0]))
        assert found == {seed: alone[number % 3][seed] for seed in found}


def test_a_graph_that_computes_something_else_is_refused(lively):
    """Each of the weights that a graph reads, changed a little; and weights that are NaN."""
    model = lively("learned")
    graph = decoder_graph(model).SerializeToString()
    for name in tensors(model):
        changed = {key: array.copy() for key, array in tensors(model).items()}
        changed[name] += 0.05 * np.random.default_rng(0).standard_normal(changed[name].shape).astype(np.float32)
        with pytest.raises(GraphError, match="differs by"):
            check_graph(OnnxModel(model.config, graph, changed, threads=1), model)
    changed["final_norm.weight"][:] = np.nan
    with pytest.raises(GraphError, match="differs by nan"):
        check_graph(OnnxModel(model.config, graph, changed, threads=1), model)
    with pytest.raises(GraphError, match="cannot open"):
        OnnxModel(model.config, graph[:-20], tensors(model), threads=1)


def test_int8_rounds_each_weight_to_the_nearest_of_its_block(lively):
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((5, BLOCK + 7)).astype(np.float32)
    weight[2] = 0
    numbers, scales = quantised(weight)
    assert numbers.shape == (5, 2, BLOCK) and numbers.dtype == np.uint8 and scales.shape == (10,)
    values = (numbers.astype(np.float32) - 128) * scales.reshape(5, 2, 1)
    values = values.reshape(5, -1)
    assert (values[:, BLOCK + 7 :] == 0).all() and (values[2] == 0).all()
    errors = np.abs(values[:, : BLOCK + 7] - weight)
    assert (errors <= np.repeat(scales.reshape(5, 2), [BLOCK, 7], axis=1) * 0.5001).all()
    model = lively("rotary", d_head=16, d_model=64, d_ff=96)
    assert 1e-6 < check_graph(opened(model, "int8"), model) < 1.0


@pytest.fixture
def folder(tmp_path, lively):
    tokenizer = train_char(["abcdefghij"])
    model = lively("rotary", vocab_size=tokenizer.vocab_size)
    save_bundle(tmp_path / "model", model.config, model.state_dict(), tokenizer, {"starts_with_bos": True})
    return tmp_path / "model"


def test_the_second_load_takes_the_graph_that_was_checked(folder, monkeypatch):
    first = mingyue.load(folder)
    text = first.generate("abc", max_new_tokens=12, seed=1)[0]
    assert (first.backend, first.why_torch) == ("onnxruntime", None)
    second = mingyue.load(folder)
    assert not second._bundle.loaded
    assert second.generate("abc", max_new_tokens=12, seed=1)[0] == text
    assert not second._bundle.loaded  # nor was the PyTorch model needed
    assert mingyue.load(folder, backend="torch").generate("abc", max_new_tokens=12, seed=1)[0].ids == text.ids
    assert mingyue.load(folder, backend="torch").backend == "torch"
    assert [twin.generate("abc", max_new_tokens=12, seed=1)[0] for twin in (pickle.loads(pickle.dumps(second)),)] == [
        text
    ]
    assert torch.equal(second.module.embedding.weight, first.module.embedding.weight)


def test_the_torch_module_can_be_made_in_any_mode_of_the_caller(folder):
    mingyue.load(folder).generate("abc", max_new_tokens=1)
    model = mingyue.load(folder)
    with torch.inference_mode():
        module = model.module
        assert model.generate("abc", max_new_tokens=3)[0].ids
    module(torch.tensor([[3, 4]])).sum().backward()
    assert module.embedding.weight.grad is not None


def test_a_damaged_file_is_an_error_whichever_way_it_is_loaded(folder):
    mingyue.load(folder).generate("abc", max_new_tokens=1)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")
    with pytest.raises(mingyue.MingyueError, match="is damaged: its SHA-256"):
        mingyue.load(folder)


def test_changed_weights_and_hooks_are_noticed(folder):
    """A person may go on training the module, or put a hook into it: the text follows."""
    for warm in range(2):
        model = mingyue.load(folder)
        asked = {"max_new_tokens": 12, "temperature": 0}
        before = model.generate("abc", **asked)[0].ids
        with torch.no_grad():
            model.module.embedding.weight.mul_(-1.0)
        changed = model.generate("abc", **asked)[0].ids
        assert model.backend == "onnxruntime"
        assert changed != before, warm
        backend = TorchBackend(model.module)
        assert finished(stream_prompts(backend, model.rules, "abc", GenerateSettings(**asked)))[0].ids == changed
        twin = copy.deepcopy(model)
        handle = twin.module.final_norm.register_forward_hook(lambda *_: torch.zeros(1, 1, 24))
        assert not is_plain(twin.module)
        twin._state = None
        assert twin.generate("abc", **asked)[0].ids != changed
        assert (twin.backend, twin.why_torch) == ("torch", "the model has hooks or parts of other libraries")
        handle.remove()


def test_what_cannot_be_is_refused_with_the_reason(folder, monkeypatch):
    with pytest.raises(SettingsError, match="'tensorrt' is not one of torch, onnxruntime"):
        mingyue.load(folder, backend="tensorrt")
    with pytest.raises(SettingsError, match="'int4' is not one of fp32, int8"):
        mingyue.load(folder, weights="int4")
    with pytest.raises(SettingsError, match="no int8 weights"):
        mingyue.load(folder, backend="torch", weights="int8")
    monkeypatch.setattr("mingyue.api.loaded_model.missing_package", lambda: "onnxruntime is not installed")
    monkeypatch.setattr("mingyue.api.loading.missing_package", lambda: "onnxruntime is not installed")
    assert mingyue.load(folder).why_torch == "onnxruntime is not installed"
    for asked in ({"backend": "onnxruntime"}, {"weights": "int8"}):
        with pytest.raises(SettingsError, match="onnxruntime is not installed"):
            mingyue.load(folder, **asked).generate("a")


def test_a_cache_folder_that_cannot_be_written_costs_only_time(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "file"))
    assert kept_graph("0" * 32) is None
    for _ in range(2):
        model = mingyue.load(folder)
        assert model.generate("abc", max_new_tokens=3)[0].ids
        assert model.backend == "onnxruntime"


PAIR_PARTS = {
    "Marian": {
        "positions": "sinusoidal",
        "sinusoid_layout": "halves",
        "output_bias": True,
        "tied_output": True,
        "source_vocab_size": 30,
        "embedding_scale": True,
        "bias_output": True,
    },
    "QK-norm, LayerNorm": {"qk_norm": True, "norm": "layer", "d_head": 16, "n_kv_heads": 4, "tied_output": True},
    "one layer, short": {"n_layers": 1, "context": 2},
}


def decoder_of(model, kind: str = "fp32") -> OnnxDecoder:
    graphs = [build(model, kind).SerializeToString() for build in (encoder_graph, decoder_step_graph)]
    return OnnxDecoder(model.config, *graphs, tensors(model), threads=1, kind=kind)


def test_every_kind_of_encoder_decoder_model_gives_the_logits_of_the_torch_model(lively_pair, pair_kind):
    model = lively_pair(pair_kind)
    assert check_decoder(decoder_of(model), model) < 5e-5
    assert check_decoder(decoder_of(model, "int8"), model) > 1e-6


@pytest.mark.parametrize("parts", PAIR_PARTS)
def test_every_choice_of_parts_of_an_encoder_decoder_model_too(lively_pair, parts):
    model = lively_pair(**PAIR_PARTS[parts])
    assert check_decoder(decoder_of(model), model) < 5e-5


@pytest.mark.parametrize(
    "fields",
    [{"beam": 4, "n_best": 2}, {"beam": 1}, {"beam": 3, "batch_size": 2}, {"sample": True, "n_best": 3}],
    ids=str,
)
def test_translations_are_those_of_the_torch_model(lively_pair, pair_kind, fields):
    model, draw = lively_pair(pair_kind), random.Random(3)
    decoder = decoder_of(model)
    sources = [[*(draw.randrange(3, 23) for _ in range(length)), 2] for length in (3, 9, 1, 5, 7, 20)]
    asked, marks = TranslateSettings(**fields), {"bos_id": 1, "eos_id": 2, "pad_id": 0}
    expected = translate_ids(model, sources, asked, **marks)
    found = translate_ids(model, sources, asked, **marks, decoder=decoder)
    pairs = [
        (mine, theirs)
        for best, others in zip(found, expected, strict=True)
        for mine, theirs in zip(best, others, strict=True)
    ]
    assert [mine.ids for mine, _ in pairs] == [theirs.ids for _, theirs in pairs]
    assert [mine.log_prob for mine, _ in pairs] == pytest.approx([theirs.log_prob for _, theirs in pairs], abs=1e-3)


def test_a_translator_uses_it_and_says_so(tmp_path, lively_pair):
    tokenizer = train_char(["abcdefghij"])
    model = lively_pair(vocab_size=tokenizer.vocab_size)
    save_bundle(tmp_path / "model", model.config, model.state_dict(), tokenizer, {})
    lines = ["abc", "", "jih gfe"]
    expected = mingyue.load_translator(tmp_path / "model", backend="torch").translate(lines)
    for _ in range(2):
        translator = mingyue.load_translator(tmp_path / "model")
        assert translator.translate(lines) != []
        assert [best[0].text for best in translator.translate(lines)] == [best[0].text for best in expected]
        assert (translator.backend, translator.why_torch) == ("onnxruntime", None)
        assert pickle.loads(pickle.dumps(translator)).translate(lines)[0][0].text == expected[0][0].text
    quick = mingyue.load_translator(tmp_path / "model", weights="int8")
    assert quick.translate(lines)[1][0].text == ""
    pytest.importorskip("sacrebleu")
    exact = mingyue.load_translator(tmp_path / "model").evaluate(["abc"], ["cba"])
    assert quick.evaluate(["abc"], ["cba"]).loss == exact.loss
    assert any("loss that of the fp32 weights" in note for note in quick.notes)


def test_int8_costs_what_its_score_says(folder):
    """`score` is of the weights that were asked for, in windows past the context too."""
    text = "abcdefghij" * 5
    exact, torch_score = (mingyue.load(folder, backend=one).score(text) for one in ("onnxruntime", "torch"))
    assert exact.total == pytest.approx(torch_score.total, abs=1e-3)
    assert [one.logprob for one in exact.tokens] == pytest.approx([one.logprob for one in torch_score.tokens], abs=1e-4)
    assert exact.windows == torch_score.windows > 1
    rounded = mingyue.load(folder, weights="int8").score(text)
    assert rounded.scored == exact.scored
    assert 1e-6 < abs(rounded.total - exact.total) < 0.05 * abs(exact.total)


QUIET = """
import os, sys
before = dict(os.environ)
from mingyue.generation.backends import missing_package
assert missing_package() is None and "onnxruntime" in sys.modules
assert dict(os.environ) == before
import mingyue
assert mingyue.load(sys.argv[1]).generate("abc", max_new_tokens=3)[0].ids
"""


def test_onnxruntime_sends_and_writes_nothing_of_its_own(folder, tmp_path):
    """Its telemetry puts a device id and a database into the cache folder when it is imported."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", QUIET, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {
        path.relative_to(tmp_path).parts[:2] for name in ("cache", "home") for path in (tmp_path / name).rglob("*")
    }
    assert found <= {("cache", "mingyue")}


def test_one_module_imports_onnxruntime():
    """The others ask it for the package, so that no path forgets to switch telemetry off."""
    found = []
    for path in Path(mingyue.__file__).parent.rglob("*.py"):
        if re.search(r"^\s*(import|from) onnxruntime", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.append(path.name)
    assert found == ["quiet.py"]
