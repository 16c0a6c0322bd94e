"""Settings of a training run. Each group is one section of run.toml; each field is one option of `mingyue train`.

Field names are unique over all groups, so the command line needs no prefixes. None means "chosen for you, and told".
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mingyue.config.base import Settings, nearest
from mingyue.config.model import FeedForwardKind, InitialisationKind, NormKind, PositionKind, Positive, Probability
from mingyue.config.pairs import PairSettings
from mingyue.errors import SettingsError

PresetName = Literal["modern", "speed", "gpt2", "llama", "paper-base", "paper-big", "translate-small"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]


class DataSettings(Settings):
    """Which text is read, and how it is cut."""

    sources: tuple[str, ...] = ()
    """Files, folders, globs, `-` for standard input, a known corpus by name, or hf://owner/name."""
    separator: str = "file"
    """Where documents end: file (a file is one document), blank-line, line, or any text of your own."""
    field: str | None = None
    """Key of the text in JSON lines, or column in CSV, TSV and Parquet; none = text."""
    encoding: str | None = None
    """Encoding of the files; none = UTF-8, or detected and told."""
    skip_bad: bool = False
    """Leave out records that cannot be read, count and report them, instead of stopping at the first."""
    held_out: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the text, taken from its end, that is never trained on."""
    attend_across_documents: bool = True
    """Tokens may attend to earlier documents packed into the same window."""


class TokenizerSettings(Settings):
    """How text becomes token ids."""

    tokenizer: str | None = None
    """char, bpe, byte, or the path of a tokenizer.json; none = char for text, bpe for pairs."""
    tokenizer_size: Annotated[int, Field(ge=259)] = 8192
    """Vocabulary of a bpe tokenizer (256 bytes and 3 special ids among them); for pairs 4096 where nothing is given."""
    min_count: Positive | None = None
    """char: a character seen fewer times is spelled in bytes; none = 1, but of more than 2048 characters the rarest, at
    most 0.5 % of the text together."""


class ModelSettings(Settings):
    """The model: a preset, one dial, and every size by itself."""

    preset: PresetName | None = None
    """For text: modern (Qwen3's shape; the default), speed (reaches a loss soonest), gpt2, llama. For pairs:
    translate-small (the default), paper-base, paper-big."""
    depth: Positive | None = None
    """One dial: layers, and with them width, heads and learning rates; none = chosen from speed, budget and text."""
    context: Positive | None = None
    """Most tokens that the model sees at once."""
    d_model: Positive | None = None
    """Width of the residual stream; none = 64 × depth."""
    n_layers: Positive | None = None
    """Number of blocks (of the decoder, where there are two stacks); none = depth."""
    n_encoder_layers: Positive | None = None
    """Blocks of the encoder of a model for pairs; none = as many as the decoder has."""
    n_heads: Positive | None = None
    """Query heads; none = d_model / d_head."""
    n_kv_heads: Positive | None = None
    """Key and value heads; none = as the preset has it."""
    d_head: Positive | None = None
    """Width of a head; none = 64, in narrow models 32 or 16."""
    d_ff: Positive | None = None
    """Inner width of the feed-forward part; none = as the preset has it."""
    positions: PositionKind | None = None
    """none, learned, sinusoidal or rotary; none given = as the preset has it."""
    feedforward: FeedForwardKind | None = None
    """relu, gelu, gelu-tanh, silu, relu2 or swiglu."""
    norm: NormKind | None = None
    """layer or rms."""
    norm_placement: Literal["pre", "post"] | None = None
    """Norm before each sub-layer, or after the addition as in the paper."""
    qk_norm: bool | None = None
    """RMSNorm on each head's queries and keys."""
    tied_output: bool | None = None
    """The output layer is the transposed embedding table."""
    rotary_base: PositiveFloat | None = None
    """Base of the rotary angles; none = as large as the context, at least 100 (llama and pairs: 10,000)."""
    window: Positive | None = None
    """Sliding window of attention, in tokens."""
    dropout: Probability | None = None
    """Dropout on embeddings and sub-layer outputs; none = 0."""
    attention_dropout: Probability | None = None
    """Dropout on attention weights; none = 0."""
    initialisation: InitialisationKind | None = None
    """gpt2, zero-output (blocks begin as the identity) or xavier; none = as the preset has it."""


class BudgetSettings(Settings):
    """How long to train: exactly one of the three (10 minutes if none is given)."""

    minutes: PositiveFloat | None = None
    """Minutes from the start of the program to its end, evaluation and saving included."""
    steps: Positive | None = None
    """Optimiser steps."""
    epochs: PositiveFloat | None = None
    """Passes over the training text."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in ("minutes", "steps", "epochs") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one budget, not {len(given)}: {', '.join(given)}")
        return self


class BatchSettings(Settings):
    """How many tokens go into a step."""

    batch_tokens: Positive | None = None
    """Tokens of one optimiser step, over all micro-batches and ranks."""
    micro_batch_tokens: Positive | None = None
    """Tokens of one forward and backward pass; fewer than batch_tokens means accumulation."""
    recompute: bool = False
    """Activation checkpointing: compute each block again in the backward pass instead of keeping what it computed; less
    memory, about a third more time, the same numbers."""
    chunked_loss: bool | None = None
    """Take output layer and loss in pieces, so that the logits of a whole micro-batch never exist; the same sums; none
    = from a vocabulary of 2048 on. In mixed precision it has no effect."""


class OptimiserSettings(Settings):
    """How weights move."""

    recipe: Literal["modern", "paper"] = "modern"
    """modern, or paper: Adam, its schedule with 4,000 steps of warm-up, label smoothing 0.1, the last 5 checkpoints
    averaged (sections 5.3, 5.4 and 6.1); a setting that is given by itself wins over it."""
    optimiser: Literal["muon", "adamw"] = "muon"
    """muon: matrices by Muon, embeddings, output layer, gains and biases by AdamW; adamw: everything by AdamW."""
    learning_rate: PositiveFloat | None = None
    """Peak rate of AdamW."""
    muon_learning_rate: PositiveFloat | None = None
    """Peak rate of Muon."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    """Decoupled decay of matrices; gains, biases and embeddings have none."""
    beta1: Share = 0.9
    """AdamW: decay of the first moment."""
    beta2: Share = 0.95
    """AdamW: decay of the second moment."""
    adam_eps: PositiveFloat = 1e-10
    """AdamW: added to the root of the second moment."""
    muon_momentum: Share = 0.85
    """Muon: momentum (Nesterov); 0.95 for pairs where nothing is given."""
    clip: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest global norm of the gradient; 0 = no clipping."""
    label_smoothing: Probability = 0.0
    """Share of the target probability that is spread over the vocabulary (the paper, section 5.4: 0.1); 0.1 for pairs
    where nothing is given."""


class ScheduleSettings(Settings):
    """How the learning rate runs over the steps."""

    schedule: Literal["wsd", "cosine", "paper", "constant"] = "wsd"
    """wsd (warm-up, stable, decay to 0), cosine, paper (section 5.3: d_model^-0.5 · min(step^-0.5, …)), constant."""
    warmup: Annotated[float, Field(ge=0.0)] = 0.02
    """Warm-up: a share of all steps below 1, a number of steps from 1 on."""
    decay_share: Share = 0.5
    """wsd: share of all steps in which the rate falls linearly to its end."""
    final_share: Share = 0.0
    """wsd and cosine: rate reached at the end of the last step, as a share of the peak."""


class RunSettings(Settings):
    """Where the run lives, what it keeps, what it runs on."""

    out: str | None = None
    """Run folder; none = runs/<name of the first source>."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Every random choice is a pure function of it."""
    device: str | None = None
    """cpu, cuda, mps; none = the best that is there."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    """Number format of the forward pass; none = bf16 where the device is fast in it, else fp32."""
    threads: Positive | None = None
    """CPU threads of a process; none = all cores it may use, or its share of them beside other processes of the run."""
    nproc: Positive = 1
    """Processes that train together on this machine, each with its GPU or its share of the cores; under torchrun it is
    torchrun that decides."""
    parallel: Literal["data", "sharded"] = "data"
    """What several processes divide: data (each has the whole model and a part of each batch), or sharded (weights,
    gradients and optimiser state too)."""
    restarts: Annotated[int, Field(ge=0)] = 0
    """How often the processes are started again, from the last checkpoint, after one of them died; with nproc (torchrun
    has --max-restarts)."""
    compile: bool | None = None
    """torch.compile the blocks (costs 40 s at first; pays in long runs); none = on a GPU, for text, in runs of
    5 minutes or 2,000 steps and more."""
    evaluate_every: Positive | None = None
    """Steps between evaluations on the held-out text; none = about 20 over the run."""
    evaluate_tokens: Positive | None = None
    """Held-out tokens used by evaluations during the run; none = chosen for ≤ 5 % of time. The final one uses all, with
    a budget in minutes as many as take ≤ 20 % of the time."""
    checkpoint_every: Positive | None = None
    """Steps between checkpoints; none = about once a minute."""
    keep: Positive = 2
    """Latest checkpoints kept, besides the best."""
    sample_every: Annotated[int, Field(ge=0)] | None = None
    """Evaluations between samples of text; 0 = none."""
    sample_prompt: str = ""
    """Prompt of those samples."""
    watch: str = ""
    """A text (for pairs: one to translate) whose attention and lens are kept at each checkpoint, for
    `mingyue inspect film RUN`; none = nothing is kept."""
    average_last: Positive = 1
    """At the end, average the weights of the last so many checkpoints (the paper, section 6.1); 1 = no averaging."""
    patience: Positive | None = None
    """Stop after so many evaluations without a better held-out loss; none = never."""
    tensorboard: bool = False
    """Write TensorBoard events beside metrics.jsonl (extra: track)."""
    memory_check: bool = True
    """Refuse to start what would take more memory than is free, by an estimate, and say what would fit."""
    overwrite: bool = False
    """Start anew where a run folder already exists (the old one is moved aside)."""


class TrainSettings(Settings):
    """Everything that decides a run; run.toml holds it whole."""

    data: DataSettings = DataSettings()
    pairs: PairSettings = PairSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    batch: BatchSettings = BatchSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    run: RunSettings = RunSettings()

    @classmethod
    def from_flat(cls, source: str = "the arguments", /, **flat: object) -> Self:
        """Settings from names without groups, as the command line and `mingyue.train` give them.

        `source` says in errors where they came from. Raises `SettingsError` for a name that no group has, with the
        nearest one that exists.
        """
        return cls().with_flat(source, **flat)

    def with_flat(self, source: str = "the arguments", /, **flat: object) -> Self:
        """A copy with the named fields changed, whatever group they are in."""
        groups = self.model_dump(exclude_unset=True)  # what was never given stays so: a recipe may still decide it
        owner = {name: group for group in type(self).model_fields for name in type(getattr(self, group)).model_fields}
        for name, value in flat.items():
            if name not in owner:
                guess = nearest(name, owner)
                hint = f"; did you mean {guess!r}?" if guess else f"; known: {', '.join(sorted(owner))}"
                raise SettingsError(f"{source}: there is no setting {name!r}{hint}")
            groups.setdefault(owner[name], {})[name] = value
        return type(self).read(groups, source=source)
