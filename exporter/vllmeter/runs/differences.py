"""The single-variable check: what differs between two sets of runs besides their numbers.  Pure.

An improvement can be put down to a setting only when nothing else changed: one flag, same load, same software, same
neighbours on the card, same warm-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllmeter.runs.measures import Side
from vllmeter.runs.model import Run, ServerConfig
from vllmeter.runs.results import ClientResult

CONFIGURATION, LOAD, SOFTWARE, NEIGHBOURS, WARMUP = "configuration", "load", "software", "co-tenant load", "warm-up"

DERIVED: Final = frozenset(
    {"num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens", "compilation_config", "cudagraph_capture_sizes"}
)
"""What vLLM works out from other settings: listed, but not a change of its own."""

_OUTPUT_OPTIONS: Final = re.compile(
    r"^--?(result-(filename|dir)|save-result|save-detailed|summary-export|out|o|csv|csv-full-history|html|artifact-dir|"
    r"output(-path|-dir)?|label|metadata|disable-tqdm|quiet|q|ui|request-id-prefix)$"
)
"""Options that say where results go, not what is asked of the server."""

BUSY_DIFFERENCE: Final = 0.10
"""Share of busy seconds by which neighbours must differ to count."""
RATE_FACTOR: Final = 1.5
YOUNG_SECONDS: Final = 120.0
OLD_SECONDS: Final = 600.0
"""A server younger than the first at the start of a run may still be warming up, one older than the second is not."""
HIT_DIFFERENCE: Final = 0.10


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs.  ``counts`` False: a consequence or harmless, with the reason in ``note``."""

    category: str
    name: str
    a: str
    b: str
    counts: bool = True
    note: str = ""

    def text(self) -> str:
        """In words."""
        return f"{self.name}: {self.a} -> {self.b}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whether a difference in numbers can be put down to one change."""

    differences: tuple[Difference, ...]
    unknown: tuple[str, ...] = ()
    """what could not be compared because a side does not know it"""

    @property
    def counting(self) -> tuple[Difference, ...]:
        """Differences that could each explain the numbers."""
        return tuple(each for each in self.differences if each.counts)

    @property
    def word(self) -> str:
        """``single change``, ``confounded``, ``nothing differs``, or ``no change known`` where not all is known."""
        count = len(self.counting)
        if count == 0:
            return "no change known" if self.unknown else "nothing differs"
        return "single change" if count == 1 else "confounded"

    def text(self) -> str:
        """In words."""
        counting = self.counting
        if not counting and self.unknown:
            return f"no change is known, but not everything could be compared: {', '.join(self.unknown)}"
        if not counting:
            return "nothing that could explain a difference changed (A/A comparison)"
        if len(counting) == 1:
            return f"single change: {counting[0].text()}"
        return "confounded: " + str(len(counting)) + " things changed: " + "; ".join(each.text() for each in counting)


@dataclass(frozen=True, slots=True)
class Subject:
    """One run with its two sides, as the check needs it."""

    run: Run
    server: Side
    client: Side
    results: tuple[ClientResult, ...] = ()


def check(a: Sequence[Subject], b: Sequence[Subject], server: str) -> Attribution:
    """What differs between the runs ``a`` and ``b`` on ``server`` and around it."""
    found: list[Difference] = []
    unknown: list[str] = []
    _configuration(found, unknown, a, b, server)
    _software(found, unknown, a, b, server)
    _load(found, unknown, a, b)
    _neighbours(found, a, b, server)
    _warmup(found, a, b, server, {each.name for each in found})
    return Attribution(tuple(found), tuple(unknown))


def _values(subjects: Sequence[Subject], get: Callable[[Subject], str | None]) -> str | None:
    """The value that all runs share; several are joined; None when no run knows it."""
    known = sorted({value for each in subjects if (value := get(each)) is not None})
    return " / ".join(known) if known else None


def _setting(server: str, key: str) -> Callable[[Subject], str | None]:
    return lambda each: _config(each.run, server).settings.get(key, "(not set)")


def _model_of(server: str) -> Callable[[Subject], str | None]:
    return lambda each: _config(each.run, server).model


def _software_fact(key: str) -> Callable[[Subject], str | None]:
    return lambda each: each.run.software.get(key)


def _load_fact(key: str) -> Callable[[Subject], str | None]:
    return lambda each: _joined(result.load.get(key) for result in each.results)


def _configuration(
    found: list[Difference], unknown: list[str], a: Sequence[Subject], b: Sequence[Subject], server: str
) -> None:
    names = sorted({name for each in (*a, *b) for name in each.run.before})
    if not names:
        unknown.append("configuration of the servers")
        return
    for name in [server, *(each for each in names if each != server)]:
        mine = name == server
        keys = sorted({key for each in (*a, *b) for key in _config(each.run, name).settings})
        if mine and not keys:
            unknown.append(f"settings of {name}")
        for key in keys:
            left = _values(a, _setting(name, key))
            right = _values(b, _setting(name, key))
            if left != right:
                derived = key in DERIVED
                found.append(
                    Difference(
                        CONFIGURATION if mine else NEIGHBOURS,
                        key if mine else f"{name}: {key}",
                        left or "?",
                        right or "?",
                        counts=not derived,
                        note="follows from other settings" if derived else "",
                    )
                )
        left = _values(a, _model_of(name))
        right = _values(b, _model_of(name))
        if left and right and left != right:
            found.append(Difference(CONFIGURATION if mine else NEIGHBOURS, f"model of {name}", left, right))


def _config(run: Run, name: str) -> ServerConfig:
    return run.before.get(name) or ServerConfig(name)


def _software(
    found: list[Difference], unknown: list[str], a: Sequence[Subject], b: Sequence[Subject], server: str
) -> None:
    facts: list[tuple[str, Callable[[Subject], str | None], bool]] = [
        ("vLLM version", lambda each: _config(each.run, server).version, True),
        ("host", lambda each: each.run.host or None, True),
    ]
    keys = sorted({key for each in (*a, *b) for key in each.run.software})
    facts += [(key, _software_fact(key), key != "vllmeter") for key in keys]
    facts.append(("load tool", lambda each: _tool(each.results), True))
    for name, get, counts in facts:
        left, right = _values(a, get), _values(b, get)
        if left is None or right is None:
            if name == "vLLM version":
                unknown.append("vLLM version")
            continue
        if left != right:
            found.append(Difference(SOFTWARE, name, left, right, counts, "" if counts else "only records"))


def _tool(results: Sequence[ClientResult]) -> str | None:
    names = sorted({" ".join(part for part in (each.tool, each.tool_version) if part) for each in results})
    return ", ".join(names) or None


def _load(found: list[Difference], unknown: list[str], a: Sequence[Subject], b: Sequence[Subject]) -> None:
    keys = sorted({key for each in (*a, *b) for result in each.results for key in result.load})
    before = len(found)
    for key in keys:
        left = _values(a, _load_fact(key))
        right = _values(b, _load_fact(key))
        if left != right and not _close(left, right):
            found.append(Difference(LOAD, key, left or "?", right or "?"))
    if len(found) > before:
        return  # the tool's own description is better than its command line
    left = _values(a, lambda each: load_command(each.run.command) or None)
    right = _values(b, lambda each: load_command(each.run.command) or None)
    if left is None or right is None:
        if not keys:
            unknown.append("load (no command and no client result)")
    elif left != right:
        found.append(Difference(LOAD, "command", left, right))


def _joined(values: Iterable[str | None]) -> str | None:
    known = [value for value in values if value is not None]
    return ", ".join(known) if known else None


def _close(left: str | None, right: str | None) -> bool:
    """Numbers within 2 %: random prompt lengths vary a little from seed to seed."""
    try:
        one, two = float(left or ""), float(right or "")
    except ValueError:
        return False
    return abs(one - two) <= 0.02 * max(abs(one), abs(two))


def load_command(command: Sequence[str]) -> str:
    """A command line without what only says where results go."""
    kept = []
    skip = False
    for index, word in enumerate(command):
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if _OUTPUT_OPTIONS.match(name):
            following = command[index + 1] if index + 1 < len(command) else "-"
            skip = not equals and not following.startswith("-")
            continue
        kept.append(word)
    return " ".join(kept)


def _neighbours(found: list[Difference], a: Sequence[Subject], b: Sequence[Subject], server: str) -> None:
    for name in sorted({name for each in (*a, *b) for name in each.server.neighbours} - {server}):
        busy_a, rate_a = _activity(a, name)
        busy_b, rate_b = _activity(b, name)
        low, high = sorted((rate_a, rate_b))
        differs = abs(busy_a - busy_b) > BUSY_DIFFERENCE or (
            high > RATE_FACTOR * low and max(busy_a, busy_b) > BUSY_DIFFERENCE
        )
        if differs:
            found.append(
                Difference(
                    NEIGHBOURS,
                    f"load on {name}",
                    f"busy {busy_a:.0%}, {rate_a:.0f} tokens/s",
                    f"busy {busy_b:.0%}, {rate_b:.0f} tokens/s",
                )
            )


def _activity(subjects: Sequence[Subject], name: str) -> tuple[float, float]:
    found = [each.server.neighbours[name] for each in subjects if name in each.server.neighbours]
    if not found:
        return 0.0, 0.0
    return sum(each.busy_ratio for each in found) / len(found), sum(each.tokens_per_second for each in found) / len(
        found
    )


def _warmup(
    found: list[Difference], a: Sequence[Subject], b: Sequence[Subject], server: str, changed: set[str]
) -> None:
    left, right = _values(a, _warmup_setting), _values(b, _warmup_setting)
    if left != right:
        found.append(Difference(WARMUP, "--warmup", left or "none", right or "none"))
    for title, pick in (("cold start seen by the client", "client"), ("cold start seen at the server", "server")):
        cold_a, cold_b = _cold(a, pick), _cold(b, pick)
        if bool(cold_a) != bool(cold_b):
            found.append(
                Difference(
                    WARMUP, title, cold_a or "no", cold_b or "no", counts=False, note="these requests are left out"
                )
            )
    age_a, age_b = _age(a, server), _age(b, server)
    if (
        age_a is not None
        and age_b is not None
        and min(age_a, age_b) < YOUNG_SECONDS
        and max(age_a, age_b) > OLD_SECONDS
    ):
        ages = (f"{age_a:.0f} s", f"{age_b:.0f} s")
        found.append(
            Difference(WARMUP, "age of the server at the start", *ages, counts=False, note="slow starts are left out")
        )
    hit_a, hit_b = _hits(a), _hits(b)
    if hit_a is not None and hit_b is not None and abs(hit_a - hit_b) > HIT_DIFFERENCE:
        caching = [name for name in changed if "prefix_caching" in name or "kv_" in name or "offload" in name]
        found.append(
            Difference(
                WARMUP,
                "prefix cache hit ratio",
                f"{hit_a:.2f}",
                f"{hit_b:.2f}",
                counts=not caching,
                note=f"follows from {caching[0]}"
                if caching
                else "prompts of an earlier run were still cached, or other prompts",
            )
        )


def _warmup_setting(subject: Subject) -> str | None:
    parts = []
    if subject.run.warmup_seconds is not None:
        parts.append(f"{subject.run.warmup_seconds:g} s")
    if subject.run.warmup_requests is not None:
        parts.append(f"{subject.run.warmup_requests} requests")
    return ", ".join(parts) or "none"


def _cold(subjects: Sequence[Subject], side: str) -> str:
    found = [each.client.cold if side == "client" else each.server.cold for each in subjects]
    counts = [each.requests for each in found if each.requests]
    return f"{sum(counts)} requests in {len(counts)} run(s)" if counts else ""


def _age(subjects: Sequence[Subject], server: str) -> float | None:
    """Youngest age of the server at the start of a run, seconds."""
    ages = []
    for each in subjects:
        start = _config(each.run, server).start_timestamp
        if start is None:
            return None
        ages.append(each.run.started - start)
    return min(ages, default=None)


def _hits(subjects: Sequence[Subject]) -> float | None:
    values = [
        measure.value
        for each in subjects
        if (measure := each.server.measures.get("prefix_hit")) is not None and measure.value is not None
    ]
    return sum(values) / len(values) if values else None


def settings_text(settings: Mapping[str, str]) -> str:
    """Settings in one line, for lists."""
    return ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
