"""PromQL of all dashboards: selectors, and one function per way of reading a family.

Rules that every expression keeps (tests/grafana checks them):

- Server names repeat across hosts: nothing is aggregated by ``server`` alone, joins name job, instance and server.
- Rates come from counters with ``$__rate_interval`` or from recording rules; numerators and denominators are summed
  before they are divided, and nothing is divided by 0.
- Ratios such as KV usage are never summed; quantiles come from summed buckets or from the exporter's bounds.
- A value that is not there stays absent: no ``or vector(0)`` in a panel.
"""

from __future__ import annotations

from typing import Final

EXPORTER: Final = 'job=~"$job",host=~"$host"'
SERVER: Final = EXPORTER + ',server=~"$server"'
GPU: Final = EXPORTER + ',gpu=~"$gpu"'
SERVER_GPU: Final = SERVER + ',gpu=~"$gpu"'
CARD: Final = GPU + ',uuid=~"$card"'
SERVER_CARD: Final = SERVER_GPU + ',uuid=~"$card"'
"""One card of one host, in rows that are repeated by ``card``: the index is not unique in a fleet."""

LONGEST: Final = 7680
"""Seconds; a mean above it (three times vLLM's last bound) is a broken observation, not a latency."""

KEYS: Final = "job, instance, host, server"
"""What tells one server from every other one in a fleet."""

WINDOW: Final = 'window="$window"'
MINUTE: Final = 'window="60s"'

LEGEND: Final = "{{server}} · {{host}}"
"""Begins with the server: the colour overrides look for it there."""


def of(name: str, *more: str, by: str = SERVER) -> str:
    """A family of the exporter (name without prefix) with the dashboard's selectors and ``more`` matchers."""
    return f"vllmeter_{name}{{{','.join((by, *more))}}}"


def rule(name: str, *more: str, by: str = SERVER, level: str = "server") -> str:
    """A recording rule (name without level and prefix)."""
    return f"{level}:vllmeter_{name}{{{','.join((by, *more))}}}"


def window(name: str, *more: str, by: str = SERVER, seconds: str = WINDOW) -> str:
    """A windowed family, its window label dropped."""
    return f"max without (window) ({of(name, seconds, *more, by=by)})"


def setting(name: str) -> str:
    """A setting as a number, one series per server; absent where it is a word or not known."""
    wanted = f'setting="{name}"'
    return f"max without (setting) ({of('server_setting_value', wanted)})"


def rate(name: str, *more: str, by: str = SERVER, drop: str = "engine") -> str:
    """Rate of a counter over Grafana's interval, without the labels ``drop``."""
    return f"sum without ({drop}) (rate({of(name, *more, by=by)}[$__rate_interval]))"


def mean(name: str, *more: str) -> str:
    """Mean observation of a histogram: summed rates of sum and count, divided where something was counted.

    The upper limit drops uptime-sized intervals that some vLLM versions observe (vLLM issue 49135).
    """
    return f"{rate(name + '_sum', *more)} / ({rate(name + '_count', *more)} > 0) <= {LONGEST}"


def ratio(top: str, bottom: str) -> str:
    """Division that is absent where the denominator is 0."""
    return f"{top} / ({bottom} > 0)"


def by_server(expression: str, *more: str, how: str = "max") -> str:
    """One series per server, for tables: exactly the key labels and ``more``."""
    return f"{how} by ({', '.join((KEYS, *more))}) ({expression})"


def as_label(expression: str, label: str, value: str) -> str:
    """The same series with a constant label, for rows of a table made of several measures."""
    return f'label_replace({expression}, "{label}", "{value}", "", "")'


def pooled_mean(name: str, *more: str) -> str:
    """Mean over every chosen server together (used where a row is repeated for one server name)."""
    top = f"sum (rate({of(name + '_sum', *more)}[$__rate_interval]))"
    bottom = f"sum (rate({of(name + '_count', *more)}[$__rate_interval]))"
    return f"{top} / ({bottom} > 0) <= {LONGEST}"


def quantile(q: float, name: str) -> str:
    """Interpolated quantile from summed buckets; absent where nothing was counted."""
    return f"histogram_quantile({q}, {rate(name + '_bucket')}) and on ({KEYS}) ({rate(name + '_count')} > 0)"


def state_number(states: tuple[str, ...]) -> str:
    """Position of the server's state in ``states``, as one series per server."""
    one = [of("server_state", f'state="{state}"') for state in states]
    return " or ".join(f"max without (state) ({state} == 1) * {number}" for number, state in enumerate(one))
