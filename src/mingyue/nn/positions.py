"""How the position of a token enters the model. One interface, four kinds.

A position kind may add a vector to the embeddings (`add`), or rotate queries and keys (`rotation`), or do neither.
Positions are given by the caller: the number of tokens of the row before this one, whatever padding there is.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.config import RotaryScaling


class Rotation:
    """What is done to queries and keys before their dot product. This one is the identity."""

    @property
    def angles(self) -> tuple[Tensor, Tensor] | None:
        """(cosine, sine) of every pair's angle, each [B or 1, T, 1, D/2]; None for the identity."""
        return None

    def rotate(self, x_BHTD: Tensor) -> Tensor:
        """[B, H or G, T, D] → the same shape."""
        return x_BHTD


class Positions(nn.Module):
    """The interface, and the kind `none`: no information about positions."""

    def add(self, x_BTM: Tensor, positions_BT: Tensor) -> Tensor:
        """Embeddings with their positions added. `positions_BT` is [B, T] or [1, T], integers."""
        return x_BTM

    def rotation(self, positions_BT: Tensor) -> Rotation:
        """The rotation of queries and keys at these positions, the same in every layer."""
        return Rotation()


class LearnedPositions(Positions):
    """A trained vector for each position (GPT-1 to GPT-3). `table` is [context, M]."""

    def __init__(self, context: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(context, d_model))
        nn.init.normal_(self.table, std=0.02)

    def add(self, x_BTM: Tensor, positions_BT: Tensor) -> Tensor:
        """x + table[position]."""
        return x_BTM + F.embedding(positions_BT, self.table)


class SinusoidalPositions(Positions):
    """The fixed vectors of "Attention Is All You Need", section 3.5."""

    table: Tensor

    def __init__(self, context: int, d_model: int, layout: str = "interleaved") -> None:
        super().__init__()
        self.register_buffer("table", sinusoid_table(context, d_model, layout), persistent=False)

    def add(self, x_BTM: Tensor, positions_BT: Tensor) -> Tensor:
        """x + PE(position)."""
        return x_BTM + F.embedding(positions_BT, self.table).to(x_BTM.dtype)


def sinusoid_table(n_positions: int, d_model: int, layout: str = "interleaved") -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/M)), PE(pos, 2i+1) = cos(of the same angle). Returns [n_positions, M] fp32.

    An odd M ends with a sine. Layout `halves` has all sines first, then all cosines, as in some libraries.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * torch.exp(-math.log(10000.0) * even / d_model)
    sines, cosines = angles.sin(), angles.cos()[:, : d_model // 2]
    if layout == "halves":
        return torch.cat([sines, cosines], dim=1).float()
    table = torch.empty(n_positions, d_model)
    table[:, 0::2], table[:, 1::2] = sines.float(), cosines.float()
    return table


class RotaryRotation(Rotation):
    """Rotates each pair (x[i], x[i + D/2]) by the angle of its position: scores then depend on distances only."""

    def __init__(self, cosine_B1TD: Tensor, signed_sine_B1TD: Tensor) -> None:
        self.cosine_B1TD = cosine_B1TD
        self.signed_sine_B1TD = signed_sine_B1TD

    @property
    def angles(self) -> tuple[Tensor, Tensor]:
        """(cosine, sine) of every pair's angle, each [B or 1, T, 1, D/2]."""
        half = self.cosine_B1TD.shape[-1] // 2
        cosine, sine = self.cosine_B1TD[..., :half], self.signed_sine_B1TD[..., half:]
        return cosine.transpose(1, 2), sine.transpose(1, 2)

    def rotate(self, x_BHTD: Tensor) -> Tensor:
        """Rotate each pair: x[i] cos θ − x[i + D/2] sin θ, x[i + D/2] cos θ + x[i] sin θ."""
        first, second = x_BHTD.chunk(2, dim=-1)
        partner_BHTD = torch.cat([second, first], dim=-1)
        return torch.addcmul(x_BHTD * self.cosine_B1TD, partner_BHTD, self.signed_sine_B1TD)


class RotaryPositions(Positions):
    """Rotary positions (Su et al. 2021, "RoFormer"), pairs in halves. Queries and keys are rotated, values are not."""

    cosine: Tensor
    signed_sine: Tensor

    def __init__(self, context: int, d_head: int, base: float = 10000.0, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        angles = torch.arange(context, dtype=torch.float64)[:, None] * rotary_frequencies(d_head, base, scaling)
        cosine, sine = angles.cos().float(), angles.sin().float()
        self.register_buffer("cosine", torch.cat([cosine, cosine], dim=1), persistent=False)
        self.register_buffer("signed_sine", torch.cat([-sine, sine], dim=1), persistent=False)

    def rotation(self, positions_BT: Tensor) -> Rotation:
        """cos and ±sin of every pair's angle at these positions."""
        cosine_BTD, signed_sine_BTD = (F.embedding(positions_BT, table) for table in (self.cosine, self.signed_sine))
        return RotaryRotation(cosine_BTD[:, None], signed_sine_BTD[:, None])


def rotary_frequencies(d_head: int, base: float, scaling: RotaryScaling | None) -> Tensor:
    """θ_i, the angle per position of each of the D/2 pairs, fp64: base^(−2i/D), rescaled for longer contexts.

    linear: Chen et al. 2023; ntk: a larger base, `ntk_base`; llama3: low frequencies divided by the factor, high ones
    kept, a linear ramp between (Llama 3.1's published rule).
    """
    exponents = torch.arange(0, d_head, 2, dtype=torch.float64) / d_head
    if scaling is None:
        return base**-exponents
    if scaling.kind == "ntk":
        return ntk_base(base, scaling.factor, d_head) ** -exponents
    frequencies = base**-exponents
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    assert scaling.original_context is not None  # the config requires it
    turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns of each pair over the original context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def ntk_base(base: float, factor: float, d_head: int) -> float:
    """base · factor^(D/(D−2)): the fastest pair keeps its frequency, the slowest rotates `factor` times slower."""
    return base * factor ** (d_head / max(d_head - 2, 1))
