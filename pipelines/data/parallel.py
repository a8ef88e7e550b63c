"""How is a function applied to many files side by side? In threads, or on a cluster when there are many."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import distributed

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with (files done, files in all) from the thread that waits for them."""

MANY_FILES = 2_000
"""From so many files on the cluster is used, when there is one."""

_CHUNK = 32
_CLUSTER_CHUNK = 500
_CLUSTER_SILENCE_S = 300.0
_REMOTE_THREADS = 32

_logger = logging.getLogger(__name__)


def gather(
    function: Callable[..., T],
    root: str,
    items: Sequence[Any],
    merge: Callable[[Sequence[T]], T],
    *arguments: Any,
    threads: int | None = None,
    client: distributed.Client | None = None,
    progress: Progress | None = None,
) -> T:
    """Apply ``function(root, items, offset, *arguments)`` to runs of files, and merge the results in order.

    Parameters
    ----------
    function : callable
        At module level; `offset` is the place of its first file among all.
    merge : callable
        At module level; merges results of consecutive runs into one, of none too.
    threads : int, optional
        By default the number of processors for local files, 32 for others.
    client : distributed.Client, optional
        Used from `MANY_FILES` files on. When its workers fail, or finish nothing for five minutes, threads of this
        process do the work.
    progress : callable, optional
    """
    if client is not None and len(items) >= MANY_FILES and not root.startswith("memory:"):
        import distributed

        try:
            return merge(_on_cluster(client, function, root, items, merge, arguments, progress))
        except (distributed.KilledWorker, distributed.comm.CommClosedError, TimeoutError) as error:
            _logger.warning("%d files of %s are read here: the cluster failed (%r)", len(items), root, error)
    return merge(_in_threads(function, root, items, arguments, threads, progress))


def _in_threads(
    function: Callable[..., T],
    root: str,
    items: Sequence[Any],
    arguments: Sequence[Any],
    threads: int | None,
    progress: Progress | None,
) -> list[T]:
    workers = threads or (_REMOTE_THREADS if "://" in root else os.cpu_count() or 1)
    step = max(1, min(_CHUNK, -(-len(items) // workers)))
    with ThreadPoolExecutor(workers, thread_name_prefix="footers") as pool:
        futures = [pool.submit(function, root, items[i : i + step], i, *arguments) for i in range(0, len(items), step)]
        try:
            for done in _counted(as_completed(futures), step, len(items), progress):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _counted(futures: Iterable[Future[T]], step: int, total: int, progress: Progress | None) -> Iterator[Future[T]]:
    for count, future in enumerate(futures, 1):
        yield future
        if progress is not None:
            progress(min(count * step, total), total)


def _on_cluster(
    client: distributed.Client,
    function: Callable[..., T],
    root: str,
    items: Sequence[Any],
    merge: Callable[[Sequence[T]], T],
    arguments: Sequence[Any],
    progress: Progress | None,
) -> list[T]:
    step = _CLUSTER_CHUNK
    futures = [
        client.submit(_on_worker, function, root, items[i : i + step], i, merge, arguments, pure=False, retries=2)
        for i in range(0, len(items), step)
    ]
    try:
        for done in _counted(_landing(futures), step, len(items), progress):
            done.result()
        results: list[T] = client.gather(futures)
    finally:
        client.cancel(futures)
    return results


def _landing(futures: Sequence[distributed.Future]) -> Iterator[distributed.Future]:
    """Yield futures as they finish; TimeoutError when none does for a long time."""
    import distributed

    pending = set(futures)
    while pending:
        done, pending = distributed.wait(pending, timeout=_CLUSTER_SILENCE_S, return_when="FIRST_COMPLETED")
        yield from done


def _on_worker(
    function: Callable[..., T],
    root: str,
    items: Sequence[Any],
    offset: int,
    merge: Callable[[Sequence[T]], T],
    arguments: Sequence[Any],
) -> T:
    def shifted(root: str, items: Sequence[Any], start: int, *arguments: Any) -> T:
        return function(root, items, offset + start, *arguments)

    return merge(_in_threads(shifted, root, items, arguments, None, None))
