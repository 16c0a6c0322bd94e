"""Training on several processes (ranks): the messages between them.

Every rank holds the whole model and takes its share of each step's micro-batches; gradients are summed once a step
(`gradients.py`), so all ranks make the same update. Rank 0 alone reads the clock, decides (plan, stop, save) and writes
(log, checkpoints, bundle) while the others wait for the outcome; an error there is raised on every rank.

Processes are started by torchrun, or by `--nproc`, which uses the same launcher. Messages are JSON and tensors: numbers
and decisions over gloo, gradients over the backend of the device (gloo, NCCL). A run of one process sends none.
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
from mingyue.words import tr

T = TypeVar("T")

_PATIENCE = timedelta(days=2)
"""Timeout: rank 0 may prepare a large text for hours. A rank that fails closes its connections and is noticed at once;
the timeout is for one that hangs."""
_MEETING = timedelta(minutes=30)
"""Timeout for all processes to connect at the start."""
_MESSAGE = 4096
"""Bytes of a message that fit into one broadcast; longer messages take a second one."""
_OF_CONNECTIONS = ("gloo", "nccl", "connection closed", "connection reset")
"""Words in the errors of torch that come from connections between ranks, in lower case."""
_OUTCOME, _FAILED, _STOPPED = "outcome", "failed", "stopped"


class Ranks:
    """The processes of a run, from this one. `Ranks()` is a run of one process, where no method communicates."""

    def __init__(self, place: Processes | None = None) -> None:
        place = place or Processes()
        self.rank, self.size = place.rank, place.size
        self._pending_error: BaseException | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    # --- rank 0 works, the others wait -------------------------------------------------------------------------------

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0; returns its result there, None elsewhere. An error of it is raised on every rank."""
        if self.size == 1:
            return work()
        result: list[T] = []
        self.share(lambda: result.append(work()))
        return result[0] if result else None

    def share(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0; returns its result, a JSON value, on every rank, and raises its error on every rank."""
        if self.size == 1:
            return work()
        if not self.is_main:
            return self._outcome(self._receive())
        try:
            if self._pending_error is not None:
                raise self._pending_error
            value = work()
            message = {_OUTCOME: value}
        except LostRankError:
            raise
        except BaseException as error:
            self._send(_spell(error))
            raise
        self._send(message)
        return value

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; an error of one is raised on every rank."""
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
        """Run `work` on rank 0 without waiting elsewhere; the next `share` raises its error on every rank."""
        if self.size == 1:
            work()
        elif self.is_main and self._pending_error is None:
            try:
                work()
            except Exception as error:
                self._pending_error = error

    def tensors(self, work: Callable[[], Mapping[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """Run `work` on rank 0; returns its tensors by name (or None) on every rank, on the CPU of the others."""
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
        """The JSON values of all ranks in order, on every rank."""
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

    def tally(self, tokens: int, stop: bool) -> tuple[int, bool]:
        """(tokens of all ranks, whether a stop was requested on any of them)."""
        if self.size == 1:
            return tokens, stop
        counts = torch.tensor([tokens, int(stop)])
        with self.in_touch():
            dist.all_reduce(counts)
        return int(counts[0]), bool(counts[1])

    def add(self, number: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.size > 1:
            with self.in_touch():
                dist.all_reduce(number)
        return number

    def exchange(self, own: Tensor, sizes: list[int]) -> list[Tensor]:
        """The flat tensors of all ranks, which have `sizes` elements; `own` is that of this rank."""
        longest = max(sizes)
        padded = own.new_zeros(longest)
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in range(self.size)]
        with self.in_touch():
            dist.all_gather(found, padded)
        return [values[:size] for values, size in zip(found, sizes, strict=True)]

    def check_replicas(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Raise `TrainingError` on every rank if the weights of one are not those of rank 0, bit for bit.

        Compares one sum of the bits of each weight, which is cheap; a single different bit changes it.
        """
        if self.size == 1:
            return
        sums = torch.stack([_bits(weight).sum(dtype=torch.int64) for weight in weights.values()]).tolist()
        first, *others = self.collect(sums)
        for rank, found in enumerate(others, start=1):
            wrong = [name for name, one, other in zip(weights, first, found, strict=True) if one != other]
            if wrong:
                raise TrainingError(
                    tr(
                        "the weights of rank {rank} are no longer those of rank 0 after step {step:,}: {wrong} differs",
                        rank,
                        step,
                        wrong[0],
                    )
                    + (tr(", and {n_wrong:,} more", len(wrong) - 1) if len(wrong) > 1 else ""),
                    advice=tr(
                        "This step was not saved. Resume the last checkpoint, and check the machine of that rank."
                    ),
                )

    # --- messages ----------------------------------------------------------------------------------------------------

    @contextmanager
    def in_touch(self) -> Generator[None]:
        """Around everything that waits for other ranks: raises `LostRankError` when one of them has ended."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from error

    @contextmanager
    def in_touch_throughout(self) -> Generator[None]:
        """The same around any work in which torch itself communicates with other ranks, as a sharded model does."""
        try:
            yield
        except RuntimeError as error:
            if self.size > 1 and any(word in str(error).lower() for word in _OF_CONNECTIONS):
                raise self._lost(error) from error
            raise

    def _lost(self, error: RuntimeError) -> LostRankError:
        return LostRankError(
            tr(
                "rank {rank} of {size} lost the connection to another process of the run ({error})",
                self.rank,
                self.size,
                _first_line(error),
            ),
            advice=tr(
                "That process ended first: look for its error, or for what killed it. The last checkpoint is whole."
            ),
        )

    def _send(self, message: object) -> None:
        text = _bytes(message)
        first = torch.zeros(_MESSAGE, dtype=torch.uint8)
        first[:8] = torch.tensor([len(text)]).view(torch.uint8)
        first[8 : 8 + len(text)] = text[: _MESSAGE - 8]
        with self.in_touch():
            dist.broadcast(first, 0)
            if len(text) > _MESSAGE - 8:
                dist.broadcast(text[_MESSAGE - 8 :].contiguous(), 0)

    def _receive(self) -> Any:  # noqa: ANN401  (JSON)
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
    """The ranks of this process's run, connected inside.

    A process group that exists already is used, and not destroyed.
    """
    place = processes()
    if place.size == 1:
        yield Ranks()
        return
    begun = dist.is_initialized()
    if not begun:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store, _, _ = next(dist.rendezvous("env://", timeout=_MEETING))
        # The launcher keeps one store for all restarts: without a prefix the processes would find the addresses of
        # those that ended.
        store = dist.PrefixStore(f"attempt-{place.restarts}", store)
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=_PATIENCE)
    yield Ranks(place)
    if not begun:  # not after an error: it could wait forever, and the end of the process ends it
        dist.destroy_process_group()


def _spell(error: BaseException, *, rank: int = 0) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt):
        return {_STOPPED: True}
    of = tr("rank {rank}: ", rank) if rank else ""
    if isinstance(error, MingyueError):
        return {_FAILED: [type(error).__name__, f"{of}{error.message}", error.advice]}
    return {
        _FAILED: [
            "TrainingError",
            tr("rank {rank} failed: {kind}: {error}", rank, type(error).__name__, error),
            None,
        ]
    }


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
