"""Exporter health: can the numbers on the other pages be trusted."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import house
import variables as v
from house import GREEN, ORANGE, VERMILLION
from layout import Board, Section
from panels import Column, Item, Look, Query, series, stat, state_mapping, states, table
from queries import EXPORTER, LEGEND, by_server, of, rate, state_number

_NO_EXPORTER = "No exporter is scraped: check the job in Prometheus (Status, Targets)."
_HOST = "{{host}}"


def _dashed(pattern: str) -> Look:
    return Look(pattern, dashed=True, width=1)


def _strip() -> list[Item]:
    return [
        stat(
            "Exporters not answering",
            "Exporters that Prometheus cannot scrape.",
            [Query(f"sum (up{{{EXPORTER}}} == bool 0)")],
            unit="short",
            no_data=_NO_EXPORTER,
            steps=((None, GREEN), (1, VERMILLION)),
            height=3,
        ),
        stat(
            "Servers down",
            "Servers whose last /metrics could not be read.",
            [Query(f"sum ({of('server_up')} == bool 0)")],
            unit="short",
            no_data=_NO_EXPORTER,
            steps=((None, GREEN), (1, VERMILLION)),
            height=3,
        ),
        stat(
            "Oldest sample",
            "Age of the oldest usable sample of a server.",
            [Query(f"max ({of('sample_age_seconds')})")],
            unit="s",
            no_data="no sample",
            steps=((None, GREEN), (5, ORANGE), (30, VERMILLION)),
            height=3,
        ),
        stat(
            "NVML",
            "Does NVML answer on every host.",
            [Query(f"min ({of('nvml_up', by=EXPORTER)})")],
            unit="none",
            no_data="no GPU here",
            mappings={1: ("answers", GREEN), 0: ("fails", VERMILLION)},
            height=3,
        ),
        stat(
            "Configuration",
            "Did the last load of vllmeter.yaml succeed on every host.",
            [Query(f"min ({of('config_last_reload_successful', by=EXPORTER)})")],
            unit="none",
            no_data=_NO_EXPORTER,
            mappings={1: ("loaded", GREEN), 0: ("refused", VERMILLION)},
            height=3,
        ),
        stat(
            "Unknown families",
            "Metric families of vLLM that this version of vllmeter does not know: a sign of a newer vLLM.",
            [Query(f"max ({of('unmapped_families')})")],
            unit="short",
            no_data=_NO_EXPORTER,
            steps=((None, GREEN), (1, ORANGE)),
            height=3,
        ),
    ]


def _states() -> Item:
    return states(
        "State of every server",
        "One state at a time, from the evidence of docs/signals.md. stale_gauges: vLLM still shows requests of clients that left; nobody waits.",
        [Query(state_number(tuple(house.STATE_COLOURS)), LEGEND)],
        mappings=state_mapping(),
        no_data=_NO_EXPORTER,
        height=7,
    )


def _scraping() -> list[list[Item]]:
    return [
        [
            series(
                "Age of the newest sample",
                "Seconds since the newest usable sample. Values are withdrawn when it is too old: a gap on the other pages.",
                [Query(of("sample_age_seconds"), LEGEND)],
                unit="s",
                no_data=_NO_EXPORTER,
            ),
            series(
                "Time of a scrape",
                "Duration of the last finished scrape (solid) and how long the pending one has been waiting (dashed). A busy vLLM answers late.",
                [
                    Query(of("scrape_duration_seconds"), LEGEND),
                    Query(of("scrape_in_flight_seconds"), LEGEND + " pending"),
                ],
                unit="s",
                no_data=_NO_EXPORTER,
                looks=(_dashed("/ pending$/"),),
            ),
            series(
                "Failed scrapes per second, by reason",
                "refused: no process listens. timeout: it does not answer. Others: docs/signals.md.",
                [Query(rate("scrape_failures_total"), LEGEND + " {{reason}}")],
                unit="short",
                decimals=2,
                no_data="No scrape has failed since the exporter started.",
            ),
        ],
        [
            series(
                "Sampling interval",
                "Effective interval. Above 1 s: the exporter backs off because its own scrapes cost too much.",
                [Query(of("sample_interval_seconds"), LEGEND)],
                unit="s",
                no_data=_NO_EXPORTER,
            ),
            series(
                "Body of /metrics",
                "Bytes that one scrape of vLLM reads: what sampling costs its API server.",
                [Query(of("scrape_body_bytes"), LEGEND)],
                unit="bytes",
                no_data=_NO_EXPORTER,
            ),
            series(
                "Restarts and changed settings",
                "In the last 5 minutes: restarts (solid), changes of settings (dashed).",
                [
                    Query(f"increase({of('server_restarts_total')}[5m])", LEGEND + " restarts"),
                    Query(f"increase({of('server_config_changes_total')}[5m])", LEGEND + " changes"),
                ],
                unit="short",
                decimals=0,
                no_data=_NO_EXPORTER,
                looks=(_dashed("/ changes$/"),),
            ),
        ],
    ]


def _nvml() -> list[list[Item]]:
    return [
        [
            series(
                "Age of the NVML sample",
                "Seconds since the last NVML tick. GPU values are withdrawn after 3 s.",
                [Query(of("nvml_sample_age_seconds", by=EXPORTER), _HOST)],
                unit="s",
                no_data="No GPU on the host, or NVML is not installed.",
                by_server=False,
            ),
            series(
                "Time of an NVML tick",
                "Above 5 ms, processes are read less often, and peaks say so.",
                [Query(of("nvml_collection_duration_seconds", by=EXPORTER), _HOST)],
                unit="s",
                no_data="No GPU on the host, or NVML is not installed.",
                by_server=False,
            ),
            table(
                "NVML: what it says",
                "Why NVML gives no or partial readings, per host.",
                [Query(f"max by (job, instance, host, reason) ({of('nvml_status_info', by=EXPORTER)})")],
                [Column("host", "Host"), Column("reason", "Reason")],
                no_data="NVML gives everything that it is asked for.",
                width=8,
                sort="Host",
            ),
        ],
        [
            series(
                "Unattributed memory",
                "Used GPU memory that no listed process accounts for: some MiB of the driver are normal. Much: processes of another container or user.",
                [Query(of("gpu_memory_unattributed_bytes", by=EXPORTER), "GPU {{gpu}} · {{host}}")],
                unit="bytes",
                no_data="No GPU on the host, or the driver hides processes (WSL2).",
                by_server=False,
                minimum=None,
            ),
            series(
                "NVML ticks dropped",
                "Ticks in which memory and process list did not fit together (a process ended between the two reads), in 5 minutes.",
                [Query(f"increase({of('nvml_ticks_dropped_total', by=EXPORTER)}[5m])", _HOST)],
                unit="short",
                no_data="No GPU on the host, or NVML is not installed.",
                by_server=False,
            ),
            table(
                "Attribution",
                "How the processes of each server were found, and whether its memory is measured.",
                [Query(by_server(of("attribution_info"), "state", "method", "reason"))],
                [
                    Column("server", "Server"),
                    Column(
                        "state", "Memory is", words={"measured": GREEN, "estimated": ORANGE, "unavailable": VERMILLION}
                    ),
                    Column("method", "Found by"),
                    Column("reason", "Reason"),
                ],
                no_data=_NO_EXPORTER,
                width=8,
                sort="Server",
            ),
        ],
    ]


def _cost() -> list[list[Item]]:
    return [
        [
            series(
                "Series per server",
                "Series that the exporter exposes for a server's own metrics. expose: without: in vllmeter.yaml leaves histograms out.",
                [Query(of("exposed_series"), LEGEND)],
                unit="short",
                decimals=0,
                no_data=_NO_EXPORTER,
            ),
            series(
                "Samples per scrape of the exporter",
                "What Prometheus reads per scrape, everything included.",
                [Query(f"scrape_samples_scraped{{{EXPORTER}}}", _HOST)],
                unit="short",
                decimals=0,
                no_data=_NO_EXPORTER,
                by_server=False,
            ),
            series(
                "CPU of the exporter",
                "Cores that the exporter itself uses.",
                [Query(f"rate(process_cpu_seconds_total{{{EXPORTER}}}[$__rate_interval])", _HOST)],
                unit="percentunit",
                no_data=_NO_EXPORTER,
                by_server=False,
            ),
        ],
        [
            table(
                "Versions",
                "Exporter per host.",
                [Query(f"max by (job, instance, host, version, python) ({of('build_info', by=EXPORTER)})")],
                [
                    Column("host", "Host"),
                    Column("instance", "Target"),
                    Column("version", "vllmeter"),
                    Column("python", "Python"),
                ],
                no_data=_NO_EXPORTER,
                width=12,
                sort="Host",
            ),
            table(
                "Servers",
                "What each server says about itself; no engine metrics means --disable-log-stats.",
                [
                    Query(by_server(of("server_info"), "model_name", "version"), ref="A"),
                    Query(by_server(of("server_engine_metrics")), ref="B"),
                    Query(by_server(of("server_healthy")), ref="C"),
                ],
                [
                    Column("server", "Server"),
                    Column("model_name", "Model"),
                    Column("version", "vLLM"),
                    Column("Value #B", "Engine metrics", mappings={1: ("yes", GREEN), 0: ("no", ORANGE)}),
                    Column("Value #C", "/health", mappings={1: ("ok", GREEN), 0: ("fails", VERMILLION)}),
                ],
                no_data=_NO_EXPORTER,
                width=12,
                sort="Server",
            ),
        ],
    ]


def board() -> Board:
    """The dashboard."""
    return Board(
        name="exporter-health",
        uid="exporter",
        title="Exporter health",
        description="Are the samples fresh, what failed and why, what does sampling cost, what does NVML say.",
        variables=[v.datasource(), v.job(), v.host(), v.server(), v.gpu()],
        sections=[
            Section("", [_strip()]),
            Section("Servers", [[_states()], *_scraping()]),
            Section("NVML and attribution", _nvml()),
            Section("Cost and versions", _cost()),
        ],
    )
