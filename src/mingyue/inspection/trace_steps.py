"""The steps that a trace shows, from the operations of a forward pass."""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from dataclasses import dataclass, replace

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.inspection.recording import Operation
from mingyue.inspection.subject import Reading
from mingyue.inspection.trace_rules import INPUT, Rule, kind_of, rule_of
from mingyue.models import TiedOutput, Transformer
from mingyue.models.size import computed_cells
from mingyue.text import Tokenizer
from mingyue.words import Words, tr

_ACTIVATIONS = {"relu": "max(0, u)", "gelu": "gelu(u)", "silu": "u · sigmoid(u)", "mul": "max(0, u)²"}
_RESHAPING = ("view", "transpose", "flatten")


@dataclass(frozen=True)
class Step:
    """One step of a forward pass."""

    name: Words
    module: str
    """Path of the module that runs it, as in `named_modules`; "" around the model."""
    symbols: tuple[str, ...]
    """Its shape in the letters of `mingyue.nn`: B, T, S, M, H, G, D, F, V; N = tokens predicted."""
    shape: tuple[int, ...]
    parameters: int
    """Parameters of the module at its first use: a shared table counts once."""
    flops: int
    """Of its matrix product (a multiply-add is 2); 0 for all else."""
    formula: str
    """[view]: the same memory in another shape; [copy]: the numbers are copied."""
    source: str
    """File, from the package on."""
    line: int
    part: str
    """As in `sizes(config).parts()`; "residual", "text" and "loss" have neither weights nor matrix products."""
    flow: int = 0
    """Number of the shape of multi-head attention that it shows, 1 to 8; 0 = none."""
    tap: str = ""
    """The tap at which its result can be captured and edited; "" = none."""
    size: float | None = None
    """Root mean square of its result; None for ids."""


def tokenizer_steps(reading: Reading) -> list[Step]:
    """The first steps, done by the tokenizers."""
    source = inspect.getsourcefile(Tokenizer.encode) or ""
    where = "mingyue" + source.rpartition("mingyue")[2].replace("\\", "/")
    line = inspect.getsourcelines(Tokenizer.encode)[1]
    step = Step(
        name=tr("text to ids"), module="", symbols=("B", "T"), shape=(1, len(reading.ids_T)),
        parameters=0, flops=0, formula="ids = encode(text)", source=where, line=line, part="text",
    )  # fmt: skip
    if reading.source_ids_S is None:
        return [step]
    name = tr("source text to ids")
    return [replace(step, name=name, symbols=("B", "S"), shape=(1, len(reading.source_ids_S))), step]


class Tracer:
    """From operations to steps, for one model and one reading."""

    def __init__(self, module: Transformer, reading: Reading) -> None:
        config = self.config = module.config
        self.of_pairs = isinstance(config, EncoderDecoderConfig)
        self.shares_table = isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is None
        self.window = config.window if isinstance(config, ModelConfig) else None
        self.modules = dict(module.named_modules())
        n_source = 0 if reading.source_ids_S is None else len(reading.source_ids_S)
        self.legend = {"B": 1, "T": len(reading.ids_T)}
        self.legend |= {"S": n_source} if self.of_pairs else {}
        self.legend |= {
            "M": config.d_model, "H": config.n_heads, "G": config.n_kv_heads, "D": config.d_head, "F": config.d_ff,
            "V": config.vocab_size, "N": len(reading.targets_T),
        }  # fmt: skip
        self._counted: set[int] = set()

    def steps(self, operations: list[Operation]) -> list[Step]:
        """The steps among the operations, in order."""
        seen: Counter[tuple[str, str, str]] = Counter()
        found: list[Step] = []
        for operation in operations:
            key = (operation.module, operation.function, operation.name)
            count, seen[key] = seen[key], seen[key] + 1
            rule = rule_of(operation, count)
            if rule is None or self._idle(operation):
                continue
            if kind_of(operation.module) == "attention.qkv":
                found.append(self._input(operation))
            found.append(self._step(operation, rule, count))
        return found

    def _idle(self, operation: Operation) -> bool:
        """Whether a step does nothing in this model: no heads share their keys."""
        return operation.name == "repeat_interleave" and self.config.n_heads == self.config.n_kv_heads

    def _input(self, operation: Operation) -> Step:
        read = replace(operation, shape=operation.input_shape, flops=0, size=float("nan"), tap="")
        return replace(self._step(read, INPUT, 0, weigh=False), module=operation.module.rpartition(".")[0])

    def _step(self, operation: Operation, rule: Rule, count: int, *, weigh: bool = True) -> Step:
        symbols = tuple(self._symbol(one, operation, count) for one in ("B", *rule.symbols.split()))
        if kind_of(operation.module) == "feedforward.inner" and self.config.feedforward == "swiglu":
            symbols = (*symbols[:-1], "2F")
        flops = operation.flops
        if self.window is not None and operation.name == "matmul":
            n_tokens = self.legend["T"]
            flops = flops // n_tokens**2 * computed_cells(n_tokens, self.window)
        return Step(
            name=rule.name,
            module=operation.module,
            symbols=symbols if operation.shape else (),
            shape=operation.shape,
            parameters=self._parameters(operation.module) if weigh else 0,
            flops=flops,
            formula=self._formula(operation, rule),
            source=operation.source,
            line=operation.line,
            part=self._part(operation),
            flow=rule.flow,
            tap=operation.tap,
            size=operation.size if math.isfinite(operation.size) else None,
        )

    def _symbol(self, symbol: str, operation: Operation, count: int) -> str:
        """The letter of the text whose positions Q or K are: S of the source, T of the target."""
        if symbol not in ("Q", "K"):
            return symbol
        module = operation.module
        if not self.of_pairs:
            return "T"
        if module.startswith("encoder.") or module == "source_embedding":
            return "S"
        if symbol == "K" and ".cross_attention" in module:
            return "S"
        # The source is embedded first: with the table of both sides, or scaled by the model itself.
        shared = self.shares_table if module == "embedding" else module == ""
        return "S" if shared and count == 0 and operation.name in ("embedding", "mul") else "T"

    def _formula(self, operation: Operation, rule: Rule) -> str:
        kind, formula = kind_of(operation.module), rule.formula
        module = self.modules.get(operation.module)
        if kind == "feedforward" and operation.name in _ACTIVATIONS and "activation" in formula:
            return f"h = {_ACTIVATIONS[operation.name]}"
        if isinstance(module, TiedOutput):
            formula = formula.replace("W", "E")
        if operation.name in _RESHAPING:
            return f"{formula} [{'copy' if operation.moves else 'view'}]".strip()
        if operation.name == "linear" and getattr(module, "bias", None) is None:
            return re.sub(r" \+ b\S*$", "", formula)
        return formula

    def _parameters(self, path: str) -> int:
        if not path or path in ("encoder", "decoder"):
            return 0
        weights = self.modules[path].parameters(recurse=False)
        new = [weight for weight in weights if id(weight) not in self._counted]
        self._counted.update(map(id, new))
        return sum(weight.numel() for weight in new)

    def _part(self, operation: Operation) -> str:
        """As `sizes(config).parts()` names it."""
        kind, function = kind_of(operation.module), operation.function
        stack = operation.module.partition(".")[0]
        prefix = f"{stack} " if stack in ("encoder", "decoder") else ""
        if function in ("text_loss", "loss_of_logits"):
            return "loss"
        if kind in ("embedding", "model"):
            return "embedding"
        if kind == "block":
            return "residual"
        if kind.endswith("_norm") and "." not in kind:
            return "norms"
        head = kind.partition(".")[0]
        if head in ("attention", "feedforward"):
            return prefix + head
        return {"cross_attention": "cross-attention", "source_embedding": tr("source embedding")}.get(head, head)
