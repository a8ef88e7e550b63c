"""The running environment, described: the interpreter and every installed distribution."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Environment:
    """The interpreter and every installed distribution; ``digest`` (SHA-256, hex) covers all of it."""

    python: str
    implementation: str
    platform: str
    packages: tuple[tuple[str, str], ...]
    digest: str

    def version(self, package: str) -> str | None:
        """The version of an installed distribution, None when it is not there."""
        return dict(self.packages).get(_normal(package))


@cache
def describe_environment() -> Environment:
    """Describe the running interpreter and its installed distributions, sorted by normalised name."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a broken installation has none; the first on the path is the one that is imported
            found.setdefault(_normal(name), distribution.version)
    packages = tuple(sorted(found.items()))
    python, implementation = platform.python_version(), platform.python_implementation()
    system = f"{platform.system()}-{platform.machine()}".lower()
    text = "\n".join([python, implementation, system, *(f"{name}=={version}" for name, version in packages)])
    return Environment(python, implementation, system, packages, hashlib.sha256(text.encode()).hexdigest())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
