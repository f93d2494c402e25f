"""What each alert must do, written by hand: when it is silent, when it fires, with which labels and words.

Times are seconds.  Most faults begin at :data:`FAULT`; ``expected`` texts are what a person gets, copied from nowhere.
Links are appended by :mod:`rules.promtool_files`, which knows their pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from rules.world import GIB, MIB, Series, change, fleet, key_of, per_second, server, steps

FAULT = 300
"""Seconds after which a case's fault begins."""


@dataclass(frozen=True)
class Firing:
    """One alert as it reaches a person."""

    labels: Mapping[str, str]
    summary: str
    description: str
    dashboard: str


@dataclass(frozen=True)
class Case:
    """One input with the moments at which ``alert`` must be silent and those at which it must fire."""

    name: str
    alert: str
    series: Series
    silent: Sequence[int] = ()
    fires: Sequence[tuple[int, Sequence[Firing]]] = ()
    minutes: int = 15
    step_ms: int = 5001
    evaluation: str = "15s"


LOAD_CAUSED = frozenset(
    {
        "VllmeterSamplingLate",
        "VllmeterKvCachePressure",
        "VllmeterPreemptionStorm",
        "VllmeterPreemptionThrashing",
        "VllmeterPrefixCacheCollapse",
        "VllmeterQueueGrowing",
        "VllmeterTtftJitterHigh",
        "VllmeterTtftObjectiveBurnFast",
        "VllmeterTtftObjectiveBurnSlow",
        "VllmeterDecodeStarvation",
        "VllmeterRequestsRejected",
    }
)
"""Alerts that a load test causes on purpose: each of their cases is repeated with an active run, where it is info."""


@dataclass
class Builder:
    """Collects cases; the usual labels and times are filled in."""

    cases: list[Case] = field(default_factory=list)

    def add(
        self,
        name: str,
        alert: str,
        changes: Mapping[str, str | None],
        expected: Sequence[Firing] = (),
        *,
        hold: int = 0,
        delay: int = 0,
        silent: Sequence[int] | None = None,
        fires: Sequence[int] | None = None,
        busy: bool = True,
        base: Series | None = None,
        minutes: int = 15,
        step_ms: int = 5001,
        evaluation: str = "15s",
    ) -> None:
        """``hold`` is the alert's ``for``; ``delay`` what a window needs on top before the condition holds."""
        if alert in LOAD_CAUSED and not any(one.startswith("run_active") for one in changes):
            self.add(
                f"{name}, in a run",
                alert,
                {**changes, **RUN},
                [replace(one, labels={**one.labels, "severity": "info"}) for one in expected],
                hold=hold,
                delay=delay,
                silent=silent,
                fires=fires,
                busy=busy,
                base=base,
                minutes=minutes,
                step_ms=step_ms,
                evaluation=evaluation,
            )
        series = change(fleet(busy=busy) if base is None else base, changes)
        if silent is None:
            silent = [FAULT - 5]
            if hold > 15:
                silent = [*silent, FAULT + hold - 15]
        if fires is None:
            fires = [FAULT + hold + delay + 50] if expected else []
        self.cases.append(
            Case(
                name,
                alert,
                series,
                tuple(silent),
                tuple((at, tuple(expected)) for at in fires),
                minutes,
                step_ms,
                evaluation,
            )
        )


def fired(
    severity: str,
    type_: str,
    dashboard: str,
    summary: str,
    description: str,
    *,
    level: str = "server",
    host: str = "a",
    server: str = "chat",
    **extra: str,
) -> Firing:
    labels = {"severity": severity, "type": type_}
    if level != "none":
        labels |= {"job": "vllmeter", "instance": f"{host}:9877", "host": host}
    if level in ("server", "server_gpu"):
        labels["server"] = server
    if level in ("gpu", "server_gpu"):
        labels |= {"gpu": "0", "uuid": f"GPU-{host}0"}
    return Firing({**labels, **extra}, summary, " ".join(description.split()), dashboard)


def until(before: float | str, after: float | str, at: float = FAULT) -> str:
    """A series that changes at ``at`` seconds."""
    return f"{before}x{steps(at)} {after}"


def between(before: float | str, during: float | str, start: float, end: float) -> str:
    """A series with another value from ``start`` to ``end`` seconds."""
    return f"{before}x{steps(start)} {during}x{steps(end) - steps(start)} {before}"


def counter(*phases: tuple[float, float]) -> str:
    """A counter from (rate, seconds) phases, growing without a jump; the last phase goes on."""
    value, out = 0.0, []
    for rate, seconds in phases:
        length = steps(seconds)
        out.append(f"{per_second(rate, value)}x{length}")
        value += rate * 5.001 * length
    return " ".join(out)


def in_state(name: str, at: float = FAULT, *, until_: float | None = None) -> dict[str, str | None]:
    """The server's state changes from busy to ``name``."""
    if until_ is None:
        return {'server_state{state="busy"}': until(1, 0, at), f'server_state{{state="{name}"}}': until(0, 1, at)}
    return {
        'server_state{state="busy"}': between(1, 0, at, until_),
        f'server_state{{state="{name}"}}': between(0, 1, at, until_),
    }


RUN = {'run_active{server="chat", scenario="short", run="r1"}': "1"}
"""A run of chat on host a is active all the time."""

GONE = {"server_up": until(1, 0), "server_healthy": f"1x{steps(FAULT)} stale", **in_state("gone")}


def servers(b: Builder) -> None:
    unreachable = fired(
        "critical",
        "symptom",
        "vllmeter-overview",
        "vLLM server chat on a is unreachable",
        """Neither /metrics nor /health of chat has answered for a minute, and no start-up is in progress. Its clients
        get connection errors, or wait for an answer that does not come.""",
    )
    b.add("a server that refuses connections", "VllmeterServerUnreachable", GONE, [unreachable], hold=60)
    hangs = {"server_up": until(1, 0), "server_healthy": f"1x{steps(FAULT)} stale", **in_state("stuck")}
    b.add("a server that accepts and answers nothing", "VllmeterServerUnreachable", hangs, [unreachable], hold=60)
    b.add("a server that answers nothing pages once", "VllmeterServerStuck", hangs, silent=[330, 420, 840])
    b.add(
        "a server that comes back within the minute",
        "VllmeterServerUnreachable",
        {"server_up": between(1, 0, 300, 345)},
        silent=[330, 345, 375, 420],
    )
    b.add(
        "all servers of all hosts at once",
        "VllmeterServerUnreachable",
        {
            'server_up{all="1"}': until(1, 0),
            'server_healthy{all="1"}': f"1x{steps(FAULT)} stale",
        },
        [
            fired(*_words(unreachable, "chat", "embed", "a"), server="embed"),
            unreachable,
            fired(*_words(unreachable, "chat", "chat", "b"), host="b"),
        ],
        hold=60,
    )
    b.add(
        "a restart that loads weights for ten minutes",
        "VllmeterServerUnreachable",
        {"server_up": until(1, 0), "server_healthy": f"1x{steps(FAULT)} stale", **in_state("starting")},
        silent=[330, 420, 840],
    )
    b.add(
        "a dead engine has its own alert",
        "VllmeterServerUnreachable",
        {"server_up": until(1, 0), "server_healthy": until(1, 0), **in_state("engine_dead")},
        silent=[330, 420, 840],
    )
    b.add(
        "/health answers, with an error",
        "VllmeterServerUnreachable",
        {"server_up": until(1, 0), "server_healthy": until(1, 0), **in_state("failing")},
        silent=[330, 420, 840],
    )
    b.add(
        "only /metrics is broken",
        "VllmeterServerUnreachable",
        {"server_up": until(1, 0), **in_state("failing")},
        silent=[330, 420, 840],
    )
    b.add(
        "a start that takes longer than a quarter of an hour",
        "VllmeterServerStartsSlowly",
        {"server_up": until(1, 0), **in_state("starting")},
        [
            fired(
                "warning",
                "symptom",
                "vllmeter-overview",
                "vLLM server chat on a has been starting for 15 minutes",
                """The process of chat exists but does not answer yet. Loading weights and compiling takes half a
                minute to a few minutes; longer means a slow download or a start that hangs.""",
            )
        ],
        hold=900,
        minutes=25,
    )
    b.add(
        "/health answers while /metrics fails",
        "VllmeterServerMetricsBroken",
        {"server_up": until(1, 0), **in_state("failing")},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-exporter",
                "vLLM server chat on a is healthy, but its /metrics cannot be read",
                """/health of chat answers 200 while /metrics fails or hangs. Its API server works; whether its engine
                does, and latency, queue and cache, is not known.""",
            )
        ],
        hold=120,
    )
    b.add("a server that answers nothing", "VllmeterServerMetricsBroken", hangs, silent=[330, 480, 840])
    b.add("a server that is gone altogether", "VllmeterServerMetricsBroken", GONE, silent=[330, 480, 840])
    b.add(
        "the engine process died, the API server did not",
        "VllmeterEngineDead",
        {"server_healthy": until(1, 0), **in_state("engine_dead")},
        [
            fired(
                "critical",
                "symptom",
                "vllmeter-overview",
                "The engine of vLLM server chat on a is dead",
                """The API server of chat still answers, its EngineCore process does not exist any more. Every request
                fails until the server is restarted. Its gauges are frozen, so vllmeter does not show them.""",
            )
        ],
        hold=15,
    )
    b.add(
        "the health check answers with an error",
        "VllmeterServerUnhealthy",
        {"server_healthy": until(1, 0)},
        [
            fired(
                "critical",
                "symptom",
                "vllmeter-overview",
                "vLLM server chat on a answers its health check with an error",
                "/health of chat has answered with something else than 200 for a minute.",
            )
        ],
        hold=60,
    )
    b.add(
        "a dead engine has its own alert (health)",
        "VllmeterServerUnhealthy",
        {"server_healthy": until(1, 0), **in_state("engine_dead")},
        silent=[330, 400, 840],
    )
    b.add(
        "requests and no progress",
        "VllmeterServerStuck",
        in_state("stuck"),
        [
            fired(
                "critical",
                "symptom",
                "vllmeter-overview",
                "vLLM server chat on a has requests and makes no progress",
                """chat holds running or waiting requests, but no token was produced, no request finished and no
                engine activity was seen. It will not recover by itself.""",
            )
        ],
        hold=15,
    )
    b.add(
        "stale gauges after all clients left never page as stuck",
        "VllmeterServerStuck",
        in_state("stale_gauges"),
        silent=[330, 400, 840],
    )
    b.add(
        "nothing moves and the processes cannot be seen",
        "VllmeterServerProgressUnknown",
        in_state("unknown_progress"),
        [
            fired(
                "info",
                "cause",
                "vllmeter-exporter",
                "Whether vLLM server chat on a makes progress cannot be told",
                """The counters of chat stand still and its processes cannot be seen, so an idle server and a hung one
                look the same. Let the exporter see the host's processes, or switch the canary on.""",
            )
        ],
        hold=300,
    )
    b.add(
        "/metrics hangs beside a good /health: told as broken metrics, once",
        "VllmeterServerProgressUnknown",
        {"server_up": until(1, 0), **in_state("unknown_progress")},
        silent=[330, 615, 840],
    )
    b.add(
        "gauges that stay after all clients left",
        "VllmeterServerGaugesStale",
        in_state("stale_gauges"),
        [
            fired(
                "info",
                "cause",
                "vllmeter-overview",
                "vLLM server chat on a shows old queue and cache gauges",
                """chat still reports requests although no client is connected and nothing is computed: vLLM keeps the
                last values after all clients left. Routers that read these gauges avoid an idle server.""",
            )
        ],
        hold=600,
        minutes=20,
    )
    b.add(
        "the first restart that this exporter saw",
        "VllmeterServerRestarted",
        {'server_last_restart_timestamp_seconds{server="chat"}': f"_x{steps(FAULT)} 300"},
        [
            fired(
                "info",
                "cause",
                "vllmeter-overview",
                "vLLM server chat on a restarted",
                "chat restarted 45s ago. Its counters began again at 0, and its prefix cache is empty.",
            )
        ],
    )
    b.add(
        "a restart long ago",
        "VllmeterServerRestarted",
        {'server_last_restart_timestamp_seconds{server="chat"}': f"_x{steps(FAULT)} 300"},
        silent=[295, 930, 1200],
        minutes=22,
    )
    b.add(
        "a restart whose start took a quarter of an hour",
        "VllmeterServerRestarted",
        {
            "server_restarts_total": f"0x{steps(1200)} 1",
            'server_last_restart_timestamp_seconds{server="chat"}': f"_x{steps(1200)} 300",
        },
        [
            fired(
                "info",
                "cause",
                "vllmeter-overview",
                "vLLM server chat on a restarted",
                "chat restarted 15m 30s ago. Its counters began again at 0, and its prefix cache is empty.",
            )
        ],
        silent=[1195, 1830],
        fires=[1230],
        minutes=32,
    )
    b.add(
        "three restarts in half an hour",
        "VllmeterServerRestartedRepeatedly",
        {"server_restarts_total": f"0x{steps(300)} 1x{steps(120)} 2x{steps(120)} 3"},
        [
            fired(
                "warning",
                "symptom",
                "vllmeter-overview",
                "vLLM server chat on a restarts again and again",
                """chat restarted 3 times within 30 minutes. Each start loads the weights again and drops every
                request in flight.""",
            )
        ],
        silent=[295, 400, 525],
        fires=[600],
    )
    b.add(
        "the exporter itself restarted and counts from 0 again",
        "VllmeterServerRestartedRepeatedly",
        {"server_restarts_total": f"7x{steps(300)} 0"},
        silent=[330, 600, 840],
    )
    b.add(
        "--disable-log-stats",
        "VllmeterEngineMetricsOff",
        {"server_engine_metrics": until(1, 0)},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-exporter",
                "vLLM server chat on a answers without engine metrics",
                """/metrics of chat answers 200 but holds no engine metric, so queue, cache, latency and their alerts
                are blind. The usual causes are --disable-log-stats and a broken PROMETHEUS_MULTIPROC_DIR.""",
            )
        ],
        hold=120,
    )
    b.add(
        "a server newer than vllmeter",
        "VllmeterUnknownMetricFamilies",
        {"unmapped_families": until(0, 4)},
        [
            fired(
                "info",
                "cause",
                "vllmeter-exporter",
                "vLLM server chat on a has metrics that vllmeter does not know",
                """chat exposes 4 engine metric families that this version of vllmeter does not map. They are left
                out, not guessed; the server is probably newer than vllmeter.""",
            )
        ],
        hold=900,
        minutes=25,
    )


def _words(one: Firing, old: str, new: str, host: str) -> tuple[str, str, str, str, str]:
    """The same words about another server or host."""
    return (
        one.labels["severity"],
        one.labels["type"],
        one.dashboard,
        one.summary.replace(f"{old} on a", f"{new} on {host}"),
        one.description.replace(old, new),
    )


def exporters(b: Builder) -> None:
    b.add(
        "always",
        "VllmeterWatchdog",
        {},
        [
            fired(
                "info",
                "meta",
                "vllmeter-exporter",
                "Alerts of vllmeter reach this receiver",
                """This alert always fires. When it stops arriving, Prometheus, Alertmanager or the way between
                them is broken: have somebody be told by a dead man's switch.""",
                level="none",
            )
        ],
        silent=[],
    )

    def down(host: str) -> Firing:
        return fired(
            "critical",
            "symptom",
            "vllmeter-exporter",
            f"vllmeter on {host}:9877 cannot be scraped",
            f"""Prometheus has not reached the exporter at {host}:9877 for a minute. Nothing is known about the
            servers and GPUs of that host, and none of their alerts can fire.""",
            level="host",
            host=host,
        )

    other_job = {'up{job="node", instance="a:9100"}': "0"}
    b.add("an exporter that died", "VllmeterExporterDown", {"up": until(1, 0), **other_job}, [down("a")], hold=60)
    b.add(
        "all exporters died",
        "VllmeterExporterDown",
        {'up{job="vllmeter", all="1"}': until(1, 0)},
        [down("a"), down("b")],
        hold=60,
    )
    b.add(
        "no target at all, from the first moment",
        "VllmeterExporterAbsent",
        {},
        [
            fired(
                "critical",
                "symptom",
                "vllmeter-exporter",
                "Prometheus knows no vllmeter at all",
                """No target of the job vllmeter exists: discovery finds nothing, or the job was removed or
                renamed. All other alerts of vllmeter are silent for that reason.""",
                level="none",
                job="vllmeter",
            )
        ],
        base={key_of("up", {"job": "node", "instance": "a:9100"}): "1"},
        silent=[30, 285],
        fires=[330],
    )
    gone = fired(
        "warning",
        "symptom",
        "vllmeter-exporter",
        "vllmeter on a:9877 is no longer a target",
        """a:9877 was a target within the last hour and is none now, while Prometheus itself runs. If the host was
        removed on purpose this resolves by itself after an hour.""",
        level="host",
    )
    b.add(
        "a host that discovery lost",
        "VllmeterExporterGoneFromDiscovery",
        {"up": f"1x{steps(FAULT)} stale", **other_job},
        [gone],
        hold=300,
    )
    b.add(
        "another job that vanished",
        "VllmeterExporterGoneFromDiscovery",
        {'up{job="node", instance="a:9100"}': f"1x{steps(FAULT)} stale"},
        silent=[295, 650, 840],
    )
    b.add(
        "an exporter without servers",
        "VllmeterNoServers",
        {'server_up{server="chat"}': f"1x{steps(FAULT)} stale", 'server_up{server="embed"}': f"1x{steps(FAULT)} stale"},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-exporter",
                "vllmeter on a:9877 watches no server",
                """The exporter at a:9877 answers but shows no vLLM server: its list is empty, or discovery found no
                `vllm serve` process.""",
                level="host",
            )
        ],
        hold=300,
    )
    b.add(
        "a target of another job without servers",
        "VllmeterNoServers",
        {'up{job="node", instance="a:9100"}': "1"},
        silent=[295, 650, 840],
    )
    b.add(
        "an exporter that is down has its own alert",
        "VllmeterNoServers",
        {
            "up": until(1, 0),
            'server_up{server="chat"}': f"1x{steps(FAULT)} stale",
            'server_up{server="embed"}': f"1x{steps(FAULT)} stale",
        },
        silent=[330, 650, 840],
    )
    b.add(
        "a configuration with an error",
        "VllmeterConfigReloadFailed",
        {"config_last_reload_successful": until(1, 0)},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-exporter",
                "vllmeter on a:9877 could not load its configuration",
                """The exporter at a:9877 runs on with the configuration it had before; the new file has an error that
                its log names.""",
                level="host",
            )
        ],
        hold=60,
    )

    def late(severity: str, age: str) -> Firing:
        return fired(
            severity,
            "cause",
            "vllmeter-exporter",
            "Samples of vLLM server chat on a come late",
            f"""The newest sample of chat is {age} old, or a scrape has been waiting that long. Its API server is too
            busy to answer; values are withheld instead of repeated.""",
        )

    b.add(
        "a sample that grows old",
        "VllmeterSamplingLate",
        {"sample_age_seconds": until(0.4, 25), **in_state("late")},
        [late("warning", "25s")],
        hold=30,
    )
    b.add(
        "an answer that does not come",
        "VllmeterSamplingLate",
        {"scrape_in_flight_seconds": until(0.1, 40), **in_state("late")},
        [late("warning", "40s")],
        hold=30,
    )
    b.add(
        "each attempt ends after the read timeout of 10 s, as a failure",
        "VllmeterSamplingLate",
        {"sample_age_seconds": until(0.4, 25), "server_up": until(1, 0), **in_state("late")},
        [late("warning", "25s")],
        hold=30,
    )
    b.add(
        "a server that is down is not late",
        "VllmeterSamplingLate",
        {"sample_age_seconds": until(0.4, 25), "server_up": until(1, 0), **in_state("gone")},
        silent=[345, 420, 840],
    )
    b.add(
        "a busy server that answers after four seconds",
        "VllmeterSamplingLate",
        {"sample_age_seconds": until(0.4, 4.5), "scrape_in_flight_seconds": until(0.1, 4), **in_state("late")},
        silent=[345, 420, 840],
    )
    b.add(
        "the driver was upgraded under the exporter",
        "VllmeterNvmlUnavailable",
        {"nvml_up": until(1, 0), 'nvml_status_info{reason="driver_upgraded"}': "1"},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-exporter",
                "vllmeter on a:9877 gets no readings from NVML",
                """GPU memory, budgets and attribution are absent on a:9877. vllmeter_nvml_status_info says why; on a
                host without a GPU switch NVML off in the configuration.""",
                level="host",
            )
        ],
        hold=120,
    )
    b.add(
        "NVML switched off on purpose",
        "VllmeterNvmlUnavailable",
        {"nvml_up": until(1, 0), 'nvml_status_info{reason="switched off (nvml.enabled)"}': "1"},
        silent=[330, 480, 840],
    )
    hangs = fired(
        "warning",
        "cause",
        "vllmeter-exporter",
        "NVML on a:9877 does not return",
        "A driver call of the exporter at a:9877 hangs. GPU values are withheld until it returns.",
        level="host",
    )
    hung: dict[str, str | None] = {
        "nvml_up": until(1, 0),
        'nvml_status_info{reason="hung"}': f"_x{steps(FAULT)} 1",
        "nvml_sample_age_seconds": "0.5",
    }
    b.add("a driver call that hangs", "VllmeterNvmlSamplesOld", hung, [hangs], hold=60)
    b.add("a driver call that hangs has its own alert", "VllmeterNvmlUnavailable", hung, silent=[295, 480, 840])
    b.add(
        "a reading thread that is stuck",
        "VllmeterNvmlSamplesOld",
        {
            "nvml_up": until(1, 0),
            'nvml_status_info{reason="late: the newest tick is too old"}': f"_x{steps(FAULT)} 1",
            "nvml_sample_age_seconds": until(0.5, "20+5"),
        },
        [hangs],
        silent=[295, 360],
        fires=[410],
    )
    b.add(
        "NVML that says why it is not there",
        "VllmeterNvmlSamplesOld",
        {"nvml_up": until(1, 0), 'nvml_status_info{reason="driver_upgraded"}': f"_x{steps(FAULT)} 1"},
        silent=[295, 420, 840],
    )
    lost = {
        "attribution_info": f"1x{steps(FAULT)} stale",
        'attribution_info{server="chat", state="unavailable", method="none", reason="empty"}': f"_x{steps(FAULT)} 1",
    }
    b.add(
        "a server whose processes are not found any more",
        "VllmeterAttributionLost",
        lost,
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "The GPU memory of vLLM server chat on a is not measured any more",
                """The processes of chat were found on the GPU within the last hour and are not found now (attribution
                is unavailable). Its budget is not watched.""",
                state="unavailable",
            )
        ],
        hold=120,
    )
    b.add(
        "attribution is naturally lost with the server",
        "VllmeterAttributionLost",
        {**lost, "server_up": until(1, 0)},
        silent=[330, 480, 840],
    )
    b.add(
        "attribution is naturally lost with NVML",
        "VllmeterAttributionLost",
        {**lost, "nvml_up": until(1, 0)},
        silent=[330, 480, 840],
    )
    b.add(
        "attribution that never worked (WSL2)",
        "VllmeterAttributionLost",
        {
            "attribution_info": None,
            'attribution_info{server="chat", state="estimated", method="port", reason="wddm"}': "1",
        },
        silent=[295, 480, 840],
    )


def memories(b: Builder) -> None:
    over = fired(
        "warning",
        "cause",
        "vllmeter-memory",
        "vLLM server chat on a took more GPU memory than its budget",
        """chat has held 424MiB more on GPU 0 than its budget and what normally comes on top of it (context, graphs
        where outside). Neighbours lose that memory.""",
        level="server_gpu",
    )
    high = {"server_gpu_memory_high_water_bytes": until(5 * GIB, 7 * GIB)}
    b.add("a server above budget and allowance", "VllmeterServerOverBudget", high, [over], hold=60)
    b.add(
        "context and a little more are no breach",
        "VllmeterServerOverBudget",
        {"server_gpu_memory_high_water_bytes": until(5 * GIB, 6 * GIB + 650 * MIB)},
        silent=[295, 400, 840],
    )
    b.add(
        "the budget of a sleeping server is not compared",
        "VllmeterServerOverBudget",
        {
            **high,
            'server_budget_suspended_info{server="chat", gpu="0", uuid="GPU-a0", reason="asleep"}': "1",
        },
        silent=[295, 400, 840],
    )
    b.add(
        "an estimate never accuses",
        "VllmeterServerOverBudget",
        {
            **high,
            "attribution_info": None,
            'attribution_info{server="chat", state="estimated", method="port", reason="wddm"}': "1",
        },
        silent=[295, 400, 840],
    )
    b.add(
        "budgets above the card",
        "VllmeterCardOvercommitted",
        {"gpu_memory_committed_bytes": until(20 * GIB, 26.4 * GIB), "gpu_memory_cuda_total_bytes": f"{24 * GIB}"},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "The budgets on GPU 0 of a exceed the card",
                """The budgets of the servers on GPU 0, with what comes on top of them, add up to 110% of what CUDA
                can use. Whoever starts or grows last fails.""",
                level="gpu",
            )
        ],
        hold=300,
    )
    b.add(
        "a peak that nearly fills the card",
        "VllmeterCardNearlyFull",
        {
            'gpu_memory_used_peak_bytes{window="60s"}': until(21 * GIB, 24 * GIB - 700 * MIB),
        },
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "GPU 0 of a has almost no free memory",
                """At its fullest within the last minute GPU 0 had 200MiB free. Late allocations (workspaces, NCCL,
                kernels compiled on first use) can fail in any server on it.""",
                level="gpu",
            )
        ],
        hold=60,
    )
    b.add(
        "memory that nobody holds",
        "VllmeterUnattributedMemoryGrows",
        {"gpu_memory_unattributed_bytes": until(20 * MIB, 532 * MIB)},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "Memory that no process accounts for grows on GPU 0 of a",
                """On GPU 0 512MiB more are in use than at the lowest point of the last hour without a process that
                holds them: a process in another namespace, or one that died badly.""",
                level="gpu",
            )
        ],
        hold=300,
        minutes=20,
    )
    b.add(
        "a large but steady remainder",
        "VllmeterUnattributedMemoryGrows",
        {"gpu_memory_unattributed_bytes": f"{3 * GIB}"},
        silent=[295, 700, 840],
    )
    b.add(
        "an engine whose API server was killed",
        "VllmeterOrphanedEngine",
        {
            'gpu_memory_other_bytes{gpu="0", uuid="GPU-a0", program="VLLM::EngineCore", orphan="true"}': (
                f"_x{steps(FAULT)} {5 * GIB}"
            )
        },
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "An orphaned engine holds memory on GPU 0 of a",
                """VLLM::EngineCore holds 5GiB on GPU 0 although its API server is gone. It serves nobody and will not
                leave by itself.""",
                level="gpu",
                program="VLLM::EngineCore",
                orphan="true",
            )
        ],
        hold=60,
    )
    would_fail = fired(
        "warning",
        "cause",
        "vllmeter-memory",
        "A restart of vLLM server chat on a would fail now",
        """On GPU 0 1.086GiB are missing for a start of chat: free memory and what it would give back itself are less
        than its budget. vLLM refuses to start below its share.""",
        level="server_gpu",
    )
    little = {"gpu_memory_free_bytes": until(4 * GIB, 0.5 * GIB)}
    # embed needs less than it would give back, so that only chat is in danger.
    small = {'server_gpu_memory_budget_bytes{server="embed"}': f"{3 * GIB}"}
    b.add("a neighbour took the room", "VllmeterRestartWouldFail", {**little, **small}, [would_fail], hold=300)
    b.add(
        "a server that is down and does not fit any more",
        "VllmeterRestartWouldFail",
        {
            # without a process the exporter knows neither its card nor, on it, its budget and context
            "server_gpu_memory_used_bytes": f"{5 * GIB}x{steps(FAULT)} stale",
            "server_gpu_memory_budget_bytes": f"{6 * GIB}x{steps(FAULT)} stale",
            'server_gpu_memory_part_bytes{part="context"}': f"{600 * MIB}x{steps(FAULT)} stale",
            "server_up": until(1, 0),
            "gpu_memory_free_bytes": f"{5.5 * GIB}",
            **small,
        },
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "A restart of vLLM server chat on a would fail now",
                """On GPU 0 1.086GiB are missing for a start of chat: free memory and what it would give back itself are
                less than its budget. vLLM refuses to start below its share.""",
                level="server_gpu",
            )
        ],
        hold=300,
    )
    b.add(
        "a running server whose memory is not known",
        "VllmeterRestartWouldFail",
        {"server_gpu_memory_used_bytes": f"{5 * GIB}x{steps(FAULT)} stale", **little, **small},
        silent=[295, 700, 840],
    )
    b.add(
        "a start in progress uses the room itself",
        "VllmeterRestartWouldFail",
        {**little, **small, **in_state("starting")},
        silent=[295, 700, 840],
    )
    b.add(
        "just enough room, context included",
        "VllmeterRestartWouldFail",
        {"gpu_memory_free_bytes": until(4 * GIB, 1.7 * GIB), **small},
        silent=[295, 700, 840],
    )
    asleep = {
        'server_sleep_state{state="awake"}': "0",
        'server_sleep_state{state="weights_offloaded"}': "1",
    }
    b.add(
        "a sleeping server has its own alert",
        "VllmeterRestartWouldFail",
        {**little, **small, **asleep},
        silent=[295, 700, 840],
    )
    b.add(
        "neighbours filled the card while it slept",
        "VllmeterWakeUpWouldFail",
        {
            "server_gpu_memory_used_bytes": f"{0.7 * GIB}",
            "gpu_memory_free_bytes": until(8 * GIB, 4.8 * GIB),
            **small,
            **asleep,
        },
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "vLLM server chat on a could not wake up now",
                """chat sleeps, and on GPU 0 1.086GiB are missing for its budget: its neighbours took the room. A
                wake-up would run out of memory.""",
                level="server_gpu",
            )
        ],
        hold=300,
    )
    b.add(
        "a sleeping server with room to wake up",
        "VllmeterWakeUpWouldFail",
        {"server_gpu_memory_used_bytes": f"{0.7 * GIB}", "gpu_memory_free_bytes": f"{8 * GIB}", **small, **asleep},
        silent=[295, 700, 840],
    )
    b.add("an awake server", "VllmeterWakeUpWouldFail", {**little, **small}, silent=[295, 700, 840])
    b.add(
        "sleep that gives nothing back",
        "VllmeterSleepingServerHoldsMemory",
        {
            "server_gpu_memory_used_bytes": f"{4.5 * GIB}",
            'server_sleep_state{state="awake"}': until(1, 0),
            'server_sleep_state{state="discard_all"}': until(0, 1),
        },
        [
            fired(
                "warning",
                "cause",
                "vllmeter-memory",
                "vLLM server chat on a sleeps but keeps its GPU memory",
                """chat says that it sleeps and still holds 75% of its budget on GPU 0. Its neighbours cannot use that
                memory.""",
                level="server_gpu",
            )
        ],
        hold=120,
    )
    b.add(
        "sleep as it should be",
        "VllmeterSleepingServerHoldsMemory",
        {"server_gpu_memory_used_bytes": f"{0.7 * GIB}", **asleep},
        silent=[295, 700, 840],
    )


def caches(b: Builder) -> None:
    def pressure(severity: str, waiting: str) -> Firing:
        return fired(
            severity,
            "cause",
            "vllmeter-cache",
            "Requests wait for KV cache of vLLM server chat on a",
            f"""{waiting} requests of chat wait for room while its KV cache is at 90 % or more. TTFT grows with the
            queue, and preemptions come next.""",
        )

    full = {'kv_cache_usage_peak_ratio{window="60s"}': until(0.35, 0.97)}
    waiting = {
        'requests_waiting_by_reason{engine="0", reason="capacity"}': until(0, 5),
        'requests_waiting_by_reason{engine="1", reason="capacity"}': until(0, 2),
        'requests_waiting_by_reason{reason="deferred"}': until(0, 30),
        "requests_waiting": until(0, 20),
    }
    b.add(
        "waiting for room with a full cache",
        "VllmeterKvCachePressure",
        {**full, **waiting},
        [pressure("warning", "7")],
        hold=120,
    )
    b.add(
        "a run on the other host changes nothing",
        "VllmeterKvCachePressure",
        {**full, **waiting, 'run_active{host="b", server="chat", scenario="short", run="r1"}': "1"},
        [pressure("warning", "7")],
        hold=120,
    )
    b.add("a full cache alone is normal", "VllmeterKvCachePressure", full, silent=[295, 480, 840])
    b.add("waiting with room is something else", "VllmeterKvCachePressure", waiting, silent=[295, 480, 840])
    b.add(
        "deferred requests do not wait for room",
        "VllmeterKvCachePressure",
        {
            **full,
            'requests_waiting_by_reason{reason="deferred"}': until(0, 30),
            "requests_waiting": until(0, 20),
        },
        silent=[295, 480, 840],
    )
    b.add(
        "a version that does not split the queue",
        "VllmeterKvCachePressure",
        {**full, "requests_waiting_by_reason": None, "requests_waiting": until(0, 4)},
        [pressure("warning", "8")],
        hold=120,
    )
    b.add(
        "stale gauges are not pressure",
        "VllmeterKvCachePressure",
        {**full, **waiting, **in_state("stale_gauges")},
        silent=[330, 480, 840],
    )
    seen = fired(
        "info",
        "cause",
        "vllmeter-cache",
        "vLLM server chat on a preempted requests",
        "chat preempted a request 45s ago. Preempted requests lose their KV blocks and are computed again.",
    )
    b.add(
        "the first preemption of a server's life",
        "VllmeterPreemptionsSeen",
        {'last_preemption_timestamp_seconds{server="chat"}': f"_x{steps(FAULT)} 300"},
        [seen],
    )
    b.add(
        "a preemption ten minutes ago",
        "VllmeterPreemptionsSeen",
        {'last_preemption_timestamp_seconds{server="chat"}': "60"},
        silent=[465, 700, 840],
    )

    def storm(severity: str, n: int) -> Firing:
        return fired(
            severity,
            "cause",
            "vllmeter-cache",
            "vLLM server chat on a preempts many requests at once",
            f"""{n} requests of chat were preempted in the last minute, more than 3 times its mean of the 15 minutes
            before, while others wait. Each is computed again from its first token.""",
        )

    queued = {'requests_waiting_peak{window="60s"}': until(0, 12)}
    b.add(
        "a burst after a little preempting",
        "VllmeterPreemptionStorm",
        {'preemptions_window{window="60s"}': until(2, 20), **queued},
        [storm("warning", 20)],
        hold=15,
    )
    b.add(
        "the first burst of a new server",
        "VllmeterPreemptionStorm",
        {
            'preemptions_window{window="60s"}': f"_x{steps(FAULT)} 20",
            'requests_waiting_peak{window="60s"}': f"_x{steps(FAULT)} 12",
        },
        [storm("warning", 20)],
        hold=15,
    )
    b.add(
        "always so many is no spike",
        "VllmeterPreemptionStorm",
        {'preemptions_window{window="60s"}': "20", 'requests_waiting_peak{window="60s"}': "12"},
        silent=[420, 700, 840],
    )
    b.add(
        "fewer than the floor",
        "VllmeterPreemptionStorm",
        {'preemptions_window{window="60s"}': until(0, 8), **queued},
        silent=[295, 345, 840],
    )
    b.add(
        "a burst with nobody waiting",
        "VllmeterPreemptionStorm",
        {'preemptions_window{window="60s"}': until(2, 20)},
        silent=[295, 345, 840],
    )

    def thrash(severity: str) -> Firing:
        return fired(
            severity,
            "cause",
            "vllmeter-cache",
            "vLLM server chat on a evicts requests faster than it finishes them",
            """chat preempts 0.40 requests a second, more than 0.5 per finished request, for minutes. Much of its
            work is done twice.""",
        )

    slow = {
        "preemptions_total": counter((0, 300), (0.2, 900)),
        'requests_finished_total{reason="stop"}': counter((1, 300), (0.1, 900)),
    }
    b.add(
        "more evicted than finished",
        "VllmeterPreemptionThrashing",
        slow,
        [thrash("warning")],
        hold=300,
        delay=300,
        minutes=20,
    )
    b.add(
        "nothing finishes at all",
        "VllmeterPreemptionThrashing",
        {**slow, 'requests_finished_total{reason="stop"}': counter((1, 300), (0, 900))},
        [thrash("warning")],
        hold=300,
        delay=300,
        minutes=20,
    )
    b.add(
        "many preemptions, many more finished",
        "VllmeterPreemptionThrashing",
        {**slow, 'requests_finished_total{reason="stop"}': counter((1, 900))},
        silent=[295, 700, 1100],
        minutes=20,
    )
    b.add(
        "a handful of each",
        "VllmeterPreemptionThrashing",
        {
            "preemptions_total": counter((0, 300), (0.02, 900)),
            'requests_finished_total{reason="stop"}': counter((1, 300), (0.01, 900)),
        },
        silent=[295, 700, 1100],
        minutes=20,
    )
    # An hour of history: only the series that matter keep the case small.
    hour = 4200

    def prefix(
        hits_before: float, hits_after: float, queries: float = 100, queries_before: float = 100
    ) -> dict[str, str | None]:
        return {
            "prefix_cache_queries_tokens_total": counter((queries_before, hour), (queries, 1800)),
            "prefix_cache_hits_tokens_total": counter((hits_before, hour), (hits_after, 1800)),
        }

    def collapse(severity: str) -> Firing:
        return fired(
            severity,
            "cause",
            "vllmeter-cache",
            "The prefix cache of vLLM server chat on a hits much less than before",
            """20% of the looked-up tokens of chat are found in its prefix cache, less than half of an hour ago.
            Prompts are computed again, and TTFT grows.""",
        )

    small: Series = {}
    server(small, "a", "chat", busy=True, engines=("0",))
    small = {one: values for one, values in small.items() if "prefix_cache" in one[0]}
    later = {
        "silent": [hour - 30, hour + 600],
        "fires": [hour + 1000],
        "minutes": 95,
        "base": small,
        "evaluation": "1m",
    }
    b.add("hits fall from 70 to 20 %", "VllmeterPrefixCacheCollapse", prefix(70, 20), [collapse("warning")], **later)  # type: ignore[arg-type]
    quiet = {"silent": [hour - 30, hour + 600, hour + 1000], "minutes": 95, "base": small, "evaluation": "1m"}
    b.add("hits fall from 70 to 50 %", "VllmeterPrefixCacheCollapse", prefix(70, 50), **quiet)  # type: ignore[arg-type]
    b.add("never hit (short prompts): nothing to lose", "VllmeterPrefixCacheCollapse", prefix(20, 0), **quiet)  # type: ignore[arg-type]
    b.add("hardly any traffic now", "VllmeterPrefixCacheCollapse", prefix(70, 2, queries=10), **quiet)  # type: ignore[arg-type]
    b.add(
        "hardly any traffic an hour ago",
        "VllmeterPrefixCacheCollapse",
        prefix(7, 20, queries_before=10),
        **quiet,  # type: ignore[arg-type]
    )


def latencies(b: Builder) -> None:
    def growing(severity: str) -> Firing:
        return fired(
            severity,
            "symptom",
            "vllmeter-overview",
            "The queue of vLLM server chat on a keeps growing",
            """Never fewer than 24 requests of chat waited in the last 5 minutes, and the queue grows: more arrives
            than is served. This also shows prefill saturation, at any KV usage.""",
        )

    # Two engines, two more requests each a minute. In steps, because the recorded sum lies on the evaluation's grid
    # and therefore on the edge of its 5m window: there the value must not change.
    queue = {"requests_waiting": " ".join(["0x6", *(f"{2 * level}x12" for level in range(1, 16))])}
    when = {"silent": [55, 300], "fires": [660]}
    b.add("a queue that grows and grows", "VllmeterQueueGrowing", queue, [growing("warning")], **when)  # type: ignore[arg-type]
    b.add("a long but steady queue", "VllmeterQueueGrowing", {"requests_waiting": "30"}, silent=[400, 700, 840])
    b.add(
        "a short queue that grows a little",
        "VllmeterQueueGrowing",
        {"requests_waiting": "0+0.005"},
        silent=[400, 700, 840],
    )
    b.add(
        "a queue that grows from the floor",
        "VllmeterQueueGrowing",
        {"requests_waiting": " ".join(["0x80", *(f"{2 * level}x12" for level in range(1, 16))])},
        silent=[500, 660],
        minutes=12,
    )
    b.add(
        "stale gauges are no queue",
        "VllmeterQueueGrowing",
        {**queue, **in_state("stale_gauges", 60)},
        silent=[400, 660],
    )

    def jitter(severity: str) -> Firing:
        return fired(
            severity,
            "symptom",
            "vllmeter-latency",
            "First tokens of vLLM server chat on a come unevenly",
            """The standard deviation of TTFT of chat over the last minute is at least 1.2s (guaranteed lower
            bound, 30 requests or more) and over 50 % of the mean.""",
        )

    def spread(lower: float, mean: float, requests: float) -> dict[str, str | None]:
        return {
            'ttft_jitter_lower_seconds{window="60s"}': until(0.05, lower),
            'ttft_window_mean_seconds{window="60s"}': until(0.25, mean),
            'ttft_window_requests{window="60s"}': until(120, requests),
        }

    b.add(
        "a spread larger than half of the mean",
        "VllmeterTtftJitterHigh",
        spread(1.2, 2, 60),
        [jitter("warning")],
        hold=120,
    )
    b.add("too few requests to say so", "VllmeterTtftJitterHigh", spread(1.2, 2, 20), silent=[295, 480, 840])
    b.add("a spread small against the mean", "VllmeterTtftJitterHigh", spread(1.2, 6, 60), silent=[295, 480, 840])
    b.add("a spread nobody sees", "VllmeterTtftJitterHigh", spread(0.2, 0.3, 60), silent=[295, 480, 840])

    def ttft(over_share: float, rate: float = 1.0, seconds: float = 7200) -> dict[str, str | None]:
        """TTFT of chat: ``over_share`` of the requests above 2.5 s after FAULT."""
        within = rate * (1 - over_share)
        return {
            'ttft_seconds_bucket{le="2.5"}': counter((1, FAULT), (within, seconds)),
            "ttft_seconds_count": counter((1, FAULT), (rate, seconds)),
            'ttft_seconds_bucket{le="+Inf"}': counter((1, FAULT), (rate, seconds)),
        }

    def burn(severity: str, percent: str) -> Firing:
        return fired(
            severity,
            "symptom",
            "vllmeter-latency",
            "vLLM server chat on a misses its TTFT objective by far",
            f"""{percent} of the requests of chat waited longer than 2.5 s for their first token. At this pace the
            error budget of 30 days is gone in days.""",
        )

    b.add(
        "a third of the requests over the bound",
        "VllmeterTtftObjectiveBurnFast",
        ttft(0.34),
        [burn("critical", "27.97%")],
        silent=[295, 400],
        fires=[1800],
        minutes=35,
        evaluation="1m",
    )
    b.add(
        "few requests over the bound for hours, the 6 h pair",
        "VllmeterTtftObjectiveBurnFast",
        ttft(0.1),
        [burn("critical", "9.271%")],
        silent=[295],
        fires=[4200],
        minutes=75,
        evaluation="1m",
    )
    # Hours of good service at seven requests a minute, then a pause, then bad minutes.
    alone: Series = {}
    server(alone, "a", "chat", busy=True, engines=("0",))
    alone = {one: values for one, values in alone.items() if one[0].startswith("vllmeter_ttft_seconds")}

    def lately(share: float, good: int, pause: int) -> dict[str, str | None]:
        """``share`` over the bound after ``good`` minutes of service and ``pause`` minutes of nothing."""
        each, before, idle = 0.12 * 15.003, good * 60 // 15, pause * 60 // 15
        within = each * (1 - share)
        head = f"0+{each:.9g}x{before} " + (f"{each * before:.9g}x{idle} " if idle else "")
        return {
            'ttft_seconds_bucket{le="2.5"}': f"{head}{each * before:.9g}+{within:.9g}",
            'ttft_seconds_bucket{le="+Inf"}': f"{head}{each * before:.9g}+{each:.9g}",
            "ttft_seconds_count": f"{head}{each * before:.9g}+{each:.9g}",
        }

    b.add(
        "nearly all requests over the bound for eighteen minutes, the 1 h pair",
        "VllmeterTtftObjectiveBurnFast",
        # Nobody asked an hour ago, so the edge of the window does not matter: 90 % of the hour's requests.
        lately(0.9, good=280, pause=60),
        [burn("critical", "90%")],
        base=alone,
        silent=[340 * 60],
        fires=[340 * 60 + 1140],
        minutes=360,
        step_ms=15003,
        evaluation="1m",
    )
    b.add(
        "one in ten over the bound for half an hour: the six hours do not know it yet",
        "VllmeterTtftObjectiveBurnFast",
        lately(0.1, good=300, pause=0),
        base=alone,
        silent=[18000, 18000 + 1500],
        minutes=330,
        step_ms=15003,
        evaluation="1m",
    )
    b.add(
        "two of a hundred over the bound",
        "VllmeterTtftObjectiveBurnFast",
        ttft(0.02),
        silent=[295, 1800, 4200],
        minutes=75,
        evaluation="1m",
    )
    b.add(
        "it was bad and is good again",
        "VllmeterTtftObjectiveBurnFast",
        {
            'ttft_seconds_bucket{le="2.5"}': counter((0.5, 1500), (1, 3000)),
            "ttft_seconds_count": counter((1, 4500)),
            'ttft_seconds_bucket{le="+Inf"}': counter((1, 4500)),
        },
        # The hour and the six hours still remember; the short windows do not.
        silent=[2000 + 1800, 4200],
        minutes=75,
        evaluation="1m",
    )
    b.add(
        "it is bad only now: the long windows do not know it yet",
        "VllmeterTtftObjectiveBurnFast",
        {
            'ttft_seconds_bucket{le="2.5"}': counter((1, 3900), (0.65, 600)),
            "ttft_seconds_count": counter((1, 4500)),
            'ttft_seconds_bucket{le="+Inf"}': counter((1, 4500)),
        },
        silent=[3890, 4080, 4320],
        minutes=75,
        evaluation="1m",
    )

    def bad_third(*phases: tuple[float, float]) -> dict[str, str | None]:
        """Requests per engine in (rate, seconds) phases, a third of them over the bound."""
        within = tuple((rate * 0.67, seconds) for rate, seconds in phases)
        return {
            'ttft_seconds_bucket{le="2.5"}': counter(*within),
            'ttft_seconds_bucket{le="+Inf"}': counter(*phases),
            "ttft_seconds_count": counter(*phases),
        }

    b.add(
        "sixty slow requests after an idle hour",
        "VllmeterTtftObjectiveBurnFast",
        bad_third((0, 3600), (0.05, 600), (0, 300)),
        silent=[3600 + 300, 3600 + 600],
        minutes=75,
        evaluation="1m",
    )
    b.add(
        "it was bad, and hardly any requests are left",
        "VllmeterTtftObjectiveBurnFast",
        bad_third((0.5, 3000), (0.01, 1200)),
        silent=[3000 + 600, 3000 + 900],
        minutes=75,
        evaluation="1m",
    )

    # Days: one server, one engine, a sample a minute, an evaluation every 5 minutes.
    def days(before: float, after: float, begins: float, total: float) -> Series:
        step = 60.01
        first, second = int(begins / step), int((total - begins) / step)
        own = {"job": "vllmeter", "instance": "a:9877", "host": "a", "server": "chat", "engine": "0"}
        good = [6 * (1 - before), 6 * (1 - after)]
        within = f"0+{good[0]:.9g}x{first} {good[0] * first:.9g}+{good[1]:.9g}x{second}"
        return {
            key_of("ttft_seconds_bucket", {**own, "le": "2.5"}): within,
            key_of("ttft_seconds_bucket", {**own, "le": "+Inf"}): "0+6",
            key_of("ttft_seconds_count", own): "0+6",
        }

    def slow_burn(severity: str, percent: str) -> Firing:
        return fired(
            severity,
            "symptom",
            "vllmeter-latency",
            "vLLM server chat on a slowly uses up its TTFT error budget",
            f"""{percent} of the requests of chat waited longer than 2.5 s for their first token over a day or more.
            The error budget of 30 days will not last.""",
        )

    long = {"step_ms": 60010, "evaluation": "15m"}
    day = 86400
    b.add(
        "four of a hundred for a day",
        "VllmeterTtftObjectiveBurnSlow",
        {},
        [slow_burn("warning", "4%")],
        base=days(0.001, 0.04, day, 2.2 * day),
        silent=[day - 600, day + 600],
        fires=[int(2.1 * day)],
        minutes=int(2.2 * 1440),
        **long,  # type: ignore[arg-type]
    )
    b.add(
        "two of a hundred for three days",
        "VllmeterTtftObjectiveBurnSlow",
        {},
        [slow_burn("warning", "2%")],
        base=days(0.02, 0.02, day, 3.2 * day),
        silent=[0],
        fires=[int(3.1 * day)],
        minutes=int(3.2 * 1440),
        **long,  # type: ignore[arg-type]
    )
    b.add(
        "within the budget",
        "VllmeterTtftObjectiveBurnSlow",
        {},
        base=days(0.005, 0.005, day, 3.2 * day),
        silent=[day, 2 * day, int(3.1 * day)],
        minutes=int(3.2 * 1440),
        **long,  # type: ignore[arg-type]
    )
    b.add(
        "it was bad for two days and is good again",
        "VllmeterTtftObjectiveBurnSlow",
        {},
        base=days(0.05, 0.0, 1.5 * day, 2.2 * day),
        silent=[int(1.5 * day) + 8 * 3600, int(2.1 * day)],
        minutes=int(2.2 * 1440),
        **long,  # type: ignore[arg-type]
    )
    b.add(
        "it is bad only since an hour",
        "VllmeterTtftObjectiveBurnSlow",
        {},
        base=days(0.0, 0.1, 2 * day, 2.2 * day),
        silent=[2 * day + 900, 2 * day + 3600],
        minutes=int(2.2 * 1440),
        **long,  # type: ignore[arg-type]
    )
    # Then only 3 requests in 5 minutes are left: the burn of the day is history, and a share of 3 says nothing.
    trickle = int(1.8 * day / 60.01)
    own = {"job": "vllmeter", "instance": "a:9877", "host": "a", "server": "chat", "engine": "0"}
    b.add(
        "hardly any traffic now",
        "VllmeterTtftObjectiveBurnSlow",
        {},
        base={
            key_of("ttft_seconds_bucket", {**own, "le": "2.5"}): f"0+5.7x{trickle} {5.7 * trickle:.9g}+0.57",
            key_of("ttft_seconds_bucket", {**own, "le": "+Inf"}): f"0+6x{trickle} {6 * trickle}+0.6",
            key_of("ttft_seconds_count", own): f"0+6x{trickle} {6 * trickle}+0.6",
        },
        silent=[int(1.9 * day), int(2.1 * day)],
        minutes=int(2.2 * 1440),
        **long,  # type: ignore[arg-type]
    )

    missed = fired(
        "info",
        "symptom",
        "vllmeter-load-test",
        "This run pushes vLLM server chat on a over its TTFT objective",
        """40% of the last minute's requests of chat waited longer than 2.5 s for their first token, and so did
        those of the last 15 s.""",
    )

    def shares(minute: float, quarter: float) -> dict[str, str | None]:
        return {
            'ttft_window_share_over_ratio{bound="2.5", window="60s"}': until(0.001, minute),
            'ttft_window_share_over_ratio{bound="2.5", window="15s"}': until(0.002, quarter),
        }

    enough = {'ttft_window_requests{window="60s"}': "60"}
    b.add(
        "a run over the objective",
        "VllmeterTtftObjectiveMissedInRun",
        {**shares(0.4, 0.5), **enough, **RUN},
        [missed],
        hold=15,
    )
    b.add("no run", "VllmeterTtftObjectiveMissedInRun", shares(0.4, 0.5), silent=[345, 400, 840])
    b.add(
        "a run of another server",
        "VllmeterTtftObjectiveMissedInRun",
        {**shares(0.4, 0.5), 'run_active{server="embed", scenario="short", run="r1"}': "1"},
        silent=[345, 400, 840],
    )
    b.add("already over", "VllmeterTtftObjectiveMissedInRun", {**shares(0.4, 0.01), **RUN}, silent=[345, 400, 840])
    b.add("only 15 s so far", "VllmeterTtftObjectiveMissedInRun", {**shares(0.05, 0.5), **RUN}, silent=[345, 400, 840])
    b.add(
        "a run with a handful of requests",
        "VllmeterTtftObjectiveMissedInRun",
        {**shares(0.4, 0.5), **RUN, 'ttft_window_requests{window="60s"}': "6"},
        silent=[345, 400, 840],
    )
    b.add(
        "a server with other buckets",
        "VllmeterTtftObjectiveNotMeasurable",
        {'ttft_seconds_bucket{le="2.5"}': None},
        [
            fired(
                "info",
                "cause",
                "vllmeter-latency",
                "The TTFT objective of vLLM server chat on a cannot be measured",
                """The TTFT histogram of chat has no bound at 2.5 s, so the share of requests above it is not known
                and its burn alerts cannot fire.""",
            )
        ],
        silent=[300],
        fires=[720],
    )

    def starving(severity: str) -> Firing:
        return fired(
            severity,
            "symptom",
            "vllmeter-latency",
            "Long prefills stall the output of vLLM server chat on a",
            """Tokens of chat come 500ms apart, over 4 times its usual, with an empty queue and much prompt work:
            running requests wait for other requests' prefills.""",
        )

    def stall(latency: float = 0.5, prompt: float = 8000) -> dict[str, str | None]:
        return {
            'inter_token_latency_window_mean_seconds{window="60s"}': f"0.02x{steps(420)} {latency}",
            'prompt_tokens_computed_window{window="60s"}': f"800x{steps(420)} {prompt}",
        }

    starve = {"silent": [415], "fires": [480], "minutes": 10}
    b.add("long prompts of others", "VllmeterDecodeStarvation", stall(), [starving("warning")], **starve)  # type: ignore[arg-type]
    fine = {"silent": [450, 480, 590], "minutes": 10}
    b.add("slower, but readable", "VllmeterDecodeStarvation", stall(latency=0.09), **fine)  # type: ignore[arg-type]
    b.add(
        "always this slow",
        "VllmeterDecodeStarvation",
        {**stall(), "inter_token_latency_seconds_sum": per_second(49 * 0.3)},
        **fine,  # type: ignore[arg-type]
    )
    b.add("slow without prompt work", "VllmeterDecodeStarvation", stall(prompt=1500), **fine)  # type: ignore[arg-type]
    b.add("slow with a queue", "VllmeterDecodeStarvation", {**stall(), "requests_waiting": "4"}, **fine)  # type: ignore[arg-type]
    b.add("nothing runs", "VllmeterDecodeStarvation", {**stall(), "requests_running": "0"}, **fine)  # type: ignore[arg-type]

    def neighbours(mean: float, requests: float) -> dict[str, str | None]:
        return {
            'ttft_contended_mean_seconds{window="60s"}': until(0.27, mean),
            'ttft_contended_requests{window="60s"}': until(50, requests),
        }

    b.add(
        "slower while the neighbour computes",
        "VllmeterNeighbourInterference",
        neighbours(0.5, 40),
        [
            fired(
                "info",
                "cause",
                "vllmeter-latency",
                "vLLM server chat on a is slower while its neighbours compute",
                """In seconds in which another server on GPU 0 computed, the mean TTFT of chat was 2.0 times that
                of its other seconds. This is association, not proof of cause.""",
                level="server_gpu",
            )
        ],
        hold=120,
    )
    b.add("too few contended requests", "VllmeterNeighbourInterference", neighbours(0.5, 12), silent=[345, 480, 840])
    b.add(
        "too few clear requests",
        "VllmeterNeighbourInterference",
        {**neighbours(0.5, 40), 'ttft_clear_requests{window="60s"}': "12"},
        silent=[345, 480, 840],
    )
    b.add("a small difference", "VllmeterNeighbourInterference", neighbours(0.3, 40), silent=[345, 480, 840])


def errors(b: Builder) -> None:
    def http(n: str) -> Firing:
        return fired(
            "critical",
            "symptom",
            "vllmeter-overview",
            "vLLM server chat on a answers requests with errors",
            f"{n} requests to chat got a 5xx answer within 5 minutes, more than 5 % of all.",
        )

    new_errors = 'http_requests_total{server="chat", handler="/v1/completions", method="POST", status="5xx"}'
    quiet_traffic = {'http_requests_total{status="2xx"}': counter((0.05, 3600))}
    b.add(
        "the first errors create their series with 12",
        "VllmeterRequestErrors",
        {new_errors: f"_x{steps(FAULT)} 12", **quiet_traffic},
        [http("12")],
        hold=60,
    )
    b.add(
        "errors that go on",
        "VllmeterRequestErrors",
        {new_errors: counter((0, FAULT), (0.5, 3600))},
        [http("150")],
        hold=60,
        silent=[295],
        fires=[700],
    )
    b.add(
        "one error in a hundred",
        "VllmeterRequestErrors",
        {new_errors: counter((0, FAULT), (0.02, 3600))},
        silent=[295, 400, 700],
    )
    b.add(
        "two errors of three requests",
        "VllmeterRequestErrors",
        {
            new_errors: f"_x{steps(FAULT)} 2",
            'http_requests_total{status="2xx"}': "1",
            'http_requests_total{status="4xx"}': "0",
        },
        silent=[295, 400, 700],
    )
    b.add(
        "a server that is new to Prometheus brings its old errors along",
        "VllmeterRequestErrors",
        {
            new_errors: f"_x{steps(FAULT)} 500",
            **{
                f'{family}{{server="chat"}}': f"_x{steps(FAULT)} 1" for family in ("server_engine_metrics", "server_up")
            },
            'http_requests_total{status="2xx"}': f"_x{steps(FAULT)} 1000",
            'http_requests_total{status="4xx"}': f"_x{steps(FAULT)} 10",
        },
        silent=[315, 400, 550, 700],
    )
    b.add(
        "a restart takes the errors away",
        "VllmeterRequestErrors",
        {new_errors: f"500x{steps(FAULT)} _x{steps(40)} 0"},
        silent=[295, 360, 420, 700],
    )

    def failed(n: str) -> Firing:
        return fired(
            "warning",
            "symptom",
            "vllmeter-overview",
            "Requests end with an error inside vLLM server chat on a",
            f"""{n} requests of chat finished with the reason "error" within 5 minutes, more than 5 % of all: the
            engine gave up on them after they were accepted.""",
        )

    b.add(
        "the engine gives up on requests",
        "VllmeterRequestsFinishedWithError",
        {
            'requests_finished_total{reason="error"}': counter((0, FAULT), (0.02, 3600)),
            'requests_finished_total{reason="stop"}': counter((0.1, 3600)),
        },
        [failed("12")],
        hold=60,
        silent=[295],
        fires=[700],
    )
    b.add(
        "one in a hundred",
        "VllmeterRequestsFinishedWithError",
        {'requests_finished_total{reason="error"}': counter((0, FAULT), (0.01, 3600))},
        silent=[295, 400, 700],
    )
    b.add(
        "one error and hardly any traffic",
        "VllmeterRequestsFinishedWithError",
        {
            'requests_finished_total{reason="stop"}': "3",
            'requests_finished_total{engine="0", reason="error"}': until(0, 1),
        },
        silent=[295, 400, 700],
    )

    def rejected(severity: str) -> Firing:
        return fired(
            severity,
            "symptom",
            "vllmeter-overview",
            "vLLM server chat on a rejects requests",
            "3 requests were refused within 5 minutes because the queue limit of chat was reached.",
        )

    first = {'requests_rejected_total{server="chat", reason="max_num_queued_reqs"}': f"_x{steps(FAULT)} 3"}
    b.add("the first rejections", "VllmeterRequestsRejected", first, [rejected("warning")])
    b.add(
        "rejections half an hour ago",
        "VllmeterRequestsRejected",
        {'requests_rejected_total{server="chat", reason="max_num_queued_reqs"}': "3"},
        silent=[330, 620, 840],
    )
    corrupted = fired(
        "warning",
        "symptom",
        "vllmeter-overview",
        "vLLM server chat on a computed NaN",
        "2 requests of chat had NaN logits within 5 minutes: their output is wrong.",
    )
    b.add(
        "NaN logits",
        "VllmeterCorruptedOutputs",
        {'requests_corrupted_total{engine="1"}': until(0, 2)},
        [corrupted],
    )
    b.add(
        "the counter of a restarted server falls to 0",
        "VllmeterCorruptedOutputs",
        {'requests_corrupted_total{engine="1"}': until(9, 0)},
        silent=[295, 345, 700],
    )


def regressions(b: Builder) -> None:
    start = {'run_start_timestamp_seconds{server="chat", scenario="short", run="r1"}': "10"}
    stored = {
        'baseline_ttft_seconds{server="chat", scenario="short", stat="mean"}': "0.25",
        'baseline_ttft_seconds{server="chat", scenario="short", stat="p95"}': "0.001",
        'baseline_ttft_seconds{server="chat", scenario="long", stat="mean"}': "0.01",
        'baseline_e2e_seconds{server="chat", scenario="short", stat="mean"}': "1.5",
        'baseline_e2e_seconds{server="chat", scenario="short", stat="p95"}': "0.001",
        'baseline_throughput_tokens_per_second{server="chat", scenario="short"}': "100",
        'baseline_throughput_tokens_per_second{server="chat", scenario="long"}': "9000",
    }

    def words(what: str, sentence: str) -> Firing:
        return fired(
            "warning",
            "symptom",
            "vllmeter-load-test",
            f"{what} of vLLM server chat on a is above its baseline",
            f"""In the active run of short {sentence} of its stored baseline. `vllmeter compare` tells whether the
            difference is real.""",
            scenario="short",
        )

    # Each engine: one request a second; the mean of ttft doubles.
    slow = {"ttft_seconds_sum": counter((0.25, FAULT), (0.5, 3600))}
    ttft = words("TTFT", "the mean TTFT of chat is 200%")
    b.add(
        "TTFT doubles in a run",
        "VllmeterTtftAboveBaseline",
        {**RUN, **start, **stored, **slow},
        [ttft],
        hold=60,
        delay=60,
    )
    b.add("the same without a run", "VllmeterTtftAboveBaseline", {**stored, **slow}, silent=[295, 420, 840])
    b.add(
        "the run is of another scenario",
        "VllmeterTtftAboveBaseline",
        {
            **stored,
            **slow,
            'run_active{server="chat", scenario="mixed", run="r1"}': "1",
            'run_start_timestamp_seconds{server="chat", scenario="mixed", run="r1"}': "10",
        },
        silent=[295, 420, 840],
    )
    b.add(
        "ten percent more is no alert",
        "VllmeterTtftAboveBaseline",
        {**RUN, **start, **stored, "ttft_seconds_sum": counter((0.25, FAULT), (0.275, 3600))},
        silent=[295, 420, 840],
    )
    b.add(
        "the run has just begun",
        "VllmeterTtftAboveBaseline",
        {
            **stored,
            **slow,
            'run_active{server="chat", scenario="short", run="r1"}': f"_x{steps(FAULT)} 1",
            'run_start_timestamp_seconds{server="chat", scenario="short", run="r1"}': f"_x{steps(FAULT)} 300",
        },
        silent=[295, 405, 465],
    )
    b.add(
        "a handful of requests",
        "VllmeterTtftAboveBaseline",
        {
            **RUN,
            **start,
            **stored,
            "ttft_seconds_sum": counter((0.025, FAULT), (0.05, 3600)),
            "ttft_seconds_count": counter((0.1, 3600)),
        },
        silent=[295, 420, 840],
    )
    b.add(
        "end-to-end latency doubles in a run",
        "VllmeterE2eAboveBaseline",
        {**RUN, **start, **stored, "e2e_latency_seconds_sum": counter((1.5, FAULT), (3, 3600))},
        [words("End-to-end latency", "the mean end-to-end latency of chat is 200%")],
        hold=60,
        delay=60,
    )
    b.add(
        "end-to-end latency, no run",
        "VllmeterE2eAboveBaseline",
        {**stored, "e2e_latency_seconds_sum": counter((1.5, FAULT), (3, 3600))},
        silent=[295, 420, 840],
    )
    b.add(
        "end-to-end latency, ten percent",
        "VllmeterE2eAboveBaseline",
        {**RUN, **start, **stored, "e2e_latency_seconds_sum": counter((1.5, FAULT), (1.65, 3600))},
        silent=[295, 420, 840],
    )
    b.add(
        "end-to-end latency, few requests",
        "VllmeterE2eAboveBaseline",
        {
            **RUN,
            **start,
            **stored,
            "e2e_latency_seconds_sum": counter((0.15, FAULT), (0.3, 3600)),
            "e2e_latency_seconds_count": counter((0.1, 3600)),
        },
        silent=[295, 420, 840],
    )
    begins = {
        'run_active{server="chat", scenario="short", run="r1"}': f"_x{steps(FAULT)} 1",
        'run_start_timestamp_seconds{server="chat", scenario="short", run="r1"}': f"_x{steps(FAULT)} 300",
    }
    b.add(
        "end-to-end latency, the run has just begun",
        "VllmeterE2eAboveBaseline",
        {**stored, **begins, "e2e_latency_seconds_sum": counter((1.5, FAULT), (3, 3600))},
        silent=[295, 405, 465],
    )
    slower = {"generation_tokens_total": counter((50, FAULT), (30, 3600))}
    b.add(
        "throughput falls in a run",
        "VllmeterThroughputBelowBaseline",
        {**RUN, **start, **stored, **slower},
        [
            fired(
                "warning",
                "symptom",
                "vllmeter-load-test",
                "Throughput of vLLM server chat on a is below its baseline",
                """In the active run of short chat generates 60% of the tokens per second of its stored baseline.
                `vllmeter compare` tells whether the difference is real.""",
                scenario="short",
            )
        ],
        hold=60,
        delay=60,
    )
    b.add(
        "throughput falls without a run",
        "VllmeterThroughputBelowBaseline",
        {**stored, **slower},
        silent=[295, 420, 840],
    )
    b.add(
        "throughput falls by ten percent",
        "VllmeterThroughputBelowBaseline",
        {**RUN, **start, **stored, "generation_tokens_total": counter((50, FAULT), (45, 3600))},
        silent=[295, 420, 840],
    )
    b.add(
        "throughput of a run that has just begun",
        "VllmeterThroughputBelowBaseline",
        {**stored, **begins, **slower},
        silent=[295, 405, 465],
    )
    b.add(
        "throughput of a handful of requests",
        "VllmeterThroughputBelowBaseline",
        {**RUN, **start, **stored, **slower, "ttft_seconds_count": counter((0.1, 3600))},
        silent=[295, 420, 840],
    )

    # Own past. There is data only around the three moments that are compared: a week ago, a day ago, now. A sample
    # every four minutes, an evaluation every twenty. (With data all the time promtool's storage writes a block for
    # every 24 h beside the test, and for some milliseconds of it a look back finds nothing.)
    step, hour = 240.07, 3600
    now = 179 * hour
    moments = ((8, 13), (150, 157), (173, 181))
    """Hours with data: around ``now`` minus a week, minus a day, and itself."""

    def at_moments(rates: Sequence[float], *, counts: bool = True) -> str:
        """A counter (or gauge) with one rate (or value) per moment and nothing in between."""
        text, position = [], 0
        for (begin, end), rate in zip(moments, rates, strict=True):
            first, last = int(begin * hour / step), int(end * hour / step)
            text.append(f"_x{first - position}")
            text.append(f"0+{rate * step:.9g}x{last - first}" if counts else f"{rate:g}x{last - first}")
            text.append("stale")
            position = last + 1
        return " ".join(text)

    def past(
        prompt: float,
        generated: Sequence[float],
        ttft: tuple[float, float],
        e2e: tuple[float, float],
        waiting: float = 0,
        *,
        run: bool = False,
    ) -> Series:
        """``ttft``, ``e2e``: seconds a second before and now; ``generated``: tokens a second at the three moments."""
        server_labels = {"job": "vllmeter", "instance": "a:9877", "host": "a", "server": "chat"}
        own = {**server_labels, "engine": "0"}
        out = {
            key_of("prompt_tokens_total", own): at_moments([prompt] * 3),
            key_of("generation_tokens_total", own): at_moments(generated),
            key_of("ttft_seconds_sum", own): at_moments([ttft[0], *ttft]),
            key_of("e2e_latency_seconds_sum", own): at_moments([e2e[0], *e2e]),
            key_of("requests_waiting", own): at_moments([waiting] * 3, counts=False),
        }
        if run:
            labels = {**server_labels, "scenario": "short", "run": "r1"}
            out[key_of("run_active", labels)] = at_moments([1, 1, 1], counts=False)
        return out

    steady = (50.0, 50.0, 50.0)
    week = {"step_ms": 240070, "evaluation": "20m"}

    def told(name: str, alert: str, firing: Firing, base: Series) -> None:
        # An hour after the moment begins there is a rate over a whole hour of it, and 15 minutes are not over.
        b.add(name, alert, {}, [firing], base=base, silent=[now - 24 * hour, 173 * hour + 300], fires=[now], **week)  # type: ignore[arg-type]

    def not_told(name: str, alert: str, base: Series) -> None:
        b.add(name, alert, {}, base=base, silent=[now - 24 * hour, now], **week)  # type: ignore[arg-type]

    own_ttft = fired(
        "warning",
        "symptom",
        "vllmeter-latency",
        "TTFT per prompt token of vLLM server chat on a is above its own past",
        """Over the last hour chat needed 5ms of TTFT per prompt token, over 1.5 times the same hour of yesterday
        and of a week ago.""",
    )
    alert = "VllmeterTtftAboveOwnPast"
    told("TTFT per prompt token doubles", alert, own_ttft, past(20, steady, (0.05, 0.1), (3, 3)))
    not_told("TTFT per prompt token, in a run", alert, past(200, steady, (0.5, 1.0), (3, 3), run=True))
    not_told("TTFT per prompt token, a fifth more", alert, past(200, steady, (0.5, 0.6), (3, 3)))
    not_told("TTFT per prompt token, hardly any traffic", alert, past(2, steady, (0.5, 1.0), (3, 3)))
    not_told("as slow a week ago: nothing new", alert, past(200, steady, (1.0, 1.0), (3, 3)))
    own_e2e = fired(
        "warning",
        "symptom",
        "vllmeter-latency",
        "Latency per token of vLLM server chat on a is above its own past",
        """Over the last hour chat needed 120ms of end-to-end latency per generated token, over 1.5 times the same
        hour of yesterday and of a week ago.""",
    )
    alert = "VllmeterE2eAboveOwnPast"
    told("latency per token doubles", alert, own_e2e, past(200, steady, (0.5, 0.5), (3, 6)))
    not_told("latency per token, in a run", alert, past(200, steady, (0.5, 0.5), (3, 6), run=True))
    not_told("latency per token, a fifth more", alert, past(200, steady, (0.5, 0.5), (3, 3.6)))
    not_told("latency per token, hardly any tokens now", alert, past(200, (50, 50, 2), (0.5, 0.5), (3, 6)))
    own_throughput = fired(
        "warning",
        "symptom",
        "vllmeter-overview",
        "vLLM server chat on a is saturated at a lower throughput than before",
        """Over the last hour chat generated 30 tokens a second while requests waited all the time, less than 70 %
        of the same hour of yesterday and of a week ago.""",
    )
    alert = "VllmeterThroughputBelowOwnPast"

    def saturated(*generated: float, waiting: float = 4, run: bool = False) -> Series:
        return past(200, generated, (0.5, 0.5), (3, 3), waiting, run=run)

    told("saturated and slower", alert, own_throughput, saturated(50, 50, 30))
    not_told("as slow a week ago", alert, saturated(30, 50, 30))
    not_told("as slow yesterday", alert, saturated(50, 30, 30))
    not_told("slower in a run", alert, saturated(50, 50, 30, run=True))
    not_told("less was asked for: nobody waits", alert, saturated(50, 50, 30, waiting=0))
    not_told("a fifth slower", alert, saturated(50, 50, 40))


def gpus(b: Builder) -> None:
    b.add(
        "the card is too hot",
        "VllmeterGpuThrottled",
        {'gpu_throttle{reason="hw_thermal_slowdown"}': until(0, 1)},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-overview",
                "GPU 0 of a holds its clock down",
                """For 100% of the last 5 minutes the clock of GPU 0 was held down (hw_thermal_slowdown). Every server
                on it is slower.""",
                level="gpu",
                reason="hw_thermal_slowdown",
            )
        ],
        silent=[295, 500],
        fires=[690],
    )
    b.add(
        "a short dip",
        "VllmeterGpuThrottled",
        {'gpu_throttle{reason="hw_slowdown"}': between(0, 1, 300, 360)},
        silent=[350, 480, 840],
    )

    def xid(code: str) -> Firing:
        return fired(
            "warning",
            "cause",
            "vllmeter-overview",
            f"GPU 0 of a reported XID {code}",
            f"""The driver reported XID {code} for GPU 0 within the last 10 minutes. Some codes are an application's
            fault (13, 31, 43), others mean that the card needs a reset (48, 79, 95).""",
            level="gpu",
        )

    card = 'gpu_xid_last{gpu="0", uuid="GPU-a0"}'
    moment = 'gpu_last_xid_timestamp_seconds{gpu="0", uuid="GPU-a0"}'
    b.add(
        "the first XID",
        "VllmeterGpuXid",
        {card: f"_x{steps(FAULT)} 31", moment: f"_x{steps(FAULT)} {FAULT}"},
        [xid("31")],
    )
    b.add(
        "the same XID again",
        "VllmeterGpuXid",
        {card: "31", moment: until(-86400, FAULT)},
        [xid("31")],
    )
    b.add(
        "another XID after an old one",
        "VllmeterGpuXid",
        {card: until(31, 79), moment: until(-86400, FAULT)},
        [xid("79")],
    )
    b.add("an XID of ten minutes ago", "VllmeterGpuXid", {card: "31", moment: "0"}, silent=[630, 840])
    b.add(
        "an uncorrectable error",
        "VllmeterGpuEccErrors",
        {'gpu_ecc_errors_total{kind="uncorrected"}': until(0, 2)},
        [
            fired(
                "warning",
                "cause",
                "vllmeter-overview",
                "GPU 0 of a has uncorrectable memory errors",
                """GPU 0 counted 2 uncorrectable ECC errors within an hour. The process that held the page is killed,
                and the page is retired at the next reset.""",
                level="gpu",
                kind="uncorrected",
            )
        ],
    )
    b.add(
        "the driver was loaded again and counts from 0",
        "VllmeterGpuEccErrors",
        {'gpu_ecc_errors_total{kind="uncorrected"}': until(5, 0)},
        silent=[295, 345, 700],
    )
    vanished = fired(
        "critical",
        "symptom",
        "vllmeter-overview",
        "GPU 0 of a is not there any more",
        """GPU 0 was read within the last 30 minutes and is not now, while NVML works. It fell off the bus, or the
        exporter lost the device.""",
        level="gpu",
    )
    away = {"gpu_memory_total_bytes": f"{24 * GIB}x{steps(FAULT)} stale"}
    b.add("a card that fell off the bus", "VllmeterGpuVanished", away, [vanished], hold=60)
    b.add(
        "no NVML at all has its own alert",
        "VllmeterGpuVanished",
        {**away, "nvml_up": until(1, 0)},
        silent=[330, 400, 840],
    )


@cache
def all_cases() -> list[Case]:
    """Every hand-written case."""
    b = Builder()
    for part in (servers, exporters, memories, caches, latencies, errors, regressions, gpus):
        part(b)
    return b.cases
