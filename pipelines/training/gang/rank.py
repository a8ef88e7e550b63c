"""The process of one rank: meet the others, run the program, hand over what it returns. ``python -m`` runs it."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.errors import MutiraoError
from pipelines.training.gang import process, wire
from pipelines.training.gang.collective import PeerError, TcpCollective, listen
from pipelines.training.gang.context import RankContext, StopRequested

logger = logging.getLogger(__name__)


def main() -> None:
    """Live the life of a rank. Does not return."""
    launch = json.loads(sys.stdin.buffer.readline())
    process.die_with_parent(launch["parent"])
    threading.Thread(target=_leave_with_parent, daemon=True, name="lifeline").start()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    faulthandler.enable()
    host, port = launch["coordinator"]
    sock = listen(launch["host"])
    hello = {"role": "rank", "rank": launch["rank"], "address": [launch["host"], sock.getsockname()[1]]}
    line = wire.dial((host, port), bytes.fromhex(launch["token"]), hello, launch["start_s"])
    rank = _Rank(launch, line)
    code = rank.run(sock)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of native libraries must not keep a finished rank alive


class _Rank:
    """The connection to the coordinator, and what it has said so far."""

    def __init__(self, launch: dict[str, Any], line: wire.Connection) -> None:
        self._launch, self._line = launch, line
        self._introduced = threading.Event()
        self._orders: dict[str, Any] = {}
        self._arguments = b""
        self._stop = threading.Event()
        self._aborted = ""
        self._collective: TcpCollective | None = None
        threading.Thread(target=self._listen, daemon=True, name="orders").start()

    def run(self, sock: Any) -> int:
        """Run the program and tell its outcome; returns the exit code."""
        try:
            result = self._program(sock)
        except StopRequested:
            self._line.send({"kind": "complained", "cause": "raised", "text": "left when asked", "leaving": True})
            return 0
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary of whatever a program may raise
            traceback.print_exc()
            self._line.send({"kind": "complained", **self._describe(error)})
            return 1
        self._line.send({"kind": "returned"}, result)
        return 0

    def _program(self, sock: Any) -> bytes:
        module, _, name = self._launch["program"].partition(":")
        function = getattr(import_module(module), name)
        # Peers take their time to start; the coordinator ends the wait.
        self._introduced.wait()
        with TcpCollective(
            self._launch["rank"],
            [(host, port) for host, port in self._orders["addresses"]],
            sock,
            token=bytes.fromhex(self._launch["token"]),
            step_s=self._launch["step_s"],
            start_s=self._launch["start_s"],
        ) as collective:
            self._collective = collective
            if self._aborted:
                collective.abort(self._aborted)
            result = function(self._context(collective))
        if not isinstance(result, bytes):
            raise TypeError(
                f"a rank's program returns bytes, {self._launch['program']} returned {type(result).__name__}"
            )
        return result

    def _context(self, collective: TcpCollective) -> RankContext:
        return RankContext(
            rank=self._launch["rank"],
            size=self._launch["size"],
            collective=collective,
            arguments=json.loads(self._arguments),
            threads=self._launch["threads"],
            memory_bytes=self._launch["memory_bytes"],
            host=self._launch["host"],
            scratch=Path(self._launch["scratch"]),
            report=lambda message: self._line.send({"kind": "report", "message": message}),
            stop_requested=self._stop.is_set,
        )

    def _listen(self) -> None:
        """Obey the coordinator for as long as it is there, and end with it."""
        while True:
            try:
                frame = self._line.receive(None)
            except (OSError, wire.Malformed):
                process.end_own_tree()
                return
            if frame is None:
                continue
            order, payload = frame
            if order["kind"] == "introduce":
                self._orders, self._arguments = order, payload
                self._introduced.set()
            elif order["kind"] == "stop":
                self._stop.set()
            elif order["kind"] == "abort":
                self._abort(order["reason"])

    def _abort(self, reason: str) -> None:
        self._aborted = reason
        if self._collective is not None:
            self._collective.abort(reason)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        blamed = _find_blame(error)
        text = "".join(traceback.format_exception_only(error)).strip()
        details: dict[str, Any] = {
            "traceback": "".join(traceback.format_exception(error)),
            "user_code": _is_users(error),
            "class": type(error).__name__,
        }
        if isinstance(error, MutiraoError):
            details["fields"] = [str(field) for field in error.args]
            text = str(error)
        if blamed is not None:
            return {"cause": "blamed", "text": text, "details": {**details, "blamed": blamed.rank}}
        return {"cause": "raised", "text": text, "details": details}


def _find_blame(error: BaseException | None) -> PeerError | None:
    """Find the collective's complaint about another rank at the root of an error."""
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, PeerError):
            return error
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def _is_users(error: BaseException) -> bool:
    """Whether the error passed through code that is neither ours nor an installed library's."""
    ours = (str(Path(__file__).resolve().parents[2]), "<frozen")
    for frame in traceback.extract_tb(error.__traceback__):
        installed = "site-packages" in frame.filename or frame.filename.startswith((*ours, sys.base_prefix))
        if not installed:
            return True
    return False


def _leave_with_parent() -> None:
    """Wait for the end of the parent, where the kernel does not kill for us."""
    while sys.stdin.buffer.read(1 << 12):
        time.sleep(0)
    process.end_own_tree()


if __name__ == "__main__":
    main()
