"""One server per address behind a name: headless services, round-robin names."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from vllmeter.config.settings import DnsDiscovery as DnsSettings
from vllmeter.config.settings import Server
from vllmeter.discovery.source import DiscoveryError
from vllmeter.discovery.targets import MOST_SERVERS, refused, server_name

TIMEOUT_SECONDS = 5.0

Resolve = Callable[[str, int], list[tuple[Any, ...]]]


def _resolve(name: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))


class DnsDiscovery:
    """Resolves a name (A and AAAA).  One that does not exist has no servers; a resolver that fails changes nothing."""

    name = "dns"

    def __init__(self, settings: DnsSettings, *, resolve: Resolve = _resolve, timeout: float = TIMEOUT_SECONDS) -> None:
        self.every = settings.every
        self._host = settings.name
        self._port = settings.port
        self._resolve = resolve
        self._timeout = timeout
        self._pending: threading.Thread | None = None

    def find(self) -> Sequence[Server]:
        """A server per address, sorted by address, named after both.

        :raises DiscoveryError: the resolver fails or does not answer in time
        """
        short = self._host.rstrip(".").partition(".")[0]
        servers = []
        for address in sorted(self._addresses()):
            shown = f"[{address}]" if ":" in address else address
            url = f"http://{shown}:{self._port}"
            if refused(url) is None:
                servers.append(Server(name=server_name(f"{short}-{address}"), url=url))
        return servers[:MOST_SERVERS]

    def _addresses(self) -> set[str]:
        # The resolver of the C library cannot be given a time limit: it waits in a thread of its own.
        if self._pending is not None and self._pending.is_alive():
            raise DiscoveryError(f"{self._host}: the resolver still has not answered")
        answers: list[list[tuple[Any, ...]]] = []
        failures: list[OSError] = []

        def ask() -> None:
            try:
                answers.append(self._resolve(self._host, self._port))
            except OSError as error:
                failures.append(error)
            except UnicodeError:
                failures.append(socket.gaierror(socket.EAI_FAIL, "no valid host name"))

        self._pending = threading.Thread(target=ask, name="dns", daemon=True)
        self._pending.start()
        self._pending.join(self._timeout)
        if failures:
            gone = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
            if failures[0].errno in gone:
                return set()
            raise DiscoveryError(f"{self._host}: {failures[0].strerror or failures[0]}")
        if not answers:
            raise DiscoveryError(f"{self._host}: the resolver does not answer within {self._timeout:g} s")
        return {str(entry[4][0]) for entry in answers[0] if "%" not in str(entry[4][0])}
