"""Optional, read-only look at a Docker (or Podman) engine over its unix socket."""

from __future__ import annotations

from vllmeter.snapshot import ContainerTable


class DockerReader:
    """Running containers, cached; an engine that is slow, absent or refuses is a reason and never an exception."""

    def __init__(self, socket_path: str = "/var/run/docker.sock", *, timeout: float = 2.0, every: float = 10.0) -> None:
        raise NotImplementedError

    def read(self, at: float) -> ContainerTable:
        """The containers, at most ``every`` seconds old, fetched in a background thread (returns at once)."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the background thread."""
        raise NotImplementedError
