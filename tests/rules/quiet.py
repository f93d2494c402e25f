"""Inputs in which nothing is wrong, or nothing that may alert: every alert has to be silent in all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rules.cases import RUN
from rules.world import STEP, Series, change, fleet, steps

MOMENT = 600
"""Seconds at which things happen."""


@dataclass(frozen=True)
class Quiet:
    """``allowed`` alerts may fire (they have their own cases)."""

    name: str
    series: Series
    at: tuple[int, ...]
    allowed: frozenset[str] = field(default_factory=frozenset)


def start_and_slope(values: str) -> tuple[float, float]:
    """``5+2`` -> (5, 2)."""
    start, _, slope = values.partition("+")
    return float(start), float(slope or 0)


def later(values: str, samples: int) -> str:
    """The same line as seen ``samples`` later."""
    start, slope = start_and_slope(values)
    return f"{start + slope * samples:.12g}+{slope:.12g}" if slope else values


def rewrite(series: Series, which: Callable[[str, dict[str, str]], bool], how: Callable[[str], str]) -> Series:
    return {
        (name, labels): how(values) if which(name, dict(labels)) else values
        for (name, labels), values in series.items()
    }


def chat_on_a(name: str, labels: dict[str, str]) -> bool:
    return labels.get("server") == "chat" and labels["host"] == "a"


def restarted() -> Series:
    """chat on a is away for 40 s and begins again at 0."""
    before, away = steps(MOMENT), 8
    series = rewrite(fleet(), chat_on_a, lambda values: f"{values}x{before} stale _x{away - 1} {values}")
    return change(
        series,
        {
            'server_up{server="chat"}': f"1x{before} 0x{away} 1",
            'server_restarts_total{server="chat"}': f"0x{before + away} 1",
            'server_last_restart_timestamp_seconds{server="chat"}': f"_x{before + away} {MOMENT + 40}",
            'server_state{server="chat", state="busy"}': f"1x{before} 0x{away} 1",
            'server_state{server="chat", state="gone"}': f"0x{before} 1x{away} 0",
        },
    )


def gap() -> Series:
    """Prometheus scraped nothing for three minutes."""
    before, missing = steps(MOMENT), 36
    return rewrite(
        fleet(),
        lambda name, labels: True,
        lambda values: f"{values}x{before} _x{missing} {later(values, before + missing)}",
    )


def removed() -> Series:
    """chat on a was taken out of the configuration."""
    return rewrite(fleet(), chat_on_a, lambda values: f"{values}x{steps(MOMENT)} stale")


def exporter_restarted() -> Series:
    """The exporter of host a was away for 20 s; its own counters and windows begin again."""
    before, away = steps(MOMENT), 4
    own = ("restarts_total", "_window", "_peak", "jitter", "contended", "clear")

    def how(values: str) -> str:
        return f"{values}x{before} stale _x{away - 1} {later(values, before + away)}"

    series = rewrite(fleet(), lambda name, labels: labels["host"] == "a" and name != "up", how)
    series = rewrite(
        series,
        lambda name, labels: labels["host"] == "a" and any(word in name for word in own),
        lambda values: values.replace(f"_x{away - 1}", f"_x{away + 11}"),
    )
    return change(series, {"up": f"1x{before} 0x{away} 1"})


def quiet_worlds() -> list[Quiet]:
    always = frozenset({"VllmeterWatchdog"})
    baseline = {
        'baseline_ttft_seconds{server="chat", scenario="short", stat="mean"}': "0.24",
        'baseline_e2e_seconds{server="chat", scenario="short", stat="mean"}': "1.45",
        'baseline_throughput_tokens_per_second{server="chat", scenario="short"}': "104",
        'run_start_timestamp_seconds{server="chat", scenario="short", run="r1"}': "10",
    }
    moments = (MOMENT + 30, MOMENT + 90, MOMENT + 210, MOMENT + 390, MOMENT + 660)
    return [
        Quiet("idle for half an hour: rates are 0, ratios NaN or absent", fleet(busy=False), (300, 720, 1200), always),
        Quiet("steady work within all limits", fleet(), (60, 300, 720, 1200), always),
        Quiet("a restart resets every counter", restarted(), moments, always | {"VllmeterServerRestarted"}),
        Quiet("three minutes without any scrape", gap(), moments, always),
        Quiet("a server removed from the configuration", removed(), moments, always),
        Quiet("the exporter restarted", exporter_restarted(), moments, always),
        Quiet("a run that is as good as its baseline", change(fleet(), {**RUN, **baseline}), (300, 600, 900), always),
        Quiet("first sight of running servers", first_sight(), (30, 60, 90, 330, 600), always),
    ]


def first_sight() -> Series:
    """Counters are high already when Prometheus sees them first: lifetime totals are no events."""
    series = rewrite(fleet(), lambda name, labels: True, lambda values: later(values, int(86400 / STEP)))
    return change(
        series,
        {
            'http_requests_total{server="chat", handler="/v1/completions", method="POST", status="5xx"}': "900",
            'requests_rejected_total{server="chat", reason="max_num_queued_reqs"}': "70",
            'requests_corrupted_total{server="chat"}': "3",
            'requests_finished_total{server="chat", reason="error"}': "800",
            'gpu_ecc_errors_total{kind="uncorrected"}': "2",
            'server_restarts_total{server="chat"}': "9",
        },
    )
