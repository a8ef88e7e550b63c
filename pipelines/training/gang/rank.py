"""The process of one member: meet the others, run the program, hand over what it returns; do so in each formation.

``python -m`` runs it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.errors import DeadlineError, GangError, MutiraoError
from pipelines.training.gang import process, wire
from pipelines.training.gang.collective import PeerError, TcpCollective, listen
from pipelines.training.gang.context import Kept, RankContext, Regroup, StopRequested

logger = logging.getLogger(__name__)


def main() -> None:
    """Live the life of a member. Does not return."""
    launch = json.loads(sys.stdin.buffer.readline())
    process.die_with_parent(launch["parent"])
    threading.Thread(target=_leave_with_parent, daemon=True, name="lifeline").start()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    faulthandler.enable()
    host, port = launch["coordinator"]
    hello = {"role": "member", "member": launch["member"]}
    line = wire.dial((host, port), bytes.fromhex(launch["token"]), hello, launch["start_s"])
    code = _Member(launch, line).live()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of native libraries must not keep a finished rank alive


class _Member:
    """The connection to the coordinator, what it has said so far, and what is kept from formation to formation."""

    def __init__(self, launch: dict[str, Any], line: wire.Connection) -> None:
        self._launch, self._line = launch, line
        self._kept = Kept()
        self._said = threading.Condition()
        self._order: tuple[dict[str, Any], bytes] | None = None
        self._words: deque[dict[str, Any]] = deque()
        self._leave = ""
        self._dismissed = False
        self._stop, self._regroup = threading.Event(), threading.Event()
        self._collective: TcpCollective | None = None
        threading.Thread(target=self._listen, daemon=True, name="orders").start()

    def live(self) -> int:
        """Work in one formation after the other until dismissed; returns the exit code."""
        while True:
            with listen(self._launch["host"]) as sock:
                address = [self._launch["host"], sock.getsockname()[1]]
                self._line.send({"kind": "arrived", "address": address, "holds": self._kept.holds})
                # Peers take their time to start; the coordinator ends the wait.
                with self._said:
                    self._said.wait_for(lambda: self._order is not None or self._dismissed)
                    if self._order is None:
                        return 0
                    (order, arguments), self._order = self._order, None
                code = self._work(order, arguments, sock)
            if code is not None:
                return code
            gc.collect()  # frames of the formation's error hold its arrays
            process.give_back_memory()

    def _work(self, order: dict[str, Any], arguments: bytes, sock: socket.socket) -> int | None:
        """Work in one formation; returns an exit code, or None to arrive again."""
        try:
            result = self._program(order, arguments, sock)
        except StopRequested:
            self._line.send({"kind": "complained", "cause": "raised", "text": "left when asked", "leaving": True})
            return 0
        except Regroup:
            self._line.send({"kind": "left", "text": "left to form again", "blamed": None})
            return None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary of whatever a program may raise
            blamed = _find_blame(error)
            own = isinstance(error, MutiraoError) and not isinstance(error, GangError | DeadlineError)
            if not self._dismissed and (blamed is not None or (self._leave and not own)):
                logger.info("left formation %d: %s", order["formation"], self._leave or error)
                seen = None if blamed is None or self._leave else blamed.rank
                self._line.send({"kind": "left", "text": str(blamed or self._leave), "blamed": seen})
                return None
            traceback.print_exc()
            self._line.send({"kind": "complained", **self._describe(error)})
            return 1
        finally:
            self._collective = None
        self._line.send({"kind": "returned"}, result)
        with self._said:
            self._said.wait_for(lambda: self._leave or self._dismissed)
        if self._dismissed:
            return 0
        self._line.send({"kind": "left", "text": self._leave, "blamed": None})
        return None

    def _program(self, order: dict[str, Any], arguments: bytes, sock: socket.socket) -> bytes:
        module, _, name = self._launch["program"].partition(":")
        function = getattr(import_module(module), name)
        with TcpCollective(
            order["rank"],
            [(host, port) for host, port in order["addresses"]],
            sock,
            token=wire.derived(bytes.fromhex(self._launch["token"]), order["formation"]),
            step_s=self._launch["step_s"],
            start_s=self._launch["start_s"],
            leaving=lambda: self._leave,
        ) as collective:
            self._collective = collective
            if self._leave:
                collective.abort(self._leave)
            result = function(self._context(order, collective, json.loads(arguments)))
        if not isinstance(result, bytes):
            raise TypeError(
                f"a rank's program returns bytes, {self._launch['program']} returned {type(result).__name__}"
            )
        return result

    def _context(self, order: dict[str, Any], collective: TcpCollective, arguments: dict[str, Any]) -> RankContext:
        return RankContext(
            rank=order["rank"],
            size=len(order["addresses"]),
            collective=collective,
            arguments=arguments,
            threads=self._launch["threads"],
            memory_bytes=self._launch["memory_bytes"],
            host=self._launch["host"],
            scratch=Path(self._launch["scratch"]),
            report=lambda message: self._line.send({"kind": "report", "message": message}),
            stop_requested=self._stop.is_set,
            leaving=lambda: bool(self._leave),
            regroup_requested=self._regroup.is_set,
            committed=lambda step: self._line.send({"kind": "committed", "step": step}),
            hear=self._hear,
            formation=order["formation"],
            kept=self._kept,
        )

    def _hear(self, timeout_s: float) -> dict[str, Any] | None:
        with self._said:
            self._said.wait_for(lambda: self._words or self._leave or self._stop.is_set(), timeout_s)
            return self._words.popleft() if self._words else None

    def _listen(self) -> None:
        """Obey the coordinator for as long as it is there, and end with it."""
        while True:
            try:
                frame = self._line.receive(None)
            except (OSError, wire.Malformed):
                process.end_own_tree()
                return
            if frame is not None:
                with self._said:
                    self._obey(*frame)
                    self._said.notify_all()

    def _obey(self, order: dict[str, Any], payload: bytes) -> None:
        match order["kind"]:
            case "introduce":
                # Words for the formation before have all been read: the coordinator speaks in order.
                self._order, self._leave = (order, payload), ""
                self._regroup.clear()
                self._words.clear()
            case "word":
                self._words.append(order["word"])
            case "regroup":
                self._regroup.set()
            case "stop":
                self._stop.set()
            case "leave" | "dismiss":
                self._leave = order["reason"] or "the gang leaves"
                self._dismissed = self._dismissed or order["kind"] == "dismiss"
                collective = self._collective
                if collective is not None:
                    collective.abort(self._leave)

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
