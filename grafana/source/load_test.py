"""Load test: two runs side by side, aligned by time since their start.

Run A, the reference, is read with ``offset ${shift}ms``, so that both runs begin at the start of run B and share one axis and one
scale: a difference is a gap between two lines, not a comparison of two pictures.  The later run gives the axis, since at its time
both are known.
"""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import house
import variables as v
from layout import Board, Section
from panels import Column, Item, Look, Query, heat, series, stat, table, words
from queries import EXPORTER, KEYS, LONGEST, SERVER, SERVER_GPU, of

_FIFTEEN = 'window="15s"'
_MEAN = 'stat="mean"'
_RUN_B = 'run="$run_b"'
_RUN = {"A": "run_a", "B": "run_b"}
_SHIFT = {"A": " offset ${shift}ms", "B": ""}
_ON = "on (job, instance, server)"
_RUNS = "No run in the last 7 days is chosen: vllmeter run NAME -- COMMAND, or POST /api/runs, marks runs."
_ALIGNED = " Run A is moved so that both start together."
_AB = (
    Look("/^A /", house.RUN_COLOURS["A"], width=2),
    Look("/^B /", house.RUN_COLOURS["B"], width=2, dashed=True),
    Look("/ baseline/", "text", dashed=True, width=1),
)


def _while(letter: str) -> str:
    """A condition: only the moments in which the run was active (moved as its series are)."""
    run = of("run_active", f'run="${_RUN[letter]}"')
    return f"and {_ON} (max without (scenario, run) ({run}{_SHIFT[letter]}) == 1)"


def _window(name: str, letter: str, *more: str, by: str = SERVER, drop: str = "window") -> str:
    return f"max without ({drop}) ({of(name, _FIFTEEN, *more, by=by)}{_SHIFT[letter]}) {_while(letter)}"


def _rate(name: str, letter: str, drop: str = "engine") -> str:
    return f"sum without ({drop}) (rate({of(name)}[$__rate_interval]{_SHIFT[letter]})) {_while(letter)}"


def _both(make: object, suffix: str = "") -> list[Query]:
    assert callable(make)
    return [Query(make(letter), f"{letter} {{{{server}}}} · {{{{host}}}}{suffix}") for letter in _RUN]


def _facts() -> list[Item]:
    out = []
    for letter, variable in _RUN.items():
        small = letter.lower()
        end = of("run_end_timestamp_seconds", f'run="${variable}"', by=EXPORTER)
        exact = f"max (max_over_time({end}[{v.LONGEST_RUN}h] @ ${{until_{small}}}) > $start_{small}) - $start_{small}"
        out.append(
            stat(
                f"Run {letter}",
                f"The chosen run {letter}: its length (where nothing said that it ended: at least until its last scrape), and when it started.",
                [
                    Query(exact, f"${variable}: length"),
                    Query(
                        f"vector($length_{small}) and on () ({_seen(letter)}) unless on () ({exact})",
                        f"${variable}: at least",
                    ),
                    Query(f"vector($start_{small} * 1000) and on () ({_seen(letter)})", "started"),
                ],
                unit="s",
                no_data=_RUNS,
                width=6,
                height=4,
                names=True,
                decimals=0,
                looks=(Look("/^started$/", unit="dateTimeAsIso"),),
            )
        )
    out.append(
        words(
            "How to read this page",
            "**A** (the reference) is solid blue, **B** dashed orange, aligned at their start: "
            "[zoom to run B](/d/vllmeter-load-test?from=${start_b}000&to=${end_b}000&${__all_variables}). The table compares whole runs from exact "
            "counters. It shows what differs, not whether that is chance: `vllmeter compare A B` gives the interval and the verdict, from the "
            "client's own results too.",
            width=12,
            height=4,
        )
    )
    return out


def _seen(letter: str) -> str:
    run = of("run_start_timestamp_seconds", f'run="${_RUN[letter]}"', by=EXPORTER)
    return f"count (last_over_time({run}[{v.NEWEST_RUNS}])) > 0"


def _whole(letter: str) -> dict[str, str]:
    """Measures of a whole run, by name."""
    small = letter.lower()
    span = f"[${{span_{small}}}s] @ ${{end_{small}}}"
    by = f"by ({KEYS})"

    def more(name: str) -> str:
        # Exact, where increase() would extrapolate; absent where a restart fell into the run.
        counter = f"{of(name)}{span}"
        return f"sum {by} (max_over_time({counter}) - min_over_time({counter}) and resets({counter}) == 0)"

    def mean(name: str) -> str:
        # Milliseconds: the rows share a column, so none has a unit of its own, and 0.000018 s cannot be read.
        return f"1000 * ({more(name + '_sum')} / ({more(name + '_count')} > 0) <= {LONGEST})"

    return {
        "1 TTFT, mean (ms)": mean("ttft_seconds"),
        "2 inter-token latency, mean (ms)": mean("inter_token_latency_seconds"),
        "3 whole request, mean (ms)": mean("e2e_latency_seconds"),
        "4 queue, mean (ms)": mean("queue_time_seconds"),
        "5 generated tokens per second": f"{more('generation_tokens_total')} / $length_{small}",
        "6 requests finished per second": f"{more('requests_finished_total')} / $length_{small}",
        "7 preemptions": more("preemptions_total"),
        "8 waiting, peak": f"max {by} (max_over_time({of('requests_waiting_peak', _FIFTEEN)}{span}))",
    }


def _during(letter: str) -> str:
    """Only servers that the run names."""
    small = letter.lower()
    run = of("run_active", f'run="${_RUN[letter]}"')
    return f"and {_ON} last_over_time({run}[${{length_{small}}}s] @ ${{end_{small}}})"


def _table() -> Item:
    def rows(letter: str) -> str:
        return " or ".join(
            f'label_replace(({expression}) {_during(letter)}, "measure", "{name}", "", "")'
            for name, expression in _whole(letter).items()
        )

    a, b = _whole("A"), _whole("B")
    difference = " or ".join(
        f"label_replace((({b[name]}) {_during('B')}) / on ({KEYS}) ((({a[name]}) {_during('A')}) > 0) - 1, "
        f'"measure", "{name}", "", "")'
        for name in a
    )
    return table(
        "Difference, whole runs",
        "Counters of the last scrape in the run minus those of the last scrape before it, so no window and no bucket is involved; rates are over the time between these scrapes. "
        "A run with a restart in it has none. B against A: how much larger B is than A. Not a verdict: `vllmeter compare` says whether it could be chance.",
        [Query(rows("A"), ref="A"), Query(rows("B"), ref="B"), Query(difference, ref="C")],
        [
            Column("server", "Server"),
            Column("host", "Host"),
            Column("measure", "Measure", width=230),
            Column("Value #A", "A", "none"),
            Column("Value #B", "B", "none"),
            Column("Value #C", "B against A", "percentunit", 1),
        ],
        no_data=_RUNS,
        width=14,
        height=10,
        sort="Measure",
    )


def _settings() -> Item:
    def at(letter: str) -> str:
        small = letter.lower()
        return f"max by ({KEYS}, setting, value) (last_over_time({of('server_setting_info')}[${{length_{small}}}s] @ ${{end_{small}}}))"

    def only(letter: str, other: str) -> str:
        keys = f"{KEYS}, setting"
        return (
            f"max by ({keys}, in_{letter.lower()}) (label_replace({at(letter)} unless on ({keys}, value) {at(other)}, "
            f'"in_{letter.lower()}", "$1", "value", "(.*)"))'
        )

    return table(
        "Settings that differ",
        "Effective settings of the servers at the end of each run. More than one line: the runs do not test one change.",
        [Query(only("A", "B"), ref="A"), Query(only("B", "A"), ref="B")],
        [
            Column("server", "Server"),
            Column("setting", "Setting", width=190),
            Column("in_a", "A"),
            Column("in_b", "B"),
        ],
        no_data="the settings are the same, or no run is chosen.",
        width=10,
        height=10,
        sort="Setting",
    )


def _pair(title: str, text: str, queries: Sequence[Query], unit: str, no_data: str = _RUNS, **more: Any) -> Item:
    """Run A and run B on one axis."""
    looks = (*_AB, *more.pop("looks", ()))
    return series(title, text + _ALIGNED, queries, unit=unit, no_data=no_data, looks=looks, by_server=False, **more)


def _pairs() -> list[list[Item]]:
    baseline = (
        f"max without (stat) ({of('baseline_ttft_seconds', _MEAN)}) and {_ON} "
        f"(max without (scenario, run) ({of('run_active', _RUN_B)}) == 1)"
    )
    on_card = "window, gpu, uuid"
    return [
        [
            _pair(
                "TTFT, mean",
                "Mean TTFT in windows of 15 s, and the stored baseline's mean (client side) where there is one.",
                [
                    *_both(lambda letter: _window("ttft_window_mean_seconds", letter)),
                    Query(baseline, "{{server}} · {{host}} baseline {{scenario}}"),
                ],
                "s",
            ),
            _pair(
                "TTFT jitter, upper bound",
                "Upper bound of the standard deviation of TTFT in windows of 15 s (always there, unlike the estimate).",
                _both(lambda letter: _window("ttft_jitter_upper_seconds", letter)),
                "s",
            ),
            _pair(
                "Inter-token latency, mean",
                "Mean ITL in windows of 15 s.",
                _both(lambda letter: _window("inter_token_latency_window_mean_seconds", letter)),
                "s",
            ),
        ],
        [
            _pair(
                "Generated tokens per second",
                "Output tokens.",
                _both(lambda letter: _rate("generation_tokens_total", letter)),
                "short",
            ),
            _pair(
                "Running and waiting",
                "Requests that run (peak of 15 s) and wait (points).",
                [
                    *_both(lambda letter: _window("requests_running_peak", letter), " running"),
                    *_both(lambda letter: _window("requests_waiting_peak", letter), " waiting"),
                ],
                "short",
                decimals=0,
                looks=(Look("/ waiting$/", points=True),),
            ),
            _pair(
                "KV cache in use, 1 s peak",
                "Largest share of KV blocks in use in windows of 15 s.",
                _both(lambda letter: _window("kv_cache_usage_peak_ratio", letter)),
                "percentunit",
                maximum=1,
            ),
        ],
        [
            _pair(
                "GPU memory of the server, peak",
                "Largest memory of the server in windows of 15 s.",
                _both(lambda letter: _window("server_gpu_memory_peak_bytes", letter, by=SERVER_GPU, drop=on_card)),
                "bytes",
            ),
            _pair(
                "Preemptions",
                "Preempted requests in windows of 15 s.",
                _both(lambda letter: _window("preemptions_window", letter)),
                "short",
                decimals=0,
            ),
            _pair(
                "Seconds with a busy neighbour",
                "If this differs between the runs, so does the test.",
                _both(lambda letter: _window("gpu_contention_ratio", letter, by=SERVER_GPU, drop=on_card)),
                "percentunit",
                "The server is alone on its card, or no run is chosen.",
                maximum=1,
            ),
        ],
    ]


def _runs() -> Item:
    """The runs to choose from, with when they were and how long they took."""
    keys = f"{KEYS}, scenario, run"

    def newest(name: str) -> str:
        return f"max by ({keys}) (last_over_time({of(name)}[{v.NEWEST_RUNS}]))"

    start, end = newest("run_start_timestamp_seconds"), newest("run_end_timestamp_seconds")
    here = "/d/vllmeter-load-test?${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${host:queryparam}&${server:queryparam}"
    choose = (
        ("Choose as run A", here + "&var-run_a=${__value.raw}&${run_b:queryparam}"),
        ("Choose as run B", here + "&${run_a:queryparam}&var-run_b=${__value.raw}"),
    )
    return table(
        f"Runs of the last {v.NEWEST_RUNS}",
        "Where a name was used more than once, its newest run. Length: to the second, as the exporter was told; – while it is active, or when "
        "nothing said that it ended. A name opens a menu: choose it as A or as B.",
        [Query(f"{start} * 1000", ref="A"), Query(f"{end} - {start} > 0", ref="B")],
        [
            Column("run", "Run", link=choose),
            Column("scenario", "Scenario", width=100),
            Column("server", "Server"),
            Column("host", "Host", width=80),
            Column("Value #A", "Started", "dateTimeAsIso", width=160),
            Column("Value #B", "Length", "s", 0, width=80),
        ],
        no_data=_RUNS,
        width=12,
        height=9,
        sort="-Started",
    )


def _heat(letter: str) -> Item:
    # `and` keeps only what happened in the run; le is not in the run's labels.
    buckets = f"rate({of('ttft_seconds_bucket')}[$__rate_interval]{_SHIFT[letter]})"
    return heat(
        f"TTFT, run {letter}",
        f"Requests per second by TTFT bucket in run {letter}." + (_ALIGNED if letter == "A" else ""),
        f"sum by (le) ({buckets} {_while(letter)})",
        no_data=_RUNS,
    )


def _client() -> list[list[Item]]:
    def stats(name: str, title: str) -> str:
        return f'label_replace(max by ({KEYS}, scenario, stat) ({of(name)}), "measure", "{title}", "", "")'

    return [
        [
            _runs(),
            table(
                "Stored baselines (client side)",
                "What the load-test tool itself measured in the run that was stored as baseline (vllmeter baseline). Client TTFT contains the network "
                "and the client's own scheduling, so it is never below the server's.",
                [
                    Query(
                        f"{stats('baseline_ttft_seconds', 'TTFT')} or {stats('baseline_e2e_seconds', 'whole request')}",
                        ref="A",
                    )
                ],
                [
                    Column("server", "Server"),
                    Column("host", "Host"),
                    Column("scenario", "Scenario"),
                    Column("measure", "Measure"),
                    Column("stat", "Statistic"),
                    Column("Value", "Seconds", "s"),
                ],
                no_data="no baseline is stored: vllmeter baseline.",
                width=12,
                height=9,
                sort="Measure",
            ),
        ],
        [
            words(
                "Client-side results",
                "Results of k6, `vllm bench serve`, guidellm and aiperf are files, not time series; they stay with the run:\n\n"
                "    vllmeter import RUN FILE\n    vllmeter compare A B\n\n"
                "prints client and server side by side, with intervals, effective sample size and a verdict. What was stored with "
                "`vllmeter baseline` is in the table above.",
                width=24,
                height=5,
            ),
        ],
    ]


def board() -> Board:
    """The dashboard."""
    times = [*v.run_times("a"), *v.run_times("b"), v.run_shift()]
    return Board(
        name="load-test",
        uid="load-test",
        title="Load test",
        description="Two runs on one axis, aligned by time since start; what differs in numbers and in settings.",
        variables=[
            v.datasource(),
            v.job(),
            v.host(),
            v.server(),
            v.gpu(),
            v.run("a", "Run A"),
            v.run("b", "Run B"),
            *times,
        ],
        sections=[
            Section("", [_facts(), [_table(), _settings()]]),
            Section("A and B since their start", _pairs()),
            Section("Every request", [[_heat("A"), _heat("B")]]),
            Section("Runs and client side", _client()),
        ],
    )
