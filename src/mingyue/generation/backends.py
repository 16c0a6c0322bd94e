"""Which back end generates, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from mingyue.config import ModelConfig
from mingyue.errors import SettingsError
from mingyue.generation.backend import Backend
from mingyue.graphs.quiet import import_onnxruntime
from mingyue.words import tr

if TYPE_CHECKING:
    from torch import nn

    from mingyue.config import EncoderDecoderConfig
    from mingyue.generation.decoding import Decoder
    from mingyue.generation.onnx_backend import OnnxModel
    from mingyue.generation.onnx_decoding import OnnxDecoder
    from mingyue.graphs import Array, WeightKind
    from mingyue.models import DecoderOnly, EncoderDecoder

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KNOWN = ("mingyue.", "torch.nn.modules.")

BackendKind = Literal["torch", "onnxruntime"]
WEIGHT_KINDS: tuple[str, ...] = ("fp32", "int8")

LIMIT = 1e-4
"""Largest difference of a logit of the graph from that of the PyTorch model, for fp32 weights."""
_ROUNDING = 2.0**-21  # of a logit: some models have logits of thousands, whose last bits are larger than the limit
_INT8_LIMIT = 0.1  # of the spread of the logits
_CHECKED_TOKENS = 48


def weights_state(model: nn.Module) -> tuple[object, ...]:
    """Changes when a weight of the model is replaced, or written to in place."""
    return tuple(
        (name, weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        for name, weight in model.named_parameters()
    )


def is_plain(model: nn.Module) -> bool:
    """Whether the model computes what its config says: no hooks, and no parts of other libraries (adapters)."""
    return all(
        type(part).__module__.startswith(_KNOWN) and not any(getattr(part, hooks) for hooks in _HOOKS)
        for part in model.modules()
    )


def missing_package() -> str | None:
    """Why onnxruntime cannot be used at all; None if it can."""
    try:
        import_onnxruntime()
    except ImportError as error:
        return tr("{name} is not installed", error.name or "onnxruntime")
    return None


def check_choice(backend: str | None, weights: str) -> None:
    """Raises `SettingsError` for a back end or weights that do not exist, or do not go together."""
    if backend is not None and backend not in get_args(BackendKind):
        raise SettingsError(tr("backend {backend!r} is not one of {known}", backend, ", ".join(get_args(BackendKind))))
    if weights not in WEIGHT_KINDS:
        raise SettingsError(tr("weights {weights!r} is not one of {known}", weights, ", ".join(WEIGHT_KINDS)))
    if weights == "int8" and backend == "torch":
        raise SettingsError(
            tr("the torch back end has no int8 weights"), advice=tr("Use --backend onnxruntime, or --weights fp32.")
        )


def onnx_model(
    config: ModelConfig,
    *,
    kind: WeightKind,
    threads: int,
    sha256: str | None,
    arrays: Callable[[], Mapping[str, Array]],
    module: Callable[[], DecoderOnly],
) -> OnnxModel:
    """The model opened in onnxruntime.

    A graph that was checked with these weights (`sha256`) is taken from the cache; otherwise it is made and checked:
    `module` is called then only. Raises `GraphError`, and `ImportError` where a package is missing.
    """
    ort = import_onnxruntime()
    from mingyue.generation.onnx_backend import OnnxModel
    from mingyue.graphs import graph_key, keep_graph

    if sha256 is not None and (kept := kept_onnx_model(config, arrays(), kind=kind, threads=threads, sha256=sha256)):
        return kept
    from mingyue.graphs.decoder import decoder_graph

    reference = module()
    graph = decoder_graph(reference, kind).SerializeToString()
    opened = OnnxModel(config, graph, arrays(), threads=threads, kind=kind)
    check_graph(opened, reference)
    if sha256 is not None:
        keep_graph(graph_key(config, sha256, kind, ort.__version__), graph)
    return opened


def kept_onnx_model(
    config: ModelConfig, arrays: Mapping[str, Array], *, kind: WeightKind, threads: int, sha256: str
) -> OnnxModel | None:
    """The model on the graph that was checked with these weights; None if there is none. Raises `GraphError`."""
    ort = import_onnxruntime()
    from mingyue.generation.onnx_backend import OnnxModel
    from mingyue.graphs import graph_key, kept_graph

    graph = kept_graph(graph_key(config, sha256, kind, ort.__version__))
    return None if graph is None else OnnxModel(config, graph, arrays, threads=threads, kind=kind)


def onnx_decoder(model: EncoderDecoder, *, kind: WeightKind, threads: int, sha256: str | None) -> OnnxDecoder:
    """An encoder-decoder model opened in onnxruntime; arguments and errors as in `onnx_model`."""
    ort = import_onnxruntime()
    from mingyue.generation.onnx_decoding import OnnxDecoder
    from mingyue.graphs import graph_key, keep_graph, kept_graph

    tensors = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    keys: list[str] = []
    if sha256 is not None:
        keys = [graph_key(model.config, sha256, f"{kind}, {part}", ort.__version__) for part in ("encoder", "step")]
    graphs = [kept_graph(key) for key in keys]
    if graphs and graphs[0] is not None and graphs[1] is not None:
        return OnnxDecoder(model.config, graphs[0], graphs[1], tensors, threads=threads, kind=kind)
    from mingyue.graphs.encoder_decoder import decoder_step_graph, encoder_graph

    made = [build(model, kind).SerializeToString() for build in (encoder_graph, decoder_step_graph)]
    opened = OnnxDecoder(model.config, made[0], made[1], tensors, threads=threads, kind=kind)
    check_decoder(opened, model)
    for key, graph in zip(keys, made, strict=False):
        keep_graph(key, graph)
    return opened


def check_decoder(opened: OnnxDecoder, model: EncoderDecoder) -> float:
    """As `check_graph`: source texts of three lengths, and steps between which the rows are reordered and dropped."""
    from mingyue.generation.decoding import TorchDecoder

    found = [_trial_of_pairs(decoder, opened.config) for decoder in (opened, TorchDecoder(model))]
    return _compared(found[0], found[1], opened.kind)


def _trial_of_pairs(decoder: Decoder, config: EncoderDecoderConfig) -> list[Array]:
    import torch

    from mingyue.generation.allowed import AllowedTokens
    from mingyue.generation.hypotheses import SourceBatch

    draw = np.random.default_rng(0)
    n_ids = config.source_vocab_size or config.vocab_size
    lengths = [max(1, min(config.context, length)) for length in (11, 5, 2)]
    batch = SourceBatch.of(
        [draw.integers(0, n_ids, length).tolist() for length in lengths],
        [config.context] * len(lengths),
        bos_id=0,
        eos_id=0,
        pad_id=0,
        allowed=AllowedTokens([]),
        device=torch.device("cpu"),
    )
    orders = [[0, 0, 1, 1, 2, 2], [1, 0, 3, 2, 4, 4], [0, 1, 4, 5]]
    with torch.inference_mode():
        decoding, n_rows = decoder.start(batch, 1, config.context), len(lengths)
        found: list[Array] = []
        for step in range(min(config.context, 4)):
            ids_R = torch.from_numpy(draw.integers(0, config.vocab_size, n_rows))
            found.append(decoding.step(ids_R).numpy().copy())
            if step < len(orders):
                n_rows = len(orders[step])
                decoding.keep_rows(orders[step])
                if n_rows < len(orders[step - 1]) and step:
                    decoding.keep_texts([0, 2])
    return found


def check_graph(opened: OnnxModel, model: DecoderOnly) -> float:
    """The largest difference of a logit from the PyTorch model on fixed inputs.

    The inputs are a prompt in one piece, the same in two pieces, and a step of three rows of different length. Raises
    `GraphError` where the difference is above the limit.
    """
    from mingyue.generation.onnx_backend import OnnxBackend
    from mingyue.generation.torch_backend import TorchBackend

    config = opened.config
    length = min(config.context, _CHECKED_TOKENS)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, length).tolist()
    found = [_trial(backend, ids) for backend in (OnnxBackend(opened), TorchBackend(model))]
    return _compared(found[0], found[1], opened.kind)


def _compared(mine: list[Array], theirs: list[Array], kind: WeightKind) -> float:
    """The largest difference, less the rounding of large logits. Raises `GraphError` where it is above the limit."""
    from mingyue.graphs import GraphError

    largest = max(
        float((np.abs(one - other) - _ROUNDING * np.abs(other)).max()) for one, other in zip(mine, theirs, strict=True)
    )
    spread = max(float(logits.max() - logits.min()) for logits in theirs)
    limit = LIMIT if kind == "fp32" else max(LIMIT, _INT8_LIMIT * spread)
    if not largest <= limit:  # NaN too
        raise GraphError(
            tr(
                "a logit of the ONNX graph differs by {largest:.1e} from that of the model; the limit is {limit:.1e}",
                largest,
                limit,
            )
        )
    return largest


def _trial(backend: Backend, ids: list[int]) -> list[Array]:
    """Logits of the inputs of the check."""
    n, half = len(ids), len(ids) // 2
    backend.reserve(3, n)
    whole = backend.read(0, 0, ids, logits=True)
    assert whole is not None
    found = [whole.copy()]
    if n > 2:
        backend.read(1, 0, ids[:half])
        rest = backend.read(1, half, ids[half:], logits=True)
        assert rest is not None
        found.append(rest.copy())
        backend.copy(1, 2, half)
        found.append(backend.step([n - 1, half, half], [ids[-1], ids[0], ids[1]]).copy())
    return found
