"""Settings of a training run. Each group is one section of run.toml; each field is one option of `mingyue train`.

Field names are unique over all groups, so the command line needs no prefixes. None means: chosen, and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from mingyue.config.base import Settings, nearest
from mingyue.config.data import HELD_OUT, DataSettings, PairSettings, TokenizerSettings
from mingyue.config.model import DecoderOnlyParts, ModelParts
from mingyue.config.numbers import (
    Context,
    Count,
    Epsilon,
    Heads,
    Layers,
    LearningRate,
    NonNegative,
    Positive,
    PositiveFloat,
    Probability,
    Seed,
    Share,
    Width,
    Workers,
)
from mingyue.config.setting import (
    NEW_PLAN,
    NEXT_EVALUATION,
    NEXT_STEP,
    OUTPUT,
    ROUNDING,
    WEIGHTS,
    Needs,
    allowed,
    refused,
    setting,
)
from mingyue.errors import SettingsError
from mingyue.words import tr

PresetName = Literal["modern", "speed", "gpt2", "llama", "paper-base", "paper-big", "translate-small"]
DEFAULT_MINUTES = 10.0
"""Budget of a run for which none is given."""
_MUON = Needs(tr("with --optimiser muon"), lambda run: run["optimiser"] == "muon")
_PROCESSES = Needs(tr("in several processes (--nproc)"), lambda run: run["nproc"] > 1)


class SizeSettings(Settings):
    """Preset and sizes of the model, each of which may be left open."""

    preset: PresetName | None = setting(None, resume=WEIGHTS, auto="modern; pairs: translate-small", common=True)
    """modern (like Qwen3), speed (learns fastest), gpt2, llama; for pairs: translate-small, paper-base, paper-big."""
    depth: Layers | None = setting(None, resume=WEIGHTS, auto="from speed, budget and text", common=True)
    """Number of layers; width, heads and learning rates follow from it."""
    context: Context | None = setting(None, resume=WEIGHTS, auto="256; less for a shorter text")
    """Context length, in tokens: the most that the model reads at once."""
    d_model: Width | None = setting(None, resume=WEIGHTS, auto="64 × depth")
    """Width of the residual stream."""
    n_layers: Layers | None = setting(None, resume=WEIGHTS, auto="depth")
    """Number of blocks (of the decoder in an encoder-decoder model)."""
    n_encoder_layers: Layers | None = setting(None, kinds="pairs", resume=WEIGHTS, auto="as in the decoder")
    """Number of encoder blocks."""
    n_heads: Heads | None = setting(None, resume=WEIGHTS, auto="d_model / d_head")
    """Number of query heads."""
    n_kv_heads: Heads | None = setting(None, resume=WEIGHTS, auto="n_heads; llama: a quarter")
    """Number of key-value heads; fewer than n_heads = grouped-query attention."""
    d_head: Width | None = setting(None, resume=WEIGHTS, auto="64; in narrow models 32 or 16")
    """Width of a head."""
    d_ff: Width | None = setting(None, resume=WEIGHTS, auto="4 × d_model; swiglu: 8/3 × d_model")
    """Inner width of the feed-forward layer."""


class ModelSettings(DecoderOnlyParts, ModelParts[None], SizeSettings):
    """Model: preset, sizes, and choices of parts."""


class BudgetSettings(Settings):
    """Length of training: one of minutes, steps and epochs."""

    minutes: PositiveFloat | None = setting(None, resume=NEW_PLAN, auto=f"{DEFAULT_MINUTES:g}", common=True)
    """Minutes from program start to end, evaluation and saving included."""
    steps: Positive | None = setting(None, resume=NEW_PLAN, auto="from the minutes")
    """Number of optimiser steps."""
    epochs: PositiveFloat | None = setting(None, resume=NEW_PLAN, auto="from the minutes")
    """Passes over the training data."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(tr("give one budget, not {n_given}: {given}", len(given), ", ".join(given)))
        return self


def one_budget(changes: Mapping[str, object]) -> dict[str, object]:
    """`changes`, in which a budget that is given (say, steps) sets the other two to None."""
    budgets = BudgetSettings.model_fields
    if not any(changes.get(name) is not None for name in budgets):
        return dict(changes)
    return {**dict.fromkeys(budgets), **changes}


class BatchSettings(Settings):
    """Tokens per step, and memory."""

    batch_tokens: Positive | None = setting(
        None,
        resume=refused(tr("the order of the training data is counted in steps of this size")),
        auto="from the length of the run; pairs: 2048",
    )
    """Tokens of one optimiser step, over all micro-batches and ranks."""
    micro_batch_tokens: Positive | None = setting(
        None,
        resume=ROUNDING,
        auto="chosen to fit; pairs: batch_tokens",
        needs=Needs(
            tr("up to --batch-tokens"),
            lambda run: run["batch_tokens"] is None or (run["micro_batch_tokens"] or 0) <= run["batch_tokens"],
        ),
    )
    """Tokens of one forward and backward pass; fewer than batch_tokens = gradient accumulation."""
    unseen_share: Annotated[float, Field(ge=0.0, le=0.5, allow_inf_nan=False)] = setting(0.001, resume=NEXT_STEP)
    """Share of the input tokens replaced in training by tokens that the training text does not use, so that an unknown
    character in a prompt does no harm (pairs: in sources only); 0 = none."""
    recompute: bool = setting(
        False, resume=allowed(tr("less memory, more time from the next step; the numbers stay the same"))
    )
    """Activation checkpointing: blocks are computed again in the backward pass; less memory, about a third more time,
    the same numbers."""
    chunked_loss: bool | None = setting(None, resume=ROUNDING, auto="on for 2048 tokens or more in the vocabulary")
    """Output layer and loss in chunks, so that the logits of a micro-batch are never held whole; without effect in
    mixed precision."""


class OptimiserSettings(Settings):
    """Optimiser, learning rates and regularisation."""

    recipe: Literal["modern", "paper"] = setting(
        "modern", resume=refused(tr("it was applied when the run began: change the settings that it set"))
    )
    """modern, or paper: Adam, its schedule with 4,000 steps of warm-up, label smoothing 0.1, the last 5 checkpoints
    averaged (sections 5.3, 5.4 and 6.1). Settings that are given win over the recipe."""
    optimiser: Literal["muon", "adamw"] = setting(
        "muon", resume=refused(tr("the saved momenta belong to the other optimiser"))
    )
    """muon: Muon for matrices, AdamW for embeddings, output layer, gains and biases; adamw: AdamW for all."""
    learning_rate: LearningRate | None = setting(None, resume=NEXT_STEP, auto="from width and optimiser")
    """Peak learning rate of AdamW."""
    muon_learning_rate: LearningRate | None = setting(None, resume=NEXT_STEP, auto="from the width", needs=_MUON)
    """Peak learning rate of Muon."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1000.0, allow_inf_nan=False)] = setting(0.1, resume=NEXT_STEP)
    """Decoupled weight decay of matrices; gains, biases and embeddings have none."""
    beta1: Probability = setting(0.9, resume=NEXT_STEP)
    """AdamW: decay of the first moment."""
    beta2: Probability = setting(0.95, resume=NEXT_STEP)
    """AdamW: decay of the second moment."""
    adam_eps: Epsilon = setting(1e-10, resume=NEXT_STEP)
    """AdamW: added to the root of the second moment."""
    muon_momentum: Probability = setting(0.85, resume=NEXT_STEP, auto="0.85; 0.95 for pairs", needs=_MUON)
    """Muon: Nesterov momentum."""
    clip: NonNegative = setting(1.0, resume=NEXT_STEP)
    """Largest global norm of the gradient; 0 = no clipping."""
    label_smoothing: Probability = setting(0.0, resume=NEXT_STEP, auto="0.0; 0.1 for pairs")
    """Share of the target probability spread over the vocabulary (the paper, section 5.4: 0.1)."""


class ScheduleSettings(Settings):
    """Learning rate over the steps."""

    schedule: Literal["wsd", "cosine", "paper", "constant"] = setting("wsd", resume=NEW_PLAN)
    """wsd (warm-up, stable, decay to 0), cosine, paper (section 5.3: d_model^-0.5 · min(step^-0.5, …)), constant."""
    warmup: NonNegative = setting(0.02, resume=refused(tr("a run warms up once, at its start")))
    """Warm-up: below 1 a share of all steps, from 1 on a number of steps."""
    decay_share: Share = setting(
        0.5, resume=NEW_PLAN, needs=Needs(tr("with --schedule wsd"), lambda run: run["schedule"] == "wsd")
    )
    """wsd: share of all steps over which the rate decays linearly."""
    final_share: Share = setting(
        0.0,
        resume=NEW_PLAN,
        needs=Needs(tr("with --schedule wsd or cosine"), lambda run: run["schedule"] in ("wsd", "cosine")),
    )
    """wsd and cosine: learning rate at the end of the last step, as a share of the peak."""


class RunSettings(Settings):
    """Run folder, hardware, evaluation and checkpoints."""

    out: str | None = setting(
        None,
        resume=refused(tr("the run is where its folder is: move or copy the folder")),
        auto="runs/NAME, after the first source",
        common=True,
    )
    """Run folder."""
    init: str | None = setting(
        None,
        kinds="text",
        resume=refused(tr("a run takes its initial weights once, at its start")),
        auto="new weights from the seed",
    )
    """Run folder or model folder of a model to train further: its weights, architecture and tokenizer are kept, with a
    new optimiser."""
    seed: Seed = setting(1, resume=refused(tr("the order of the training data and every random choice depend on it")))
    """Seed of every random choice."""
    device: str | None = setting(None, resume=ROUNDING, auto="best available", common=True)
    """cpu, cuda or mps."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, resume=ROUNDING, auto="bf16 where the device is fast in it, else fp32"
    )
    """Number format of the forward pass: fp32, bf16 or fp16."""
    threads: Workers | None = setting(
        None, resume=ROUNDING, auto="OMP_NUM_THREADS, or measured; of several processes their share of the cores"
    )
    """CPU threads per process. They are measured at the start, on 1 to all cores, and again when steps take twice as
    long."""
    nproc: Workers = setting(1, resume=ROUNDING)
    """Processes that train together on this machine, each with its GPU or its share of the cores; torchrun, where it
    is used, decides instead."""
    parallel: Literal["data", "sharded"] = setting("data", resume=ROUNDING, needs=_PROCESSES)
    """What several processes divide: data (each has the whole model and a part of each batch), or sharded (weights,
    gradients and optimiser state too)."""
    restarts: Count = setting(0, resume=allowed(tr("applies to worker failures from here on")), needs=_PROCESSES)
    """Restarts of all processes, from the last checkpoint, after worker failures; with --nproc (torchrun has
    --max-restarts)."""
    compile: bool | None = setting(
        None, resume=ROUNDING, auto="on for text on a GPU, in runs of 5 minutes or 2,000 steps and more"
    )
    """torch.compile of the blocks: costs about 40 s at the start, pays in long runs."""
    evaluate_every: Positive | None = setting(None, resume=NEXT_EVALUATION, auto="about 20 evaluations in the run")
    """Steps between evaluations on the held-out data."""
    evaluate_tokens: Positive | None = setting(
        None, resume=NEXT_EVALUATION, auto="≤ 5 % of the training time", needs=HELD_OUT
    )
    """Held-out tokens of an evaluation during the run. The final one uses all; with a budget in minutes, as many as
    take ≤ 20 % of the time."""
    checkpoint_every: Positive | None = setting(None, resume=OUTPUT, auto="about once a minute")
    """Steps between checkpoints."""
    keep: Positive = setting(2, resume=OUTPUT)
    """Number of latest checkpoints kept, besides the best."""
    sample_every: Count | None = setting(None, resume=OUTPUT, auto="5")
    """Evaluations between samples of generated text; 0 = none."""
    sample_prompt: str = setting(
        "",
        kinds="text",
        resume=OUTPUT,
        needs=Needs(tr("with --sample-every above 0"), lambda run: run["sample_every"] != 0),
    )
    """Prompt of the samples."""
    watch: str = setting("", resume=OUTPUT, auto="nothing saved")
    """Text (for pairs: a source text) whose attention and lens are saved at each checkpoint, for
    `mingyue inspect film RUN`."""
    average_last: Positive = setting(1, resume=allowed(tr("applies at the end of the run")))
    """Number of last checkpoints whose weights are averaged at the end (the paper, section 6.1); 1 = no averaging."""
    patience: Positive | None = setting(
        None, resume=allowed(tr("counted from the evaluations so far")), auto="never stops early", needs=HELD_OUT
    )
    """Number of evaluations without a better held-out loss after which the run stops."""
    tensorboard: bool = setting(False, resume=OUTPUT)
    """TensorBoard events beside metrics.jsonl (extra: track)."""
    memory_check: bool = setting(True, resume=OUTPUT)
    """Refusal of a run that by an estimate needs more memory than is free, with what would fit."""
    overwrite: bool = setting(
        False, resume=refused(tr("a resumed run continues; to start again, use `mingyue train --overwrite`"))
    )
    """New run where a run folder already exists (the old one is moved aside)."""


class TrainSettings(Settings):
    """All settings of a run; run.toml holds them."""

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
        groups = self.model_dump(exclude_unset=True)  # what was never given stays unset: a recipe may still decide it
        known = self.fields()
        for name, value in flat.items():
            if name not in known:
                guess = nearest(name, known)
                hint = (
                    tr("; did you mean {guess!r}?", guess)
                    if guess
                    else tr("; known: {known}", ", ".join(sorted(known)))
                )
                raise SettingsError(tr("{source}: there is no setting {name!r}{hint}", source, name, hint))
            groups.setdefault(known[name][0], {})[name] = value
        return type(self).read(groups, source=source)

    def with_defaults(self, source: str, /, **flat: object) -> Self:
        """A copy with the named fields set where they were not given."""
        given = {name for group in self.model_fields_set for name in getattr(self, group).model_fields_set}
        missing = {name: value for name, value in flat.items() if name not in given}
        return self.with_flat(source, **missing) if missing else self

    @classmethod
    def groups(cls) -> dict[str, type[Settings]]:
        """The class of each group, in order."""
        found = {name: info.annotation for name, info in cls.model_fields.items()}
        return {name: owner for name, owner in found.items() if isinstance(owner, type) and issubclass(owner, Settings)}

    @classmethod
    def fields(cls) -> dict[str, tuple[str, FieldInfo]]:
        """The group and the field of every setting, by name, in order."""
        groups = cls.groups().items()
        return {name: (group, info) for group, owner in groups for name, info in owner.model_fields.items()}
