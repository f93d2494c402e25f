"""Variables of the dashboards.

All that filter are multi-valued; All is ``.*`` (every target has a job, so there ``.+``), so that an installation
without the label ``host`` works too.
"""

# ruff: noqa: E501 - a text of a panel or a query is one line

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as m

from house import DATASOURCE

NEWEST_RUNS = "7d"
"""How far back runs are found.  A series of a run has samples only while it is active, so this is cheap."""

LONGEST_RUN = 12
"""Hours; of a longer run only these are compared."""
BEFORE = 5
"""Seconds before a run that its first difference is taken from: the scrape interval of prometheus/prometheus.yml."""


def _all() -> m.VariableOption:
    return m.VariableOption(selected=True, text=["All"], value=["$__all"])


def _reference() -> common.DataSourceRef:
    return common.DataSourceRef(type_val="prometheus", uid=DATASOURCE)


def _query(name: str, label: str, description: str, query: str) -> d.QueryVariable:
    return (
        d.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(_reference())
        # A plain string: the form that every Grafana reads, whatever its query editor stores.
        .query(query)
        .definition(query)
        .refresh(m.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _filter(name: str, label: str, description: str, query: str, everything: str = ".*") -> d.QueryVariable:
    return (
        _query(name, label, description, query)
        .sort(m.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(everything)
        .current(_all())
    )


def datasource() -> d.DatasourceVariable:
    return (
        d.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus (or compatible store) that scrapes vllmeter.")
        .type("prometheus")
    )


def job() -> d.QueryVariable:
    return _filter("job", "Job", "Scrape job of the exporters.", "label_values(vllmeter_build_info, job)", ".+")


def host() -> d.QueryVariable:
    return _filter(
        "host",
        "Host",
        "Machine; a label that the scrape configuration sets.",
        'label_values(vllmeter_build_info{job=~"$job"}, host)',
    )


def server() -> d.QueryVariable:
    return _filter(
        "server",
        "Server",
        "vLLM instance, by its configured name.",
        'label_values(vllmeter_server_up{job=~"$job",host=~"$host"}, server)',
    )


def gpu() -> d.QueryVariable:
    """The index, as in the label ``gpu``: what alerts link with."""
    return _filter(
        "gpu",
        "GPU",
        "Index of the card on its host.",
        'label_values(vllmeter_gpu_info{job=~"$job",host=~"$host"}, gpu)',
    ).sort(m.VariableSort.NUMERICAL_ASC)


def card() -> d.QueryVariable:
    """Hidden: every card of the chosen hosts and indices, for rows that are repeated by it.

    The value is the UUID (unique in a fleet), the text says host, index and name.  All is the list of all of them.
    """
    cards = 'vllmeter_gpu_info{job=~"$job",host=~"$host",gpu=~"$gpu"}'
    return (
        _query(
            "card",
            "Card",
            "Card; shown with host, index and name, matched by UUID.",
            f'query_result(label_join({cards}, "shown", " · ", "host", "gpu", "name"))',
        )
        .regex('/shown="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/')
        .sort(m.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(_all())
        .hide(m.VariableHide.HIDE_VARIABLE)
    )


def window() -> d.CustomVariable:
    return (
        d.CustomVariable("window")
        .label("Window")
        .description("Window of the 1 s samples behind peaks, jitter and quantiles.")
        .values("60s,15s")
        .current(m.VariableOption(selected=True, text="60s", value="60s"))
        .options([m.VariableOption(selected=s == "60s", text=s, value=s) for s in ("60s", "15s")])
    )


def objective() -> d.QueryVariable:
    """Only bounds of existing buckets: a share over anything else would be a guess."""
    return (
        _query(
            "objective",
            "TTFT objective (s)",
            "Seconds; only bucket bounds of the servers are offered, so that the share over it is exact.",
            'label_values(vllmeter_ttft_window_share_over_ratio{job=~"$job",host=~"$host",server=~"$server"}, bound)',
        )
        .sort(m.VariableSort.NUMERICAL_ASC)
        .current(m.VariableOption(selected=True, text="1.0", value="1.0"))
    )


def setting() -> d.QueryVariable:
    """One setting that is a number."""
    return (
        _query(
            "setting",
            "Setting",
            "A setting of vLLM that is a number, for the graph of its changes.",
            'label_values(vllmeter_server_setting_value{job=~"$job",host=~"$host",server=~"$server"}, setting)',
        )
        .sort(m.VariableSort.ALPHABETICAL_ASC)
        .current(m.VariableOption(selected=True, text="max_num_batched_tokens", value="max_num_batched_tokens"))
    )


def run(letter: str, title: str) -> d.QueryVariable:
    """A run, the newest first; for run A the newest comes last, so that the two newest runs are compared at first."""
    seen = f'max by (run) (last_over_time(vllmeter_run_start_timestamp_seconds{{job=~"$job",host=~"$host"}}[{NEWEST_RUNS}]))'
    order = f"({seen} < scalar(max({seen}))) or {seen} * 0" if letter == "a" else seen
    return _query(
        f"run_{letter}",
        title,
        f"A run of the last {NEWEST_RUNS} (vllmeter run NAME -- COMMAND). A is the reference, B what is compared with it.",
        f"query_result(sort_desc({order}))",
    ).regex('/run="([^"]+)"/')


def _number(name: str, description: str, expression: str) -> d.QueryVariable:
    return (
        _query(name, name, description, f"query_result({expression})")
        .regex("/} (-?[0-9]+)/")
        .hide(m.VariableHide.HIDE_VARIABLE)
    )


def run_times(letter: str) -> list[d.QueryVariable]:
    """Hidden: start, end and length of a run in Unix seconds.  Without any run: 0, 1 and 1, and empty panels.

    Nothing says when a run ended: its last sample is looked for in the :data:`LONGEST_RUN` after its start.
    """
    chosen = f'{{job=~"$job",host=~"$host",run="$run_{letter}"}}'
    active = f"timestamp(vllmeter_run_active{chosen})"
    return [
        _number(
            f"start_{letter}",
            "Start of the run.",
            f"max(last_over_time(vllmeter_run_start_timestamp_seconds{chosen}[{NEWEST_RUNS}])) or vector(0)",
        ),
        _number(
            f"until_{letter}",
            f"{LONGEST_RUN} hours after the start of the run.",
            f"vector(${{start_{letter}}} + {LONGEST_RUN * 3600})",
        ),
        _number(
            f"end_{letter}",
            "Just after the last moment at which the run was active.",
            f"max(max_over_time({active}[{LONGEST_RUN}h:5s] @ ${{until_{letter}}})) + 1 or vector(1)",
        ),
        _number(
            f"length_{letter}",
            "Length of the run in seconds.",
            f"clamp_min(vector(${{end_{letter}}} - ${{start_{letter}}}), 1)",
        ),
        _number(
            f"span_{letter}",
            f"The same and {BEFORE} s: so that the last scrape before the start is in it.",
            f"vector(${{length_{letter}}} + {BEFORE})",
        ),
    ]


def run_shift() -> d.QueryVariable:
    """Hidden: milliseconds from the start of run A to the start of run B.

    Run A's series are read with this offset, so that both begin together.  1 ms short, because an offset of 0 is an error.
    """
    return _number("shift", "Milliseconds from run A to run B.", "vector(($start_b - $start_a) * 1000 - 1)")
