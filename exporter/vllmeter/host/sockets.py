"""Text of ``/proc/PID/net/*`` -> listening sockets, connections and local addresses of a network namespace.  Pure."""

from __future__ import annotations

import ipaddress
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LISTEN: Final = "0A"
ESTABLISHED: Final = "01"


@dataclass(frozen=True, slots=True)
class SocketTable:
    """The TCP sockets of one network namespace.

    ``listening``: inode -> (address, port).  ``established``: listening port -> number of its connections.
    """

    listening: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    established: Mapping[int, int] = field(default_factory=dict)


def _address(text: str) -> str:
    """``0100007F`` -> ``127.0.0.1``: words in host byte order."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[place : place + 4][::-1] for place in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def parse_tcp(*texts: str) -> SocketTable:
    """Read ``net/tcp`` and ``net/tcp6``; lines that are cut off or odd are skipped."""
    listening: dict[int, tuple[str, int]] = {}
    connected: Counter[int] = Counter()
    for text in texts:
        for line in text.splitlines()[1:]:
            words = line.split(None, 10)
            if len(words) < 10 or words[3] not in (LISTEN, ESTABLISHED):
                continue
            try:
                host, _, port = words[1].partition(":")
                if words[3] == LISTEN:
                    listening[int(words[9])] = (_address(host), int(port, 16))
                else:
                    connected[int(port, 16)] += 1
            except ValueError:
                continue
    ports = {port for _, port in listening.values()}
    return SocketTable(listening, {port: count for port, count in connected.items() if port in ports})


def parse_fib_trie(text: str) -> tuple[str, ...]:
    """Local IPv4 addresses from ``net/fib_trie``: a leaf line followed by ``/32 host LOCAL``."""
    found: dict[str, None] = {}
    leaf = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("|-- "):
            leaf = stripped[4:]
        elif stripped == "/32 host LOCAL" and leaf:
            found[leaf] = None
    return tuple(found)


def parse_if_inet6(text: str) -> tuple[str, ...]:
    """Local IPv6 addresses from ``net/if_inet6`` (32 hex digits first)."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if words and len(words[0]) == 32:
            try:
                found.append(str(ipaddress.IPv6Address(bytes.fromhex(words[0]))))
            except ValueError:
                continue
    return tuple(found)
