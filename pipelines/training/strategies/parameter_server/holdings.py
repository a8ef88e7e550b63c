"""Which shards does a server hold, and in what part? Whatever the arbiter's latest view says."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pipelines.training.strategies.parameter_server import frames
from pipelines.training.strategies.parameter_server.holding import Holding
from pipelines.training.strategies.parameter_server.layout import Layout
from pipelines.training.strategies.parameter_server.rules import Rule
from pipelines.training.strategies.parameter_server.shard import Shard
from pipelines.training.strategies.parameter_server.streams import Hub, Stream
from pipelines.training.strategies.parameter_server.views import Holders, View

logger = logging.getLogger(__name__)


class Holdings:
    """One server's shards, by their numbers.

    Parameters
    ----------
    hub : Hub
        Through which primaries dial their replicas.
    layout : Layout
    rule : Rule
    free : sequence of int
        The keys whose weights are not penalised.
    """

    def __init__(self, hub: Hub, layout: Layout, rule: Rule, free: Sequence[int]) -> None:
        self._hub, self._layout, self._rule = hub, layout, rule
        self._free = [layout.find(key) for key in free]
        self._held: dict[int, Holding] = {}
        self._view: View | None = None
        self.me = -1
        """The number that the arbiter has given to this server."""

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._held.values())

    def get(self, index: int) -> Holding | None:
        """Return a shard, if it is here."""
        return self._held.get(index)

    def known_term(self, index: int) -> int:
        """Return a shard's term as the arbiter has told it; 0 before it has."""
        return self._view.shards[index].term if self._view is not None else 0

    @property
    def hungry(self) -> bool:
        """Whether a replica that is being filled could take more at once."""
        return any(held.filling is not None and held.link is not None and not held.link.unsent for held in self)

    def fill(self) -> None:
        """Send some more to replicas that are not complete."""
        for held in self:
            held.fill(self._hub)

    def adopt(self, view: View, me: int) -> None:
        """Take the part that a view gives to this server in every shard."""
        self._view, self.me = view, me
        for index, holders in enumerate(view.shards):
            held = self._held.get(index)
            if held is not None and held.term >= holders.term:
                continue
            if holders.primary == me:
                self._lead(index, holders, view)
            elif holders.replica == me:
                self._follow(index, holders.term, fresh=not holders.synced)
            else:
                self._held.pop(index, None)

    def welcome_primary(self, index: int, term: int, *, synced: bool) -> bool:
        """Let a shard's primary in, which may hear of a new term before this server; False: it was given up."""
        known, held = self.known_term(index), self._held.get(index)
        if term < known:
            return False
        if term > known and (held is None or held.term < term):
            self._follow(index, term, fresh=not synced)
        return True

    def unlink(self, stream: Stream) -> Holding | None:
        """Note that a connection to a replica has ended; returns its shard.

        Those who wait for the replica go on waiting: only the arbiter knows who of the two is still there.
        """
        for held in self:
            if held.link is stream:
                held.link, held.filling = None, None
                return held
        return None

    def _lead(self, index: int, holders: Holders, view: View) -> None:
        held = self._held.get(index)
        if held is None:
            held = self._held[index] = Holding(index, self._new_shard(index), holders.term, True)
        if not held.primary:
            logger.info("server %d takes over shard %d in term %d", self.me, index, holders.term)
        held.term, held.primary = holders.term, True
        link = None
        if holders.replica is not None:
            hello = {"role": "primary", "name": 0, "shard": index, "term": holders.term, "synced": holders.synced}
            link = self._hub.dial(view.servers[holders.replica], frames.to_json(hello))
        held.attach(link, holders.replica, synced=holders.synced, hub=self._hub)

    def _follow(self, index: int, term: int, *, fresh: bool) -> None:
        held = self._held.get(index)
        if held is not None and held.link is not None:
            self._hub.close(held.link)
            held.link = None
        if held is None or fresh:
            self._held[index] = Holding(index, self._new_shard(index), term, False)
            return
        held.term, held.primary, held.replica, held.synced, held.filling = term, False, None, False, None
        held.waiting.clear()  # whoever waits asks the new primary again

    def _new_shard(self, index: int) -> Shard:
        free = [place for shard, place in self._free if shard == index]
        return Shard(self._layout.length(index), self._rule, free)
