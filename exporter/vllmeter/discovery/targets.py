"""Prometheus' target groups (file_sd, http_sd) -> servers.  Lists are bounded; a bad entry costs itself only."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from vllmeter.config.settings import Server

MOST_SERVERS: Final = 500
"""Servers that one source may give; a host has tens."""
_MOST_ENTRIES: Final = 10 * MOST_SERVERS
"""Entries looked at, good or bad: a short file can name a million by anchors."""
MOST_BYTES: Final = 4 << 20
"""Largest list that is read."""
_LONGEST_NAME: Final = 63

LABEL_BYTES: Final = "__vllmeter_budget_bytes__"
LABEL_FRACTION: Final = "__vllmeter_budget_fraction__"
LABEL_CONTAINER: Final = "__vllmeter_container__"


@dataclass(frozen=True, slots=True)
class Targets:
    """Servers of a list, and a sentence for each entry that was left out (at most 20)."""

    servers: tuple[Server, ...]
    skipped: tuple[str, ...] = ()


class ListError(ValueError):
    """The document is no list of target groups."""


def server_name(text: str) -> str:
    """A name that the configuration accepts, as close to ``text`` as possible; the end of a long one is kept."""
    name = re.sub(r"[^A-Za-z0-9_.:/-]+", "-", text.replace("[", "").replace("]", ""))
    return name[-_LONGEST_NAME:].lstrip("_.:/-") or "server"


def parse_targets(document: Any) -> Targets:
    """``[{"targets": ["host:port"], "labels": {…}}]`` -> servers.

    Labels: ``server`` names it (default: the address); ``__scheme__`` and ``__metrics_path__`` as in Prometheus;
    ``__vllmeter_budget_fraction__``, ``__vllmeter_budget_bytes__`` and ``__vllmeter_container__`` as ``budget`` and
    ``match.container`` of a listed server.  Others are ignored: labels belong to Prometheus' relabelling.

    :raises ListError: the document has another form
    """
    if not isinstance(document, list):
        raise ListError(f"expected a list of target groups, found {type(document).__name__}")
    servers: list[Server] = []
    skipped: list[str] = []
    seen: set[str] = set()
    looked_at = 0
    for number, group in enumerate(document):
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            skipped.append(f"entry {number}: no `targets` list")
            looked_at += 1
            continue
        raw = group.get("labels") or {}
        labels = {str(key): str(value) for key, value in raw.items()} if isinstance(raw, dict) else {}
        for target in group["targets"]:
            looked_at += 1
            if looked_at > _MOST_ENTRIES or len(servers) >= MOST_SERVERS:
                skipped.append(f"more than {MOST_SERVERS} servers: the rest is left out")
                return Targets(tuple(servers), tuple(skipped[-20:]))
            made = _server(target, labels)
            if isinstance(made, str):
                skipped.append(f"entry {number}: {made}")
            elif made.url not in seen:
                seen.add(made.url)
                servers.append(made)
        if looked_at > _MOST_ENTRIES:
            skipped.append(f"more than {_MOST_ENTRIES} entries: the rest is left out")
            break
    return Targets(tuple(servers), tuple(skipped[-20:]))


def _server(target: Any, labels: dict[str, str]) -> Server | str:
    """A server, or why not."""
    if not isinstance(target, str) or len(target) > 300 or not target.strip():
        return f"target {str(target)[:60]!r} is no HOST:PORT"
    scheme = labels.get("__scheme__", "http")
    path = labels.get("__metrics_path__", "/metrics")
    address = target.strip()
    if "://" in address or "/" in address:
        return f"target {address[:60]!r} is no HOST:PORT (scheme and path are labels)"
    url = f"{scheme}://{address}"
    why = refused(url)
    if why:
        return f"target {address[:60]!r}: {why}"
    fields: dict[str, Any] = {"name": server_name(labels.get("server") or address), "url": url, "metrics_path": path}
    if LABEL_FRACTION in labels:
        fields["budget"] = {"fraction": labels[LABEL_FRACTION]}
    elif LABEL_BYTES in labels:
        fields["budget"] = {"bytes": labels[LABEL_BYTES]}
    if LABEL_CONTAINER in labels:
        fields["match"] = {"container": labels[LABEL_CONTAINER]}
    try:
        return Server.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"target {address[:60]!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}"


def refused(url: str) -> str | None:
    """Why a found address is never asked: link-local ones are cloud metadata services, and some are no hosts at all."""
    try:
        host = urlsplit(url).hostname or ""
        address = ipaddress.ip_address(host)
    except ValueError:
        return None  # a name, or no URL at all: the settings decide
    if address.is_link_local:
        return "a link-local address (cloud metadata) is not asked"
    if address.is_multicast or address.is_unspecified:
        return "no address of a host"
    return None


class Skips:
    """Remembers what was said about a list, so that each sentence is logged once."""

    def __init__(self) -> None:
        self._said: frozenset[str] = frozenset()

    def new(self, skipped: Sequence[str]) -> list[str]:
        """The sentences that were not there last time."""
        now = frozenset(skipped)
        fresh = sorted(now - self._said)
        self._said = now
        return fresh
