"""What an address says about who can reach it."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this host can reach a listening address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
