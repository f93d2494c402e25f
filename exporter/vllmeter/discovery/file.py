"""Servers from files in Prometheus' file_sd form."""

from __future__ import annotations

import glob
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from vllmeter.config.settings import FileDiscovery as FileSettings
from vllmeter.config.settings import Server
from vllmeter.discovery.source import DiscoveryError
from vllmeter.discovery.targets import MOST_BYTES, MOST_SERVERS, ListError, Skips, parse_targets

log = logging.getLogger("vllmeter.discovery")

_MOST_FILES = 200


class FileDiscovery:
    """Reads all files on every look (they are small).

    A file that is not there has no servers.  One that cannot be read keeps what was known: it may be half written.
    Write files elsewhere and rename them.
    """

    name = "file"

    def __init__(self, settings: FileSettings) -> None:
        self.every = settings.every
        self._patterns = settings.files
        self._known: dict[str, tuple[Server, ...]] = {}
        self._skips = Skips()
        self._problems: frozenset[str] = frozenset()

    def find(self) -> Sequence[Server]:
        """Servers of all files, in the order of the patterns and the files' names.

        :raises DiscoveryError: none of the files can be read
        """
        paths = list(dict.fromkeys(path for pattern in self._patterns for path in sorted(glob.glob(pattern))))  # noqa: PTH207 - absolute and relative patterns alike
        problems: list[str] = []
        skipped: list[str] = []
        if len(paths) > _MOST_FILES:
            skipped.append(f"{len(paths)} files match, the first {_MOST_FILES} are read")
            paths = paths[:_MOST_FILES]
        known: dict[str, tuple[Server, ...]] = {}
        for path in paths:
            try:
                targets = parse_targets(_load(Path(path)))
            except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
                problems.append(f"{path}: {_words(error)}")
                if path in self._known:
                    known[path] = self._known[path]
                continue
            known[path] = targets.servers
            skipped += [f"{path}: {one}" for one in targets.skipped]
        self._known = known
        for sentence in self._skips.new(skipped):
            log.warning("source=file %s", sentence)
        if problems and len(problems) == len(paths):
            raise DiscoveryError("; ".join(problems[:5]))
        fresh = frozenset(problems) - self._problems
        self._problems = frozenset(problems)
        for problem in sorted(fresh):
            log.warning("source=file kept what was known: %s", problem)
        return [server for servers in known.values() for server in servers][:MOST_SERVERS]


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ListError(f"larger than {MOST_BYTES >> 20} MiB")
    if not text.strip():
        return []
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix in (".yml", ".yaml"):
        return yaml.safe_load(text)
    raise ListError("name it .json, .yml or .yaml")


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return " ".join(str(error).split())[:200] or type(error).__name__
