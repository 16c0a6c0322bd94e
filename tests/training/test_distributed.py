"""Several ranks are one run: the same losses, one log, one checkpoint, one decision, one error."""

from __future__ import annotations

import math

import pytest
import torch

from mingyue.errors import CheckpointError, TrainingError
from mingyue.models import build_model
from mingyue.runtime import Processes, Runtime
from mingyue.training import Callbacks, Checkpoints, RunFolder, StopRequests, Trainer, evaluate, read_log
from mingyue.training.batches import CorpusBatches
from mingyue.training.distributed import Ranks
from mingyue.training.muon import Matrix, Muon, assign_owners
from mingyue.training.pair_batches import PairBatches

CPU = torch.device("cpu")
DROPS = {"dropout": 0.1, "attention_dropout": 0.1}


def batches_of(run, ranks, settings):
    if hasattr(run.corpus, "valid"):
        sizes = {"batch_tokens": run.rows, "micro_tokens": run.micro_rows}
        return PairBatches(run.corpus, **sizes, seed=settings.run.seed, ranks=ranks)
    return CorpusBatches(
        run.corpus,
        context=run.config.context,
        rows=run.rows,
        micro_rows=run.micro_rows,
        seed=settings.run.seed,
        documents=not settings.data.attend_across_documents,
        ranks=ranks,
    )


@pytest.fixture
def go(watcher):
    """Train a run of `bench` on one of several ranks; returns what this rank saw of it."""

    def train_on(
        run, ranks=None, *, resume=False, settings=None, stop_after=None, prepare=None, stop=None, batches=None
    ):
        ranks, settings, stop = ranks or Ranks(), settings or run.settings, stop or StopRequests()
        model = build_model(run.config, seed=settings.run.seed)
        if prepare is not None:
            prepare(model)
        seen = watcher(stop_after=stop_after, stop=stop)
        folder = RunFolder(run.path)
        if ranks.is_main:
            folder = RunFolder.open(run.path) if resume else RunFolder.create(run.path, settings)[0]
        trainer = Trainer(
            model,
            batches or batches_of(run, ranks.size, settings),
            settings,
            folder=folder,
            runtime=Runtime(CPU, torch.float32, 1, (), ranks.rank, ranks.size),
            callbacks=Callbacks(observer=seen),
            resume=resume,
            stop=stop,
            ranks=ranks,
        )
        result = trainer.train()
        folder.unlock()
        return {
            "losses": [report.loss for report in seen.steps],
            "steps": result.step,
            "tokens": result.tokens,
            "reason": result.reason,
            "nats": None if result.evaluation is None else result.evaluation.nats,
            "weights": {name: weight.clone() for name, weight in model.state_dict().items()},
        }

    return train_on


def assert_one(found):
    """Every rank has the same weights, bit for bit, and only rank 0 was told anything."""
    first, *others = found
    for other in others:
        assert not other["losses"]
        for name in ("steps", "tokens", "reason", "nats"):
            assert first[name] == other[name], name
        assert all(torch.equal(weight, other["weights"][name]) for name, weight in first["weights"].items())
    return first


@pytest.mark.parametrize(
    ("kind", "optimiser", "ranks"), [("text", "adamw", 2), ("documents", "muon", 2), ("pairs", "muon", 3)]
)
def test_ranks_equal_one_rank_with_as_many_micro_batches(bench, pair_bench, on_ranks, go, kind, optimiser, ranks):
    """T6: the first losses are those of one process, with dropout, accumulation and unequal numbers of tokens."""
    asked = {"optimiser": optimiser, "steps": 6, "evaluate_every": 3, "warmup": 0.0}
    if kind == "pairs":
        make = lambda name: pair_bench(config=DROPS, tokens=90, micro_tokens=15, name=name, **asked)  # noqa: E731
    else:
        asked["attend_across_documents"] = kind == "text"
        make = lambda name: bench(config=DROPS, rows=4, micro_rows=1, name=name, **asked)  # noqa: E731
    alone, many = make("alone"), make("many")
    many.corpus = alone.corpus
    batches = batches_of(alone, ranks, alone.settings)
    alone_seen = go(alone, batches=batches)  # the same micro-batches on one rank as on several
    found = assert_one(on_ranks(ranks, lambda mine: go(many, mine)))
    tolerance = 1e-6 if optimiser == "adamw" else 1e-5
    assert len(found["losses"]) == 6
    assert found["losses"][:5] == pytest.approx(alone_seen["losses"][:5], abs=tolerance)
    assert found["tokens"] == alone_seen["tokens"]
    assert found["nats"] == pytest.approx(alone_seen["nats"], rel=1e-4)
    dealt = [[len(batches.step(step, rank=rank, ranks=ranks)) for rank in range(ranks)] for step in range(5)]
    assert max(map(max, dealt)) >= 2  # there was something to accumulate


def test_rank_without_a_micro_batch_is_not_waited_for(bench, on_ranks, go):
    """A step of one window on two ranks: the other adds nothing, and moves the same weights."""
    alone, many = (bench(rows=1, micro_rows=1, steps=4, optimiser="adamw", name=name) for name in ("alone", "many"))
    many.corpus = alone.corpus
    found = assert_one(on_ranks(2, lambda ranks: go(many, ranks)))
    assert found["losses"] == pytest.approx(go(alone)["losses"], abs=1e-6)


def test_one_log_one_checkpoint(bench, on_ranks, go):
    """What several ranks leave is what one leaves: nothing twice, nothing of another rank."""
    alone, many = (bench(steps=8, evaluate_every=4, checkpoint_every=3, name=name) for name in ("alone", "many"))
    go(alone)
    assert_one(on_ranks(2, lambda ranks: go(many, ranks)))
    names = [sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*")) for run in (alone, many)]
    assert names[0] == names[1]
    events = [[(line["event"], line["step"]) for line in read_log(run.path / "metrics.jsonl")] for run in (alone, many)]
    assert events[0] == events[1]
    assert Checkpoints(many.path / "checkpoints").load(8).state["runtime"]["ranks"] == 2


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_run_goes_on_with_another_number_of_ranks(bench, on_ranks, go, first, second):
    """T13: a checkpoint of two ranks serves one, and the other way round: at the right sample, by the same plan."""
    asked = {"rows": 4, "micro_rows": 2, "steps": 8, "optimiser": "adamw", "checkpoint_every": 2}
    whole, cut = bench(name="whole", **asked), bench(name="cut", **asked)
    cut.corpus = whole.corpus

    def on(size, **how):
        return assert_one(on_ranks(size, lambda ranks: go(cut, ranks, **how))) if size > 1 else go(cut, **how)

    stopped = on(first, stop_after=3)
    assert (stopped["reason"], stopped["steps"]) == ("stopped", 3)
    resumed = on(second, resume=True)
    never = go(whole)
    assert stopped["losses"] + resumed["losses"] == pytest.approx(never["losses"], abs=1e-5)
    assert (resumed["tokens"], resumed["reason"]) == (never["tokens"], "finished")


def test_resume_on_the_same_ranks_is_exact(bench, on_ranks, go):
    """T2: stopped and resumed with as many ranks equals never stopped, bit for bit."""
    whole, cut = (bench(name=name, config=DROPS, steps=6, rows=4, micro_rows=2) for name in ("whole", "cut"))
    cut.corpus = whole.corpus
    never = assert_one(on_ranks(2, lambda ranks: go(whole, ranks)))
    on_ranks(2, lambda ranks: go(cut, ranks, stop_after=3))
    resumed = assert_one(on_ranks(2, lambda ranks: go(cut, ranks, resume=True)))
    assert all(torch.equal(weight, resumed["weights"][name]) for name, weight in never["weights"].items())


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_evaluation_is_the_same_on_any_number_of_ranks(bench, pair_bench, on_ranks, kind):
    """Held-out loss to the last bit, also of a part of the text, and with fewer batches than ranks."""
    run = bench() if kind == "text" else pair_bench(sizes={"valid": 30})
    model = build_model(run.config, seed=3)

    def measure(ranks):
        batches = batches_of(run, ranks.size, run.settings)
        runtime = Runtime(CPU, torch.float32, 1, (), ranks.rank, ranks.size)
        results = []
        for tokens in (None, 50, 1):
            own = batches.held_out(tokens, rank=ranks.rank, ranks=ranks.size)
            found = evaluate(model, own, runtime, bytes_per_token=1.0, ranks=ranks)
            results.append((found.nats, found.tokens))
        return results

    expected = measure(Ranks())
    assert expected[0][1] > expected[1][1] > 0
    for size in (2, 3):
        assert on_ranks(size, measure) == [expected] * size


def test_bad_number_of_one_rank_ends_all_with_one_error(bench, on_ranks, go):
    """T10: a value that is not finite on rank 1 alone: every rank raises the same error, before a weight moves."""
    run = bench(steps=4, rows=4, micro_rows=2)

    def work(ranks):
        def poison(model):
            if ranks.rank == 1:
                norm = model.blocks[1].feedforward_norm
                norm.register_forward_hook(lambda module, inputs, output: output * math.inf)

        with pytest.raises(TrainingError) as caught:
            go(run, ranks, prepare=poison)
        return caught.value.message

    first, second = on_ranks(2, work)
    assert first == second
    assert "at step 1: the first value that is not finite is the output of blocks.1" in first
    end = read_log(run.path / "metrics.jsonl")[-1]
    assert (end["event"], end["reason"]) == ("end", "failed")


@pytest.mark.parametrize("where", ["checkpoint", "log"])
def test_full_disk_of_rank_0_ends_all_with_that_error(bench, on_ranks, go, monkeypatch, where):
    """What only rank 0 does fails everywhere, in the same words."""
    run = bench(steps=6, checkpoint_every=2, evaluate_every=1)

    def full(*_, **given):
        if where == "checkpoint" or given.get("step") == 2:
            raise CheckpointError("the disk is full", advice="Make room.")

    def work(ranks):
        if ranks.is_main:
            name = "save" if where == "checkpoint" else "write"
            target = "Checkpoints" if where == "checkpoint" else "MetricsLog"
            monkeypatch.setattr(f"mingyue.training.{target}.{name}", full)
        with pytest.raises(CheckpointError) as caught:
            go(run, ranks)
        return caught.value.message, caught.value.advice

    assert on_ranks(2, work) == [("the disk is full", "Make room.")] * 2


def test_stop_asked_of_any_rank_stops_all_after_the_step(bench, on_ranks, go):
    """A signal that reaches rank 1 alone: all take the same number of steps, and the run is saved."""
    run = bench(steps=20)

    def work(ranks):
        stop = StopRequests()
        if ranks.rank == 1:
            stop.request()
        return go(run, ranks, stop=stop)

    found = assert_one(on_ranks(2, work))
    assert (found["reason"], found["steps"]) == ("stopped", 1)
    assert Checkpoints(run.path / "checkpoints").steps() == [1]


def test_signal_after_that_of_another_rank_is_not_a_second_one():
    """The launcher signals all ranks: one that has heard of it already must not take its own for impatience."""
    stop = StopRequests()
    stop.request_from_other_rank()
    assert stop.requested
    stop._receive(2, None)
    with pytest.raises(KeyboardInterrupt):
        stop._receive(2, None)


def test_replica_that_differs_is_named(tiny_config, on_ranks):
    """One bit of one weight on one rank is found, and says where."""

    def work(ranks):
        model = build_model(tiny_config(), seed=1)
        ranks.check_replicas(model.state_dict(), 3)
        if ranks.rank == 1:
            model.final_norm.weight.data.view(torch.int32)[5] ^= 1
        with pytest.raises(TrainingError, match=r"rank 1 .* after step 3: final_norm\.weight differs"):
            ranks.check_replicas(model.state_dict(), 3)
        return True

    assert on_ranks(2, work) == [True, True]


def test_what_ranks_say_arrives(on_ranks):
    """Messages of every length, tensors, errors of one rank, and values of all."""

    def work(ranks):
        said = [ranks.share(("月" * length).strip) for length in (0, 1, 4000, 5000)]
        made = ranks.tensors(lambda: {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)})
        nothing = ranks.tensors(lambda: None)
        own = ranks.collect({"rank": ranks.rank, "long": "x" * (5000 * ranks.rank)})
        with pytest.raises(CheckpointError, match="rank 1: broken"):
            ranks.together(lambda: _fail() if ranks.rank == 1 else None)
        parts = ranks.exchange(torch.full((ranks.rank + 1,), float(ranks.rank)), [1, 2])
        return (
            [len(text) for text in said],
            made["a"].tolist(),
            made["b"].dtype,
            nothing,
            [value["rank"] for value in own],
            [part.tolist() for part in parts],
            ranks.tally(5, ranks.rank == 1),
            ranks.on_main(lambda: 7),
        )

    def _fail():
        raise CheckpointError("rank 1: broken")

    results = on_ranks(2, work)
    for rank, result in enumerate(results):
        assert result[:7] == (
            [0, 1, 4000, 5000], [0.0, 1.0, 2.0], torch.bfloat16, None, [0, 1], [[0.0], [1.0, 1.0]], (10, True),
        )  # fmt: skip
        assert result[7] == (None if rank else 7)


def test_alone_nothing_is_said():
    """A run of one process needs no group: every question has its answer at once."""
    ranks, number = Ranks(), torch.ones(2)
    assert ranks.is_main
    assert ranks.share(lambda: 3) == ranks.on_main(lambda: 3) == ranks.together(lambda: 3) == 3
    assert ranks.collect(4) == [4]
    assert ranks.tally(2, False) == (2, False)
    assert ranks.add(number) is number
    assert ranks.tensors(lambda: {"a": number})["a"] is number


@pytest.mark.parametrize(
    ("rows", "micro_rows", "ranks", "expected"),
    [(8, 8, 2, 4), (8, 2, 2, 2), (8, 8, 3, 2), (6, 4, 3, 2), (9, 9, 2, 3), (5, 5, 2, 1), (2, 2, 3, 1), (12, 5, 1, 4)],
)
def test_each_rank_gets_as_many_micro_batches_where_the_rows_allow_it(corpus, rows, micro_rows, ranks, expected):
    batches = CorpusBatches(corpus(), context=16, rows=rows, micro_rows=micro_rows, seed=1, ranks=ranks)
    assert batches.micro_rows == expected
    whole = [batch.inputs_BT for batch in batches.step(3)]
    for rank in range(ranks):
        own = [batch.inputs_BT for batch in batches.step(3, rank=rank, ranks=ranks)]
        assert len(own) == len(whole[rank::ranks])
        assert all(torch.equal(a, b) for a, b in zip(own, whole[rank::ranks], strict=True))
    one = CorpusBatches(batches.corpus, context=16, rows=rows, micro_rows=rows, seed=1)
    assert torch.equal(torch.cat(whole), one.step(3)[0].inputs_BT)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_pairs_of_a_step_are_dealt_evenly(pair_corpus, ranks):
    """Every pair once, in micro-batches within the budget, as many for each rank wherever there are enough pairs."""
    corpus = pair_corpus()
    batches = PairBatches(corpus, batch_tokens=80, micro_tokens=40, seed=1, ranks=ranks)
    whole = PairBatches(corpus, batch_tokens=80, micro_tokens=80, seed=1)
    for step in range(12):
        parts, (one,) = batches.step(step), whole.step(step)
        assert sum(part.rows for part in parts) == one.rows
        assert sum(part.tokens for part in parts) == one.tokens
        assert all(max(part.source_BS.numel(), part.targets_BT.numel()) <= 40 for part in parts)
        assert len(parts) % ranks == 0 or len(parts) == one.rows
        dealt = [batches.step(step, rank=rank, ranks=ranks) for rank in range(ranks)]
        assert sum(part.tokens for own in dealt for part in own) == one.tokens


def test_matrices_are_assigned_to_ranks_by_their_cost():
    """Each once, and no rank has much more to do than another."""
    costs = [*[100] * 5, *[10] * 7, 1]
    owners = assign_owners(costs, 3)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(3)]
    assert sum(loads) == sum(costs)
    assert max(loads) - min(loads) <= 100
    shapes = [*[(8, 9)] * 5, *[(4, 4)] * 7, (1, 2)]
    matrices = [Matrix(str(n), torch.nn.Parameter(torch.zeros(shape)), shape[:1]) for n, shape in enumerate(shapes)]
    shares = Muon(matrices, rate=0.1, ranks=Ranks(Processes(rank=0, size=3)))._shares
    for stack, n_matrices in enumerate((5, 7, 1)):
        assert sorted(index for share in shares for index in share[stack]) == list(range(n_matrices))
