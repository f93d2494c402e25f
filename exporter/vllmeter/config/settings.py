"""What can be configured: names, types, defaults, meaning.  Unknown keys are errors.

The table in docs/configuration.md is checked against these models.  Secrets never stand in the file: a setting
names the environment variable or the file that holds one.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from vllmeter.config.values import Duration, Number, Size, format_duration

_SMALLEST_BUDGET = 16 * 2**20
"""Less is no memory of a server on a GPU (a CUDA context takes hundreds of MiB): the unit was forgotten."""


class Strict(BaseModel):
    """Base of all settings: unknown keys are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class Budget(Strict):
    """What a server may take on each of its GPUs.  Without it, the server's own flags are read."""

    fraction: Annotated[float, Field(gt=0, le=1), Number] | None = Field(
        None, description="Share of CUDA total, as --gpu-memory-utilization."
    )
    bytes: Size | None = Field(None, description="Explicit budget in bytes, for example 4.5GiB.")

    @model_validator(mode="after")
    def _one(self) -> Budget:
        if (self.fraction is None) == (self.bytes is None):
            raise ValueError("give either fraction or bytes")
        if self.bytes is not None and self.bytes < _SMALLEST_BUDGET:
            raise ValueError(f"{self.bytes} bytes hold no server; with a unit: 4.5GiB, 800MiB")
        return self


class Match(Strict):
    """How a server's processes are found on this host.  Overrides everything that is found automatically."""

    container: str | None = Field(None, description="Container name or id (Docker, Podman), or Compose service.")
    unit: str | None = Field(None, description="systemd unit, for example vllm-chat.service.")
    port: Annotated[int, Field(ge=1, le=65535), Number] | None = Field(
        None, description="Port on which the server's process listens."
    )
    command: str | None = Field(None, description="Regular expression searched in the command line of the API server.")
    pod: str | None = Field(None, description="Kubernetes pod uid.")

    @field_validator("command")
    @classmethod
    def _regex(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)  # "[[a]" may mean something else one day
                    re.compile(value)
            except re.error as error:
                raise ValueError(f"no valid regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _some(self) -> Match:
        if not any((self.container, self.unit, self.port, self.command, self.pod)):
            raise ValueError("give at least one of container, unit, port, command, pod")
        return self


class Log(Strict):
    """Where the server's start-up log is.  Optional: it adds weights, KV bytes and other parts of the memory."""

    docker: str | None = Field(None, description="Container name: its JSON log is read.")
    file: Path | None = Field(None, description="Path of a log file.")
    journal: str | None = Field(None, description="systemd unit whose journal is read.")

    @model_validator(mode="after")
    def _one(self) -> Log:
        if sum(x is not None for x in (self.docker, self.file, self.journal)) != 1:
            raise ValueError("give exactly one of docker, file, journal")
        return self


class Auth(Strict):
    """Credentials for the server's endpoints, from the environment or a file."""

    bearer_token_env: str | None = Field(None, description="Environment variable that holds a bearer token.")
    bearer_token_file: Path | None = Field(None, description="File that holds a bearer token.")
    username: str | None = Field(None, description="User name for basic authentication.")
    password_env: str | None = Field(None, description="Environment variable that holds the password.")
    password_file: Path | None = Field(None, description="File that holds the password.")

    @model_validator(mode="after")
    def _consistent(self) -> Auth:
        bearer = sum(x is not None for x in (self.bearer_token_env, self.bearer_token_file))
        password = sum(x is not None for x in (self.password_env, self.password_file))
        if bearer > 1:
            raise ValueError("give either bearer_token_env or bearer_token_file")
        if self.username is not None and password != 1:
            raise ValueError("with username give either password_env or password_file")
        if self.username is None and password:
            raise ValueError("a password needs a username")
        if bearer == (self.username is not None):
            raise ValueError("give either a bearer token or username and password")
        return self


class Tls(Strict):
    """TLS towards the server."""

    ca_file: Path | None = Field(None, description="CA bundle that signs the server's certificate.")
    cert_file: Path | None = Field(None, description="Client certificate.")
    key_file: Path | None = Field(None, description="Key of the client certificate.")
    insecure_skip_verify: bool = Field(False, description="Do not verify the certificate. Only for tests.")

    @model_validator(mode="after")
    def _pair(self) -> Tls:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self


class Timeouts(Strict):
    """How long a scrape may take."""

    connect: Duration = Field(1.0, description="Seconds to connect.")
    read: Duration = Field(10.0, description="Seconds between two received pieces: a busy vLLM answers 3-4 s late.")
    total: Duration = Field(15.0, description="Seconds for the whole answer.")


LATENCY_HISTOGRAMS = Literal[
    "iteration_tokens",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_computed_tokens",
    "request_preemptions",
    "ttft_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "e2e_latency_seconds",
    "queue_time_seconds",
    "prefill_time_seconds",
    "decode_time_seconds",
    "inference_time_seconds",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
]


class Expose(Strict):
    """What of a server appears on ``/metrics``.  Sampling, windows and the live page are not affected."""

    without: tuple[LATENCY_HISTOGRAMS, ...] = Field((), description="Histogram families to leave out.")


class Server(Strict):
    """One vLLM instance (a data-parallel or tensor-parallel group behind one endpoint is one server)."""

    name: str = Field(..., description="Label `server`; unique.")
    url: str = Field(..., description="Base URL; /metrics and /health are added.")
    advertise_url: str | None = Field(None, description="URL that /sd hands to Prometheus instead of url.")
    metrics_path: str = Field("/metrics", description="Path of the metrics below url.")
    interval: Duration | None = Field(None, description="Sampling interval of this server; default the global one.")
    timeout: Timeouts = Field(default_factory=Timeouts, description="Time limits of a scrape.")
    max_body: Size = Field(16 * 2**20, description="Largest body that is read.")
    auth: Auth | None = Field(None, description="Credentials.")
    tls: Tls | None = Field(None, description="TLS options.")
    budget: Budget | None = Field(None, description="Memory budget; read from the server when it says it.")
    match: Match | None = Field(None, description="How its processes are found.")
    log: Log | None = Field(None, description="Start-up log.")
    model_config_file: Path | None = Field(None, description="The model's config.json, for KV bytes per token.")
    version: str | None = Field(None, description="vLLM version, where /version cannot be read.")
    expose: Expose = Field(default_factory=Expose, description="What appears on /metrics.")
    canary: bool = Field(False, description="Send one one-token request when nothing else can tell idle from hung.")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}", value):
            raise ValueError("use letters, digits and _ . : / -, at most 63 of them, starting with a letter or digit")
        return value

    @field_validator("url", "advertise_url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{value!r} is no http:// or https:// URL")
        try:
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"{value!r} has no valid port") from error
        if parts.username or parts.password:
            raise ValueError("no credentials in the URL; use auth")
        if parts.query or parts.fragment:
            raise ValueError("no query and no fragment in the URL")
        return value.rstrip("/")

    @field_validator("url")
    @classmethod
    def _base(cls, value: str) -> str:
        if value.endswith("/metrics"):
            raise ValueError(
                f"leave /metrics out of {value!r}: it is added, as is /health (another path: metrics_path)"
            )
        return value

    @field_validator("metrics_path")
    @classmethod
    def _path(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("a path starts with /")
        return value


class Nvml(Strict):
    """GPU readings."""

    enabled: bool = Field(True, description="Read NVML at all.")
    interval: Duration = Field(1.0, description="Interval of memory, process list and utilisation.")
    processes_every: Duration = Field(2.0, description="Interval at which /proc is read.")
    replay: str | None = Field(None, description="Control URL of `vllmeter replay`: take GPU and processes from there.")
    proc: Path = Field(Path("/proc"), description="Where the host's /proc is mounted.")


class Docker(Strict):
    """Optional, read-only use of the Docker (or Podman) API for names, commands, host PIDs and published ports."""

    socket: Path | None = Field(None, description="Unix socket, for example /var/run/docker.sock. Unset = not used.")


class FileDiscovery(Strict):
    """Servers from files in Prometheus' file_sd form (JSON or YAML)."""

    files: tuple[str, ...] = Field(..., min_length=1, description="Paths or globs.")
    every: Duration = Field(5.0, description="How often the files are looked at.")


class HttpDiscovery(Strict):
    """Servers from a URL in Prometheus' http_sd form."""

    url: str = Field(..., description="Address of the list.")
    every: Duration = Field(30.0, description="How often it is asked.")


class DnsDiscovery(Strict):
    """One server per address behind a name."""

    name: str = Field(..., description="Host name to resolve (A and AAAA records).")
    port: Annotated[int, Field(ge=1, le=65535), Number] = Field(8000, description="Port of the servers.")
    every: Duration = Field(30.0, description="How often the name is resolved.")


class KubernetesDiscovery(Strict):
    """vLLM pods on this node, from the Kubernetes API."""

    selector: str = Field("app.kubernetes.io/name=vllm", description="Label selector of the pods.")
    namespace: str | None = Field(None, description="Only this namespace; default all that may be read.")
    port: Annotated[int, Field(ge=1, le=65535), Number] = Field(8000, description="Port, where the pod names none.")
    port_name: str = Field("http", description="Name of the container port to use when there are several.")
    node_env: str = Field("NODE_NAME", description="Environment variable that holds this node's name.")
    every: Duration = Field(15.0, description="How often the pods are listed.")


class Discovery(Strict):
    """Servers that are found instead of listed.  They appear and disappear without a restart."""

    processes: bool | None = Field(
        None,
        description="Find `vllm serve` processes of this host; default: only when no server is listed or found.",
    )
    file: FileDiscovery | None = Field(None, description="file_sd.")
    http: HttpDiscovery | None = Field(None, description="http_sd.")
    dns: DnsDiscovery | None = Field(None, description="DNS.")
    kubernetes: KubernetesDiscovery | None = Field(None, description="Pods.")


class PrometheusLink(Strict):
    """A Prometheus to ask for firing alerts (shown on the live page)."""

    url: str = Field(..., description="Base URL.")


class Settings(Strict):
    """The whole configuration file."""

    listen: str = Field("127.0.0.1:9877", description="Address of /metrics and the live page.")
    interval: Duration = Field(1.0, description="Sampling interval of the servers.")
    servers: tuple[Server, ...] = Field((), description="The vLLM instances.")
    windows: tuple[Duration, ...] = Field((), description="Windows beside 15s and 60s, at most 15m.")
    nvml: Nvml = Field(default_factory=Nvml, description="GPU readings.")
    docker: Docker = Field(default_factory=Docker, description="Docker API.")
    discovery: Discovery = Field(default_factory=Discovery, description="Finding servers.")
    prometheus: PrometheusLink | None = Field(None, description="Prometheus for firing alerts.")
    state_dir: Path | None = Field(None, description="Where runs and baselines are kept; default per user.")
    web_config: Path | None = Field(None, description="TLS and authentication of our own endpoint (web.yml).")

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise ValueError(f"{value!r} is no HOST:PORT, for example 127.0.0.1:9877 or [::]:9877")
        return value

    @field_validator("windows")
    @classmethod
    def _windows(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 2 <= seconds <= 900 for seconds in value):
            raise ValueError("a window lasts from 2s to 15m")
        if len(value) > 4:
            raise ValueError("at most 4 windows beside 15s and 60s")
        return value

    @model_validator(mode="after")
    def _unique(self) -> Settings:
        seen: dict[str, int] = {}
        places: dict[tuple[str, str, str], int] = {}
        for number, server in enumerate(self.servers):
            if server.name in seen:
                raise ValueError(
                    f"servers[{number}].name: {server.name!r} is already the name of servers[{seen[server.name]}]"
                )
            seen[server.name] = number
            parts = urlsplit(server.url)
            place = (parts.scheme, parts.netloc.lower(), parts.path + server.metrics_path)
            if place in places:
                raise ValueError(
                    f"servers[{number}].url: servers[{places[place]}] has this URL already: one server under two names "
                    "would count twice in every sum"
                )
            places[place] = number
        return self

    def all_windows(self) -> tuple[tuple[str, float], ...]:
        """Every window as (label, seconds): 15s and 60s always, then what the configuration adds."""
        seconds = dict.fromkeys((15.0, 60.0, *self.windows))
        return tuple((format_duration(s), s) for s in seconds)

    @property
    def listen_host(self) -> str:
        """Host part of ``listen`` without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """Port part of ``listen``; 0 = any free port."""
        return int(self.listen.rpartition(":")[2])
