"""How does a function run over shards on a cluster? In shard order, a bounded number at a time, losses tried again."""

from __future__ import annotations

import logging
import pickle
import time
import traceback
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import cloudpickle  # type: ignore[import-untyped]  # it has no stubs
from distributed import Client, Future, KilledWorker, wait
from distributed.client import FutureCancelledError

from pipelines.data.shards import Shard
from pipelines.data.streams import shared_streams
from pipelines.errors import DeadlineError, MutiraoError, UserCodeError

T = TypeVar("T")

log = logging.getLogger(__name__)

DEADLINE_S = 600.0
TASKS_PER_THREAD = 8
LARGEST_TASK_BYTES = 256 << 20
LARGE_ARGUMENT_BYTES = 1 << 20
_TICK_S = 0.5
_EVIDENCE_S = 5.0


@dataclass(frozen=True)
class MapProgress:
    """How far a map over shards has got."""

    shards: int
    shards_total: int
    rows: int
    rows_total: int
    bytes: int
    bytes_total: int

    def after(self, shards: Sequence[Shard]) -> MapProgress:
        """The progress when these are done too."""
        rows, size = sum(shard.rows for shard in shards), sum(shard.bytes for shard in shards)
        return replace(self, shards=self.shards + len(shards), rows=self.rows + rows, bytes=self.bytes + size)


OnDone = Callable[[MapProgress], None]


def map_shards(
    client: Client | None,
    function: Callable[..., T],
    shards: Sequence[Shard],
    *args: Any,
    deadline_s: float = DEADLINE_S,
    retries: int = 3,
    on_done: OnDone | None = None,
) -> Generator[tuple[int, T], None, None]:
    """Run ``function(shard, *args)`` for every shard; yield (place in `shards`, result) in the order of `shards`.

    Neighbouring shards run in one task, where they share the decoding of row groups; about eight tasks per thread of
    the cluster. At most two tasks per thread are in flight. Close the iterator to cancel what is left.

    Parameters
    ----------
    client : distributed.Client or None
        None: in this process, one after the other.
    function : callable
        At module level, since it is pickled; must give the same result when it is run again. Results should be small.
    deadline_s : float
        Longest wait without any task being done.
    retries : int
        How often a task is tried again after its worker was lost (Dask has by then tried three workers each time).
    on_done : callable, optional
        Called with a `MapProgress` when shards are done, in the caller's thread, not in order.

    Raises
    ------
    UserCodeError
        `function` raised something that is no `MutiraoError`; the message names the shard's files.
    DeadlineError
        Nothing was done in time; the message names the first missing shard and what was seen of it.
    MutiraoError
        What `function` raised; or workers died on a task again and again.
    """
    progress = MapProgress(0, len(shards), 0, sum(s.rows for s in shards), 0, sum(s.bytes for s in shards))
    if client is None:
        with shared_streams():
            for at, shard in enumerate(shards):
                yield at, _call(function, shard, args)
                progress = progress.after([shard])
                if on_done is not None:
                    on_done(progress)
        return
    threads = max(1, sum(client.nthreads().values()))
    groups = group_shards(shards, max(1, progress.bytes_total // (TASKS_PER_THREAD * threads)))
    tasks = _Tasks(client, function, shards, args, groups, retries, deadline_s, 2 * threads)
    try:
        for group in range(len(groups)):
            while not tasks.is_done(group):
                for finished in tasks.advance():
                    progress = progress.after([shards[at] for at in groups[finished]])
                    if on_done is not None:
                        on_done(progress)
            yield from zip(groups[group], tasks.take(group), strict=True)
    finally:
        tasks.cancel()


def group_shards(shards: Sequence[Shard], target_bytes: int) -> list[range]:
    """Group neighbours into tasks of about `target_bytes`, without parting shards of one row group if it can be helped.

    Where it can't (a row group of more than twice the target), each further task decodes the row group's beginning
    again.
    """
    target = min(target_bytes, LARGEST_TASK_BYTES)
    groups, begin, size = [], 0, 0
    for at, shard in enumerate(shards):
        size += shard.bytes
        last = at + 1 == len(shards)
        if last or (size >= target and (size >= 2 * target or not _share_row_group(shard, shards[at + 1]))):
            groups.append(range(begin, at + 1))
            begin, size = at + 1, 0
    return groups


def _share_row_group(one: Shard, other: Shard) -> bool:
    last, first = one.slices[-1], other.slices[0]
    return (last.file.path, last.row_group) == (first.file.path, first.row_group)


def _run(packed: bytes, name: str, shards: Sequence[Shard]) -> list[Any]:
    """Run one task on a worker.

    The function comes as bytes: what can't be imported here is then the task's error. Left to Dask, it would end the
    worker that receives it, and the next one after it.
    """
    try:
        function, args = pickle.loads(packed)
    except Exception as error:  # noqa: BLE001 - the boundary to any module that a function may need
        raise UserCodeError(
            f"{name} can't be loaded on a worker",
            on=_files(shards[0]),
            found=f"{type(error).__name__}: {error}",
            remedy="Its module must be importable there: put it under `code:`.",
        ) from None
    with shared_streams():
        return [_call(function, shard, args) for shard in shards]


def _call(function: Callable[..., T], shard: Shard, args: tuple[Any, ...]) -> T:
    try:
        return function(shard, *args)
    except MutiraoError:
        raise
    except Exception as error:  # the boundary to any code that is mapped over shards, users' too
        log.exception("%s failed on shard %d", _name(function), shard.index)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UserCodeError(
            f"{_name(function)} failed on shard {shard.index}",
            on=_files(shard),
            found=f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})",
        ) from None


class _Tasks:
    """The tasks of one map: which are in flight, which are done, how long nothing happened."""

    def __init__(
        self,
        client: Client,
        function: Callable[..., T],
        shards: Sequence[Shard],
        args: tuple[Any, ...],
        groups: Sequence[range],
        retries: int,
        deadline_s: float,
        window: int,
    ) -> None:
        self._client, self._shards, self._groups = client, shards, groups
        self._retries, self._deadline_s, self._window = retries, deadline_s, window
        self._function, self._packed = _name(function), cloudpickle.dumps((function, args))
        self._name = f"{self._function}-{uuid.uuid4().hex[:8]}"
        self._submitted, self._taken = 0, 0
        self._flying: dict[int, Future] = {}
        self._done: dict[int, list[Any]] = {}
        self._lost: dict[int, int] = {}
        self._scattered: Future | None = None
        self._last = time.monotonic()

    def is_done(self, group: int) -> bool:
        return group in self._done

    def take(self, group: int) -> list[Any]:
        self._taken += 1
        return self._done.pop(group)

    def advance(self) -> list[int]:
        """Keep the window full, wait a moment; return the groups that got done."""
        self._check_connection(min(self._flying, default=self._submitted))
        while self._submitted < min(len(self._groups), self._taken + self._window):
            self._submit(self._submitted)
            self._submitted += 1
        with suppress(TimeoutError, CancelledError, FutureCancelledError):
            wait(list(self._flying.values()), timeout=_TICK_S, return_when="FIRST_COMPLETED")
        finished = [group for group, future in self._flying.items() if future.status != "pending"]
        done = [group for group in sorted(finished) if self._settle(group, self._flying.pop(group))]
        if finished:
            self._last = time.monotonic()
        elif time.monotonic() - self._last > self._deadline_s:
            self._give_up()
        return done

    def cancel(self) -> None:
        """Cancel what is in flight; quietly, also when the cluster is gone."""
        if self._flying and self._client.status == "running":
            with suppress(Exception):  # nothing is left to save, and the reason for leaving must not be hidden
                self._client.cancel(list(self._flying.values()), force=True)
        self._flying.clear()

    def _check_connection(self, group: int) -> None:
        if self._client.status in ("closing", "closed"):
            first = self._shards[self._groups[min(group, len(self._groups) - 1)][0]]
            raise MutiraoError(
                f"the cluster is gone; the first shard missing is shard {first.index} of {len(self._shards)}",
                on=_files(first),
                remedy="Look at the scheduler's log; then resume the run.",
            )

    def _submit(self, group: int) -> None:
        shards = [self._shards[at] for at in self._groups[group]]
        self._flying[group] = self._client.submit(
            _run,
            self._argument(),
            self._function,
            shards,
            key=f"{self._name}-{group}-{self._lost.get(group, 0)}",
            pure=False,
            priority=-group,
        )

    def _argument(self) -> bytes | Future:
        """Function and arguments: sent along with every task, or put on the workers once where they are large."""
        if len(self._packed) < LARGE_ARGUMENT_BYTES:
            return self._packed
        if self._scattered is None:
            self._scattered = self._client.scatter(self._packed, broadcast=True, hash=False)
        return self._scattered

    def _settle(self, group: int, future: Future) -> bool:
        """Take the result of a finished task, or send it again."""
        if future.status == "finished":
            try:
                self._done[group] = future.result(timeout=self._deadline_s)
                return True
            except (CancelledError, FutureCancelledError, TimeoutError, OSError) as error:
                return self._again(group, error)
        if future.status == "error":
            cause = future.exception(timeout=self._deadline_s)
            if isinstance(cause, KilledWorker):
                return self._again(group, cause)
            raise cause if isinstance(cause, MutiraoError) else self._unknown(group, cause)
        return self._again(group, CancelledError(f"task {future.status}"))

    def _again(self, group: int, error: BaseException) -> bool:
        self._check_connection(group)
        self._scattered = None  # it may have been lost with the workers
        first = self._shards[self._groups[group][0]]
        self._lost[group] = self._lost.get(group, 0) + 1
        if self._lost[group] > self._retries:
            raise MutiraoError(
                f"workers were lost {self._lost[group]} times on shard {first.index}",
                on=_files(first),
                found=str(error).splitlines()[0],
                remedy="They probably ran out of memory: give workers more, or cut the data into more shards.",
            ) from error
        log.warning("send shard %d again, attempt %d: %s", first.index, self._lost[group] + 1, error)
        self._submit(group)
        return False

    def _unknown(self, group: int, error: BaseException) -> UserCodeError:
        """What went wrong outside the function, like the pickling of its result."""
        return UserCodeError(
            f"{self._function} could not be run on a worker, or its result not be returned",
            on=_files(self._shards[self._groups[group][0]]),
            found=f"{type(error).__name__}: {error}",
        )

    def _give_up(self) -> None:
        group = min(self._flying)
        first = self._shards[self._groups[group][0]]
        raise DeadlineError(
            f"no shard was done within {self._deadline_s:g} s; the first one missing is shard {first.index} of "
            f"{len(self._shards)} ({self._function})",
            on=_files(first),
            found=self._evidence(self._flying[group]),
            remedy="Look at the workers' logs, or allow more time.",
        )

    def _evidence(self, task: Future) -> str:
        """What the scheduler says of a task; it may not answer either."""
        try:
            processing = self._client.sync(
                self._client.scheduler.processing, workers=None, callback_timeout=_EVIDENCE_S
            )
        except Exception as error:  # noqa: BLE001 - evidence for another error must not become one
            return f"the scheduler does not answer ({type(error).__name__})"
        if not processing:
            return "the cluster has no workers"
        for address, keys in processing.items():
            if task.key in keys:
                return f"it is with worker {address}, among {len(keys)} tasks"
        return f"no worker has it; there are {len(processing)} workers"


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _files(shard: Shard) -> str:
    paths = shard.paths
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more files" if len(paths) > 3 else "")
