"""Training on many processes (ranks): what they say to one another.

Every rank holds the whole model and takes its share of each step's micro-batches; gradients are summed once a step
(`gradients.py`), so all ranks make the same update. Rank 0 alone reads the clock, decides (plan, stop, save) and writes
(log, checkpoints, bundle): it works while the others wait for the outcome, so whatever fails there fails everywhere.

Processes are started by torchrun, or by `--nproc`, which uses the same launcher. What is said is JSON and tensors.
Numbers and decisions go over gloo, gradients over what the device has (gloo, NCCL). A run of one process says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mingyue.errors import LostRankError, MingyueError, TrainingError
from mingyue.runtime import Processes, processes

T = TypeVar("T")

_PATIENCE = timedelta(days=2)
"""Rank 0 may prepare a large text for hours while the others wait. A rank that dies closes its connections, and is
noticed at once; only one that hangs is waited for."""
_MEETING = timedelta(minutes=30)
"""For all processes to be there at the start."""
_MESSAGE = 4096
"""Bytes of a message that go in one broadcast; longer ones take a second."""
_OF_CONNECTIONS = ("gloo", "nccl", "connection closed", "connection reset")
"""What errors of torch say that come from the connections between ranks, in lower case."""
_OUTCOME, _FAILED, _STOPPED = "outcome", "failed", "stopped"


class Ranks:
    """The processes of a run, as this one sees them. `Ranks()` is a run of one process: every method is then free."""

    def __init__(self, place: Processes | None = None) -> None:
        place = place or Processes()
        self.rank, self.size = place.rank, place.size
        self._kept: BaseException | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    # --- rank 0 works, the others wait -------------------------------------------------------------------------------

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0 alone and give its result there, None elsewhere; an error of it is raised everywhere."""
        if self.size == 1:
            return work()
        result: list[T] = []
        self.share(lambda: result.append(work()))
        return result[0] if result else None

    def share(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 alone and give its result, a JSON value, everywhere; so with an error of it."""
        if self.size == 1:
            return work()
        if not self.is_main:
            return self._outcome(self._hear())
        try:
            if self._kept is not None:
                raise self._kept
            value = work()
            message = {_OUTCOME: value}
        except LostRankError:
            raise
        except BaseException as error:
            self._say(_spell(error))
            raise
        self._say(message)
        return value

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; an error of one is raised on all."""
        if self.size == 1:
            return work()
        done: list[T] = []
        failure: Exception | None = None
        try:
            done.append(work())
        except LostRankError:
            raise
        except Exception as error:
            failure = error
        for rank, message in enumerate(self.collect(None if failure is None else _spell(failure, rank=self.rank))):
            if message is not None:
                if failure is not None and rank == self.rank:
                    raise failure
                self._outcome(message)
        return done[0]

    def aside(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0 alone, and let nobody wait; its error is raised everywhere by what is shared next."""
        if self.size == 1:
            work()
        elif self.is_main and self._kept is None:
            try:
                work()
            except Exception as error:
                self._kept = error

    def tensors(self, work: Callable[[], Mapping[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """Run `work` on rank 0 alone and give its tensors, by name, everywhere (elsewhere on the CPU), or None."""
        found: list[Mapping[str, Tensor] | None] = []

        def describe() -> list[list[Any]] | None:
            found.append(work())
            if found[0] is None:
                return None
            return [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in found[0].items()]

        described = self.share(describe)
        if described is None:
            return None
        if found and found[0] is not None:
            result = dict(found[0])
        else:
            kinds = {str(kind): kind for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
            result = {name: torch.empty(shape, dtype=kinds[kind]) for name, kind, shape in described}
        if self.size > 1:
            with self.in_touch():
                for tensor in result.values():
                    dist.broadcast(tensor.cpu().contiguous() if self.is_main else tensor, 0)
        return result

    # --- all ranks together ------------------------------------------------------------------------------------------

    def collect(self, value: T) -> list[T]:
        """The JSON values of all ranks, in their order, everywhere."""
        if self.size == 1:
            return [value]
        own = _bytes(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self.in_touch():
            dist.all_gather(lengths, torch.tensor([len(own)]))
            longest = max(int(length) for length in lengths)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(own)] = own
            found = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(found, padded)
        return [json.loads(bytes(text[: int(length)].numpy())) for text, length in zip(found, lengths, strict=True)]

    def tally(self, tokens: int, asked: bool) -> tuple[int, bool]:
        """(tokens of all ranks, whether any of them was asked to stop)."""
        if self.size == 1:
            return tokens, asked
        counts = torch.tensor([tokens, int(asked)])
        with self.in_touch():
            dist.all_reduce(counts)
        return int(counts[0]), bool(counts[1])

    def add(self, number: Tensor) -> Tensor:
        """The sum over all ranks of a tensor, which it replaces."""
        if self.size > 1:
            with self.in_touch():
                dist.all_reduce(number)
        return number

    def exchange(self, own: Tensor, sizes: list[int]) -> list[Tensor]:
        """The flat tensors of all ranks, of `sizes` numbers each, where this one brings `own`."""
        longest = max(sizes)
        padded = own.new_zeros(longest)
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in range(self.size)]
        with self.in_touch():
            dist.all_gather(found, padded)
        return [values[:size] for values, size in zip(found, sizes, strict=True)]

    def check_replicas(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Raise `TrainingError` on every rank if the weights of one are not those of rank 0, bit for bit.

        Compared are sums of the numbers' bits, one for each weight: cheap, and a single other bit changes them.
        """
        if self.size == 1:
            return
        sums = torch.stack([_bits(weight).sum(dtype=torch.int64) for weight in weights.values()]).tolist()
        first, *others = self.collect(sums)
        for rank, found in enumerate(others, start=1):
            wrong = [name for name, one, other in zip(weights, first, found, strict=True) if one != other]
            if wrong:
                raise TrainingError(
                    f"the weights of rank {rank} are no longer those of rank 0 after step {step:,}: {wrong[0]} differs"
                    + (f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""),
                    advice="Nothing was saved of it. Resume the last checkpoint, and suspect the machine of that rank.",
                )

    # --- how it is said ----------------------------------------------------------------------------------------------

    @contextmanager
    def in_touch(self) -> Generator[None]:
        """Around everything that waits for other ranks: raises `LostRankError` when one of them is gone."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from error

    @contextmanager
    def in_touch_throughout(self) -> Generator[None]:
        """The same around work of every kind in which torch talks to other ranks by itself, as a sharded model does."""
        try:
            yield
        except RuntimeError as error:
            if self.size > 1 and any(word in str(error).lower() for word in _OF_CONNECTIONS):
                raise self._lost(error) from error
            raise

    def _lost(self, error: RuntimeError) -> LostRankError:
        return LostRankError(
            f"rank {self.rank} of {self.size} lost touch with another process of the run ({_first_line(error)})",
            advice="That one ended first: look for its error, or for what killed it. The last checkpoint is whole.",
        )

    def _say(self, message: object) -> None:
        text = _bytes(message)
        first = torch.zeros(_MESSAGE, dtype=torch.uint8)
        first[:8] = torch.tensor([len(text)]).view(torch.uint8)
        first[8 : 8 + len(text)] = text[: _MESSAGE - 8]
        with self.in_touch():
            dist.broadcast(first, 0)
            if len(text) > _MESSAGE - 8:
                dist.broadcast(text[_MESSAGE - 8 :].contiguous(), 0)

    def _hear(self) -> Any:  # noqa: ANN401  (JSON)
        first = torch.empty(_MESSAGE, dtype=torch.uint8)
        with self.in_touch():
            dist.broadcast(first, 0)
            length = int(first[:8].view(torch.int64))
            text = first[8 : 8 + length]
            if length > _MESSAGE - 8:
                rest = torch.empty(length - (_MESSAGE - 8), dtype=torch.uint8)
                dist.broadcast(rest, 0)
                text = torch.cat([text, rest])
        return json.loads(bytes(text.numpy()))

    def _outcome(self, message: dict[str, Any]) -> Any:  # noqa: ANN401  (JSON)
        if _STOPPED in message:
            raise KeyboardInterrupt
        if _FAILED in message:
            kinds = {kind.__name__: kind for kind in _family(MingyueError)}
            name, text, advice = message[_FAILED]
            raise kinds.get(name, TrainingError)(text, advice=advice)
        return message[_OUTCOME]


@contextmanager
def join() -> Generator[Ranks]:
    """The ranks of this process's run, in touch with each other as long as this is entered.

    A group that the caller of the program has made already is used, and left alone.
    """
    place = processes()
    if place.size == 1:
        yield Ranks()
        return
    begun = dist.is_initialized()
    if not begun:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store, _, _ = next(dist.rendezvous("env://", timeout=_MEETING))
        # The launcher keeps one store for all restarts: without a name of their own the processes would find the
        # addresses of those that are gone.
        store = dist.PrefixStore(f"attempt-{place.restarts}", store)
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=_PATIENCE)
    yield Ranks(place)
    if not begun:  # after an error the group may wait for ever: the end of the process ends it too
        dist.destroy_process_group()


def _spell(error: BaseException, *, rank: int = 0) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt):
        return {_STOPPED: True}
    of = f"rank {rank}: " if rank else ""
    if isinstance(error, MingyueError):
        return {_FAILED: [type(error).__name__, of + error.message, error.advice]}
    return {_FAILED: ["TrainingError", f"rank {rank} failed: {type(error).__name__}: {error}", None]}


def _family(kind: type[MingyueError]) -> Iterator[type[MingyueError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)


def _bytes(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode("utf-8")), dtype=torch.uint8)


def _bits(weight: Tensor) -> Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return weight.detach().contiguous().view(integers[weight.element_size()])


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].removesuffix(".")
