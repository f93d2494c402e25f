"""Words of this machine that a recording must not hold: its names, and its user's."""

from __future__ import annotations

import socket
from pathlib import Path


def host_names() -> list[str]:
    """Names of this host, without asking a name server."""
    name = socket.gethostname()
    return [name, name.partition(".")[0]]


def user_names() -> list[str]:
    """Names of people that paths may hold: the user's own, unless it is a common word."""
    name = Path.home().name
    return [name] if len(name) > 3 and name not in ("root", "user", "home", "ubuntu", "vllm") else []
