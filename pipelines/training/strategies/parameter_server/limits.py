"""How long may each wait of a parameter server last?"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import UsageError


@dataclass(frozen=True)
class Limits:
    """Limits in seconds.

    Raises
    ------
    UsageError
        A lease that does not end before a server counts as lost: two servers might serve one shard.
    """

    start_s: float = 60.0
    """For all servers to come, and for a client's first view."""
    silence_s: float = 3.0
    """Without a word from a server, before its replicas take over. A server that was killed is noticed at once."""
    lease_s: float = 2.0
    """So long a server serves after the last word that it knows the arbiter has had from it."""
    failover_s: float = 15.0
    """For a shard to be served again after its server was lost, as its clients see it."""
    step_s: float = 120.0
    """For a ticket or a turn: the slowest worker's step. Also for one answer of a server that is there."""
    idle_s: float = 600.0
    """For the arbiter to say anything at all, as servers see it."""

    def __post_init__(self) -> None:
        if not 0 < self.lease_s < self.silence_s or min(self.start_s, self.failover_s, self.step_s) <= 0:
            raise UsageError(
                "the limits of a parameter server do not fit together",
                expected="positive limits, lease_s below silence_s",
                found=repr(self),
            )
