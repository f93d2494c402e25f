"""Servers from a URL in Prometheus' http_sd form."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from vllmeter.config.settings import HttpDiscovery as HttpSettings
from vllmeter.config.settings import Server
from vllmeter.discovery.fetch import JsonClient
from vllmeter.discovery.source import DiscoveryError
from vllmeter.discovery.targets import MOST_BYTES, ListError, Skips, parse_targets

log = logging.getLogger("vllmeter.discovery")


class HttpDiscovery:
    """Asks a list of target groups.  A list that cannot be had keeps what was known, as Prometheus does."""

    name = "http"

    def __init__(self, settings: HttpSettings) -> None:
        self.every = settings.every
        self._url = settings.url
        self._client = JsonClient()
        self._skips = Skips()

    def find(self) -> Sequence[Server]:
        """The servers of the list.

        :raises DiscoveryError: no list
        """
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise DiscoveryError(f"discovery.http.url: {self._url!r} is no http:// or https:// address")
        headers = {"X-Prometheus-Refresh-Interval-Seconds": f"{self.every:g}"}
        document = self._client.get(self._url, most_bytes=MOST_BYTES, headers=headers)
        try:
            targets = parse_targets(document)
        except ListError as error:
            raise DiscoveryError(f"{self._url}: {error}") from None
        for sentence in self._skips.new(targets.skipped):
            log.warning("source=http %s", sentence)
        return targets.servers
