"""The weights of a model as its graph wants them: numpy arrays under the names of the model's `state_dict()`.

They are the model's own arrays, with one exception. The attention kernel takes heads whose width is a multiple of 8, of
16 with rotary positions; narrower heads are padded with zeros, which changes no score: the scale is that of the real
width, and a padded pair is rotated by the angle 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mingyue.config import EncoderDecoderConfig, PartsConfig

Array = npt.NDArray[Any]
WeightKind = Literal["fp32", "int8"]
"""Numbers of the weight matrices in products; everything else is fp32."""

BLOCK = 64
"""Weights that share a scale in int8: 64 in a row. With 128 the bits of a row would depend on the number of rows."""
_ZERO = 128  # int8 is stored as uint8


def adds_positions(config: PartsConfig) -> bool:
    """Whether positions are added to embeddings: then the graph of a decoder has an input of them."""
    return config.positions in ("learned", "sinusoidal")


def padded_head(config: PartsConfig) -> int:
    """Width of a head in the graph."""
    step = 16 if config.positions == "rotary" else 8
    return -(-config.d_head // step) * step


def graph_weights(config: PartsConfig, tensors: Mapping[str, Array], kind: WeightKind = "fp32") -> dict[str, Array]:
    """The initializers of `decoder_graph`, from the tensors of the model."""
    found = _with_padded_heads(config, tensors)
    if kind == "fp32":
        return found
    products = [name for name in found if "blocks." in name and found[name].ndim == 2]
    output = "embedding" if config.tied_output else "output"
    for name in (*products, f"{output}.weight"):
        part = name.removesuffix(".weight")
        found[f"{part}.int8"], found[f"{part}.scales"] = quantised(found[name])
        if name != "embedding.weight":
            del found[name]
    return found


def weights_of_encoder(config: EncoderDecoderConfig, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Those that `encoder_graph` reads."""
    table = "embedding.weight" if config.source_vocab_size is None else "source_embedding.weight"
    return {
        name: array
        for name, array in weights.items()
        if name.startswith("encoder.") or _makes_memory(name) or name == table
    }


def weights_of_steps(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Those that `decoder_step_graph` reads."""
    others = ("encoder.", "source_embedding.")
    return {name: array for name, array in weights.items() if not name.startswith(others) and not _makes_memory(name)}


def _makes_memory(name: str) -> bool:
    return ".cross_attention.key_" in name


def quantised(weight_OI: Array) -> tuple[Array, Array]:
    """(numbers [O, blocks, 64] as uint8 around 128, scales [O · blocks]): the largest of each block becomes ±127."""
    n_outputs, n_inputs = weight_OI.shape
    n_blocks = -(-n_inputs // BLOCK)
    blocks = np.pad(weight_OI, ((0, 0), (0, n_blocks * BLOCK - n_inputs))).reshape(n_outputs, n_blocks, BLOCK)
    scales = np.abs(blocks).max(axis=-1) / 127
    numbers = np.rint(blocks / np.where(scales == 0, 1, scales)[..., None]) + _ZERO
    return numbers.astype(np.uint8), scales.reshape(-1).astype(np.float32)


def _with_padded_heads(config: PartsConfig, tensors: Mapping[str, Array]) -> dict[str, Array]:
    found = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
    if padded_head(config) == config.d_head:
        return found
    blocks = "decoder.blocks" if isinstance(config, EncoderDecoderConfig) else "blocks"
    for layer in range(config.n_layers):
        part = f"{blocks}.{layer}.attention"
        for name in (f"{part}.qkv.weight", f"{part}.qkv.bias"):
            if name in found:
                found[name] = _padded_rows(config, found[name])
        name = f"{part}.output.weight"
        heads_MHD = found[name].reshape(config.d_model, config.n_heads, config.d_head)
        found[name] = _padded(config, heads_MHD, halves=False).reshape(config.d_model, -1)
        for name in (f"{part}.query_norm.weight", f"{part}.key_norm.weight"):
            if name in found:  # the mean of squares is over more numbers
                gain = np.sqrt(np.float32(config.d_head / padded_head(config)))
                found[name] = _padded(config, found[name], halves=config.positions == "rotary") * gain
    return found


def padded_epsilon(config: PartsConfig) -> float:
    """ε of QK-norm in the graph: the mean of squares is over the padded width."""
    return config.norm_eps * config.d_head / padded_head(config)


def padded_angles(config: PartsConfig, table_CP: Array, fill: float) -> Array:
    """A table of cosines (`fill` 1) or sines (0), [context, D/2], for the pairs of the padded head."""
    n_missing = padded_head(config) // 2 - table_CP.shape[1]
    return np.pad(table_CP, ((0, 0), (0, n_missing)), constant_values=fill).astype(np.float32)


def _padded_rows(config: PartsConfig, rows: Array) -> Array:
    """[(H + 2G)·D, …] with every head padded; queries and keys as they are rotated, values at the end."""
    rest = rows.shape[1:]
    heads = np.moveaxis(rows.reshape(-1, config.d_head, *rest), 1, -1)  # […, D]
    n_rotated = config.n_heads + config.n_kv_heads
    rotary = config.positions == "rotary"
    padded = [_padded(config, heads[:n_rotated], halves=rotary), _padded(config, heads[n_rotated:], halves=False)]
    joined = np.moveaxis(np.concatenate(padded), -1, 1)
    return np.ascontiguousarray(joined.reshape(-1, *rest))


def _padded(config: PartsConfig, heads: Array, *, halves: bool) -> Array:
    """[…, D] → […, padded D]; with `halves` each half of the pairs is padded at its own end."""
    width, wide = config.d_head, padded_head(config)
    found = np.zeros((*heads.shape[:-1], wide), dtype=np.float32)
    if halves:
        found[..., : width // 2] = heads[..., : width // 2]
        found[..., wide // 2 : wide // 2 + width // 2] = heads[..., width // 2 :]
    else:
        found[..., :width] = heads
    return found
