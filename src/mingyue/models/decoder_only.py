"""The Mini-GPT: token embeddings, positions, a stack of causal blocks, a norm, an output layer.

It maps ids to the logits of the next token at every position, P(x_{t+1} | x_1 … x_t), all positions in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from mingyue.config import ModelConfig
from mingyue.models.base import TransformerBase, decoder_plan
from mingyue.models.parts import make_block, make_final_norm, make_output, make_positions
from mingyue.nn import Attend, Block, CacheStep, Taps, tap, within


class DecoderOnly(TransformerBase[ModelConfig]):
    """A decoder-only Transformer as `config` describes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = make_positions(config)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.n_layers))
        self.final_norm = make_final_norm(config)
        self.output = make_output(config, self.embedding)

    def forward(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        attend: Attend | None = None,
        cache: CacheStep | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """ids_BT (integers) → logits_BTV. Arguments as in `hidden`."""
        x_BTM = self.hidden(ids_BT, positions_BT=positions_BT, attend=attend, cache=cache, taps=taps)
        return tap(taps, "logits", self.output(x_BTM))

    def hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        attend: Attend | None = None,
        cache: CacheStep | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """ids_BT → x_BTM, the input of the output layer.

        `attend` restricts attention further than causality and the window of the model. `positions_BT` ([B, T] or
        [1, T]) default to 0 … T−1, or to the next positions of the rows of the `cache`, to which the new tokens are
        added. Raises `ValueError` when a position is negative or not below the context, and for a cache together with
        positions or `attend`.
        """
        positions_BT, attend = decoder_plan(
            ids_BT,
            self.config.context,
            window=self.config.window,
            positions_BT=positions_BT,
            attend=attend,
            cache=cache,
        )
        x_BTM = tap(taps, "embeddings", self._embed(ids_BT, positions_BT, self.embedding, self.positions))
        rotation = self.positions.rotation(positions_BT)
        for layer, block in enumerate(self.blocks):
            x_BTM = block(x_BTM, attend, rotation, cache=cache, layer=layer, taps=within(taps, f"blocks.{layer}"))
        if cache is not None:
            cache.commit()
        return tap(taps, "final", self.final_norm(x_BTM))

    def every_block(self) -> list[Block]:
        """All blocks, in the order of a forward pass."""
        return [*cast(Iterable[Block], self.blocks)]
