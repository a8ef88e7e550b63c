"""Start a member on this machine, look after it, and end it: what a Dask worker runs for each member of a gang.

The watcher owns the member's process and scratch folder. It speaks to the coordinator over a connection of its own:
when that closes, for whatever reason, the member is killed; when the watcher's thread or process ends, the kernel kills
the member (and, where the kernel can't, the end of its standard input tells it to leave).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pipelines.training.gang import process, wire
from pipelines.training.gang.events import STOPPED

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""Between two looks at the process."""
BEAT_S = 0.5
"""Between two words to the coordinator."""
LOG_LINES = 60
_RANK = "pipelines.training.gang.rank"


@dataclass(frozen=True)
class Launch:
    """What a watcher must know to start its member; small, since it travels as a task's argument."""

    gang: str
    member: int
    coordinator: tuple[str, int]
    token: str
    program: str
    threads: int
    memory_bytes: int | None
    step_s: float
    start_s: float
    shares_worker: bool = False
    """Whether the Dask worker does other tasks beside the rank."""

    def plain(self) -> dict[str, Any]:
        """Turn it into JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Launch:
        """Rebuild it from `plain`'s result."""
        host, port = plain["coordinator"]
        return cls(**{**plain, "coordinator": (host, port)})


@dataclass(frozen=True)
class Site:
    """Where a watcher runs: the worker's name, the address that peers can reach, its folder, and its own memory."""

    worker: str
    host: str
    folder: Path
    own_rss_bytes: int


def watch(launch: Launch, site: Site) -> None:
    """Run one rank to its end. Returns when the rank is gone and its scratch folder removed."""
    token = bytes.fromhex(launch.token)
    hello = {"role": "watcher", "member": launch.member, "worker": site.worker}
    connection = wire.dial(launch.coordinator, token, hello, launch.start_s)
    _sweep(site.folder)
    scratch = Path(tempfile.mkdtemp(prefix=_scratch_prefix(), dir=site.folder))
    try:
        _Watch(launch, site, connection, scratch).run()
    finally:
        connection.close()
        shutil.rmtree(scratch, ignore_errors=True)


class _Watch:
    """One rank's process, its log and the connection to the coordinator."""

    def __init__(self, launch: Launch, site: Site, connection: wire.Connection, scratch: Path) -> None:
        self._launch, self._site, self._connection, self._scratch = launch, site, connection, scratch
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._peak = 0
        self._slowing: threading.Thread | None = None
        self._slowed = threading.Event()
        self._mark = secrets.token_hex(8)

    def run(self) -> None:
        child = process.start(_RANK, self._scratch, self._mark)
        drain = threading.Thread(
            target=self._drain, args=(child,), daemon=True, name=f"log of member {self._launch.member}"
        )
        drain.start()
        try:
            self._brief(child)
            exit_record = self._attend(child)
        finally:
            process.kill_tree(child, self._mark)
            self._end_slowing()
            drain.join(timeout=5)
            assert child.stdin is not None
            assert child.stdout is not None
            _close_quietly(child.stdin)
            if not drain.is_alive():  # closing a pipe waits for its reader
                _close_quietly(child.stdout)
        if exit_record is not None:
            self._say({**exit_record, "log": "\n".join(self._log), "peak_rss_bytes": self._peak})
            self._await_close()

    def _brief(self, child: subprocess.Popen[bytes]) -> None:
        """Tell the rank who it is, over its standard input, which then stays open as its lifeline."""
        share = self._launch.memory_bytes
        record = {
            **self._launch.plain(),
            "memory_bytes": None if share is None else max(share - self._site.own_rss_bytes, 0),
            "parent": os.getpid(),
            "host": self._site.host,
            "scratch": str(self._scratch),
        }
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(record).encode() + b"\n")
            child.stdin.flush()
        except OSError:
            pass  # it has ended already: the look at the process tells

    def _attend(self, child: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """Look, tell and obey until the rank ends. None: the coordinator is gone."""
        next_beat, turns = 0.0, -1
        while True:
            code = child.poll()
            if code is not None:
                return {
                    "kind": "gone",
                    "cause": "killed" if code == -9 else "died",
                    "text": process.describe_exit(code),
                }
            vitals = process.measure(child.pid)
            if vitals is not None:
                excess = self._excess(vitals.rss_bytes)
                if excess:
                    process.kill_tree(child, self._mark)
                    return {"kind": "gone", "cause": "memory", "text": excess}
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + BEAT_S
                    # What is stopped in turns is slow. Every look may fall into the time that it is stopped.
                    state = "slowed" if vitals.state in STOPPED and vitals.turns != turns else vitals.state
                    turns = vitals.turns
                    word = {"state": state, "cpu_s": vitals.cpu_s, "rss_bytes": vitals.rss_bytes}
                    self._say({"kind": "beat", **word})
            if not self._obey(child):
                return None

    def _excess(self, tree_rss_bytes: int) -> str:
        held = tree_rss_bytes + (process.own_rss_bytes() if self._site.own_rss_bytes else 0)
        self._peak = max(self._peak, held)
        limit = self._launch.memory_bytes
        if limit is None or held <= limit:
            return ""
        return f"its worker's processes held {_mib(held)} of memory, the limit is {_mib(limit)}: the rank was ended"

    def _obey(self, child: subprocess.Popen[bytes]) -> bool:
        try:
            frame = self._connection.receive(LOOK_S)
        except (OSError, wire.Malformed):
            logger.info("member %d: the coordinator has closed the connection, ending it", self._launch.member)
            return False
        match frame and frame[0]:
            case {"kind": "kill"}:
                process.kill_tree(child, self._mark)
            case {"kind": "strike", "harm": harm, "factor": factor}:
                self._strike(child, str(harm), float(factor))
        return True

    def _strike(self, child: subprocess.Popen[bytes], harm: str, factor: float) -> None:
        """Harm the member as it was asked for; what comes of it is noticed as if nobody had."""
        logger.warning("member %d: injecting a fault: %s", self._launch.member, harm)
        match harm:
            case "kill":
                child.kill()
            case "stop":
                self._end_slowing()  # which would let it go on again
                child.send_signal(signal.SIGSTOP)
            case "slow" if self._slowing is None:
                arguments = (child, factor, self._slowed)
                self._slowing = threading.Thread(target=process.slow, args=arguments, daemon=True, name="slowing")
                self._slowing.start()
            case "worker" if self._site.own_rss_bytes:
                os.kill(os.getpid(), signal.SIGKILL)

    def _end_slowing(self) -> None:
        if self._slowing is not None:
            self._slowed.set()
            self._slowing.join()
            self._slowing = None

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the next receive notices the end of the connection
            self._connection.send(message)

    def _await_close(self) -> None:
        """Keep the connection until the coordinator has read the last word."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                self._connection.receive(1)
            except (OSError, wire.Malformed):
                return

    def _drain(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            text = line.decode(errors="replace").rstrip()
            self._log.append(text[:2000])
            logger.info("member %d: %s", self._launch.member, text)


def _scratch_prefix() -> str:
    me = psutil.Process()
    return f"gang.{socket.gethostname()}.{me.pid}.{int(me.create_time() * 100)}."


def _sweep(folder: Path) -> None:
    """Remove the scratch folders of watchers on this machine that were killed."""
    for path in folder.glob(f"gang.{socket.gethostname()}.*"):
        _, _, pid, born, _ = path.name.rsplit(".", 4)
        if not _alive(int(pid), int(born)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int, born: int) -> bool:
    try:
        return int(psutil.Process(pid).create_time() * 100) == born
    except psutil.Error:
        return False


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _close_quietly(pipe: Any) -> None:
    with suppress(OSError):  # a broken pipe at its last flush
        pipe.close()


def local_site(worker: str = "this machine") -> Site:
    """Describe the process that calls as the place of a rank that has no Dask worker."""
    return Site(worker, "127.0.0.1", Path(tempfile.gettempdir()), 0)


def address_towards(host: str) -> str:
    """Return this machine's own address on the way to `host`."""
    family = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
