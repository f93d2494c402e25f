"""The one place that builds objects and connects them: settings -> sources, store, sampler, service."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from vllmeter.config.load import ConfigError, load_config
from vllmeter.config.settings import Server, Settings
from vllmeter.discovery.merge import merge_servers
from vllmeter.discovery.source import DiscoverySource
from vllmeter.gpu.source import GpuSource
from vllmeter.host.logs import LogWatch
from vllmeter.host.source import ProcessSource
from vllmeter.memory.argv import mask_text
from vllmeter.render.metrics import render_metrics
from vllmeter.runs.baseline import FILE as BASELINE_FILE
from vllmeter.runs.baseline import load_baselines
from vllmeter.runs.store import default_state_dir
from vllmeter.sampler import HostSources, Sampler
from vllmeter.snapshot import ConfigStatus, RunMark, Snapshot
from vllmeter.store import Store
from vllmeter.web.bodies import Bodies

log = logging.getLogger("vllmeter")


def build_sources(settings: Settings) -> HostSources:
    """Real NVML, ``/proc`` and Docker, or a replay's, as the settings say."""
    if settings.nvml.replay is not None:
        from vllmeter.recording.sources import ReplayGpuSource, ReplayProcessSource

        return HostSources(ReplayGpuSource(settings.nvml.replay), ReplayProcessSource(settings.nvml.replay))
    from vllmeter.gpu.nvml import WatchedGpuSource
    from vllmeter.host.proc import ProcReader

    gpu: GpuSource | None = WatchedGpuSource() if settings.nvml.enabled else None
    processes: ProcessSource = ProcReader(settings.nvml.proc)
    if settings.docker.socket is None:
        return HostSources(gpu, processes)
    from vllmeter.host.docker import DockerReader

    return HostSources(gpu, processes, DockerReader(str(settings.docker.socket)).read)


_BASELINE_EVERY = 2.0


class Exporter:
    """A running exporter: what the web side, the CLI and the tests hold on to (see web.app.Service)."""

    def __init__(
        self,
        settings: Settings,
        *,
        config_path: Path | None = None,
        sources: HostSources | None = None,
        state_dir: Path | None = None,
        listen: str | None = None,
    ) -> None:
        self._settings = settings
        self._listen = listen
        self._found: Sequence[tuple[str, Sequence[Server]]] = ()
        self._config_path = config_path
        self._state_dir = state_dir or state_directory(settings)
        self._sources = sources or build_sources(settings)
        self.store = Store(settings)
        self.store.config = ConfigStatus(True, time.time())
        self._sampler = Sampler(settings, self.store, self._sources)
        self._logs = LogWatch(self.store.log_facts)
        self._reload_lock = threading.Lock()
        self._bodies = Bodies(self._render)
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._started = False
        self._stopping = threading.Event()
        self._baselines_seen: tuple[float, int] | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Starts sampling."""
        self._load_baselines()
        self._started = True
        self._sampler.start()
        threading.Thread(target=self._watch_baselines, name="baselines", daemon=True).start()
        self._follow_logs()
        self._logs.start()

    def stop(self) -> None:
        """Stops sampling; returns within a few seconds whatever a driver or a server does."""
        self._stopping.set()
        self._logs.stop()
        self._sampler.stop()

    # ------------------------------------------------------------------ web.app.Service

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self.store.snapshot(time.monotonic(), time.time())

    def metrics(self, *, openmetrics: bool, packed: bool = False) -> bytes:
        """The ``/metrics`` body, ``packed``: as gzip."""
        return self._bodies.get(openmetrics, packed=packed)

    def metrics_at_once(self, *, openmetrics: bool, packed: bool = False) -> bytes | None:
        """The same where it lies ready, else None."""
        return self._bodies.at_once(openmetrics, packed=packed)

    def _render(self, openmetrics: bool) -> bytes:
        return render_metrics(
            self.snapshot(), self.store.blocks(), openmetrics=openmetrics, extra=self._own(openmetrics)
        )

    def _own(self, openmetrics: bool) -> bytes:
        """CPU, memory and descriptors of this process, in the standard names."""
        body: bytes = (generate_openmetrics if openmetrics else generate_latest)(self._registry)
        return body.removesuffix(b"# EOF\n")

    def settings(self) -> Settings:
        """The settings in force, discovered servers included."""
        servers, _ = merge_servers(self._settings.servers, self._found)
        return self._settings.model_copy(update={"servers": servers})

    def adopt(self, found: Sequence[tuple[str, Sequence[Server]]]) -> None:
        """Takes over what discovery found: (source, servers) in order of precedence."""
        with self._reload_lock:
            self._found = found
            _, notes = merge_servers(self._settings.servers, found)
            for note in notes:
                log.warning("%s", note)
            self._sampler.apply(self.settings())
            self._follow_logs()

    def config_text(self) -> str:
        """The settings in force as YAML.  Secrets never stand in settings, only the names of their places."""
        data: dict[str, Any] = self.settings().model_dump(mode="json", exclude_none=True)
        out = io.StringIO()
        yaml.safe_dump(data, out, sort_keys=False, allow_unicode=True)
        return mask_text(out.getvalue())  # addresses may hold credentials

    def reload(self) -> None:
        """Loads the file again and swaps the whole configuration; a bad file keeps the old one.

        :raises ConfigError: with every mistake; also when there is no file to load.
        """
        with self._reload_lock:
            status = self.store.config
            try:
                if self._config_path is None:
                    raise ConfigError(["no configuration file is in use (started without --config)"])
                settings = load_config(self._config_path)
                if self._listen is not None:  # given on the command line: the file does not decide
                    settings = settings.model_copy(update={"listen": self._listen})
                self._refuse_fixed(settings)
            except ConfigError as error:
                self.store.config = replace(status, last_reload_ok=False, error=str(error))
                log.error("config=kept file=%s %s", self._config_path, str(error).replace("\n", " | "))
                raise
            self._settings = settings
            self._sampler.apply(self.settings())
            self._follow_logs()
            self._load_baselines()
            self.store.config = ConfigStatus(True, time.time())
            log.info("config=loaded file=%s servers=%d", self._config_path, len(settings.servers))

    def _refuse_fixed(self, new: Settings) -> None:
        """Settings that a running process cannot change are an error, not silently ignored."""
        old = self._settings
        fixed = [
            name
            for name in ("listen", "windows", "docker", "discovery", "web_config", "state_dir")
            if getattr(old, name) != getattr(new, name)
        ]
        if old.nvml.model_copy(update={"interval": 1, "processes_every": 1}) != new.nvml.model_copy(
            update={"interval": 1, "processes_every": 1}
        ):
            fixed.append("nvml")
        if fixed:
            raise ConfigError([f"{self._config_path}:1: {', '.join(fixed)}: changes only by a restart of the exporter"])

    def healthy(self) -> tuple[bool, str]:
        """False only when a restart of this process (or container) is what helps."""
        advice = getattr(self._sources.gpu, "restart_advice", None)
        return (False, str(advice)) if advice else (True, "ok")

    def ready(self) -> tuple[bool, str]:
        """True once every server was tried and NVML was asked."""
        if not self._started:
            return False, "starting"
        waiting = self.store.looked_at_all()
        return (False, "first scrape under way: " + ", ".join(waiting)) if waiting else (True, "ok")

    def mark_run(self, run: str, scenario: str, server: str, *, start: bool) -> None:
        """Marks a load-test run as active or ended."""
        self.store.mark_run(RunMark(run, scenario, server, time.time()), start=start)

    def unread_logs(self) -> dict[str, str]:
        """Why start-up logs that are configured cannot be read, by server."""
        reasons = {server.name: self._logs.reason(server.name) for server in self.settings().servers}
        return {name: reason for name, reason in reasons.items() if reason not in (None, "not read yet")}

    def _follow_logs(self) -> None:
        """Start-up logs and model configurations of the servers in force."""
        settings = self.settings()
        logs = {server.name: server.log for server in settings.servers}
        self._logs.apply(logs, docker_socket=settings.docker.socket)
        for server in settings.servers:
            if server.model_config_file is not None:
                self.store.model_config(server.name, read_model_config(server.model_config_file))

    def _load_baselines(self) -> None:
        self._baselines_seen = _stamp(self._state_dir / BASELINE_FILE)
        self.store.baselines = load_baselines(self._state_dir)

    def _watch_baselines(self) -> None:
        """`vllmeter baseline set` in another process shows within seconds, without a reload."""
        while not self._stopping.wait(_BASELINE_EVERY):
            if _stamp(self._state_dir / BASELINE_FILE) != self._baselines_seen:
                self._load_baselines()


def _stamp(path: Path) -> tuple[float, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_ino


def read_model_config(path: Path) -> dict[str, Any] | None:
    """A model's config.json; None (and a line in the log) when it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        log.warning("model_config_file=%s unreadable: %s", path, error)
        return None
    return data if isinstance(data, dict) else None


def state_directory(settings: Settings) -> Path:
    """Where runs and baselines are kept: the setting, else what the run commands use by default."""
    return settings.state_dir if settings.state_dir is not None else default_state_dir()


def build_discovery(settings: Settings) -> list[DiscoverySource]:
    """Discovery sources that the settings ask for; processes of this host when nothing else is listed."""
    sources: list[DiscoverySource] = []
    discovery = settings.discovery
    others = (discovery.file, discovery.http, discovery.dns, discovery.kubernetes)
    wanted = discovery.processes
    if wanted is None:
        wanted = not settings.servers and not any(others)
    if wanted:
        from vllmeter.discovery.processes import ProcessDiscovery

        sources.append(ProcessDiscovery(settings.nvml.proc))
    if discovery.file is not None:
        from vllmeter.discovery.file import FileDiscovery

        sources.append(FileDiscovery(discovery.file))
    if discovery.http is not None:
        from vllmeter.discovery.http import HttpDiscovery

        sources.append(HttpDiscovery(discovery.http))
    if discovery.dns is not None:
        from vllmeter.discovery.dns import DnsDiscovery

        sources.append(DnsDiscovery(discovery.dns))
    if discovery.kubernetes is not None:
        from vllmeter.discovery.kubernetes import KubernetesDiscovery

        sources.append(KubernetesDiscovery(discovery.kubernetes))
    return sources
