"""A run: what was tested, how, and in which state everything was.  Frozen data and its JSON form (pure).

The JSON is meant to be read years later: names are spelled out, unknown keys are ignored, and ``schema`` grows only
when an old reader would misunderstand the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllmeter.runs.results import ClientResult, RequestRecord, Summary

SCHEMA: Final = 1

LEVELS: Final = ("L1", "L2", "L3")
"""L1: the server alone; L2: a business flow; L3: functional (does it still answer correctly)."""

RUNNING, FINISHED, INTERRUPTED = "running", "finished", "interrupted"


class RunFormatError(ValueError):
    """A stored run does not have the expected form; the message names the field."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configuration of one server at one moment.  ``settings`` by vLLM flag name with underscores."""

    name: str
    model: str | None = None
    version: str | None = None
    start_timestamp: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    """GPU uuid -> bytes the server may take"""
    restarts: int = 0
    config_changes: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One load test.  Times are Unix seconds; ``server`` "" means that all servers are meant.

    ``passed`` is the outcome that the command reported by its exit code; for L3 it says whether the server still does
    what it should.  ``invalid`` holds reasons why the numbers may not be compared.  ``session`` and ``position`` are
    set by ``--repeat``: runs of one session took turns in the order of their positions.
    """

    id: str
    name: str
    scenario: str = "default"
    server: str = ""
    level: str | None = None
    state: str = RUNNING
    started: float = 0.0
    ended: float | None = None
    exit_code: int | None = None
    command: tuple[str, ...] = ()
    warmup_seconds: float | None = None
    warmup_requests: int | None = None
    repetition: int = 1
    session: str = ""
    position: int = 0
    interval: float = 1.0
    before: Mapping[str, ServerConfig] = field(default_factory=dict)
    after: Mapping[str, ServerConfig] = field(default_factory=dict)
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    host: str = ""
    pid: int | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    """vllmeter version, driver, CUDA: what differs between machines"""
    sampled_by: str = ""
    """"exporter URL" or "vllmeter run" """

    @property
    def passed(self) -> bool | None:
        """Whether the command reported success; None while it runs or when it was cut off."""
        return None if self.exit_code is None else self.exit_code == 0


def to_json(value: Any) -> Any:
    """Frozen data as JSON-ready data; None fields and empty collections are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for each in dataclasses.fields(value):
            item = to_json(getattr(value, each.name))
            if item is not None and item not in ({}, []):
                found[each.name] = item
        return found
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


class _Fields:
    """Typed access to one JSON object."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise RunFormatError(f"{where} should be an object")
        self.data, self.where = data, where

    def get(self, key: str, kinds: type | tuple[type, ...], default: Any) -> Any:
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise RunFormatError(f"{self.where}.{key} has the wrong type: {str(value)[:40]!r}")
        return value

    def text(self, key: str, default: str | None = None) -> Any:
        return self.get(key, str, default)

    def real(self, key: str) -> float | None:
        value = self.get(key, (int, float), None)
        return None if value is None else float(value)

    def whole(self, key: str, default: int | None = None) -> Any:
        return self.get(key, int, default)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(str(each) for each in self.get(key, list, []))

    def mapping(self, key: str) -> Mapping[str, Any]:
        found = self.get(key, dict, {})
        assert isinstance(found, Mapping)
        return found


def run_from_json(data: Any) -> Run:
    """The stored form of a run; raises :class:`RunFormatError` that names the field."""
    fields = _Fields(data, "run")
    schema = fields.whole("schema", 0)
    if schema > SCHEMA:
        raise RunFormatError(f"run.schema is {schema}, this vllmeter reads up to {SCHEMA}: use a newer vllmeter")
    for required in ("id", "name"):
        if not fields.text(required):
            raise RunFormatError(f"run.{required} is missing")
    return Run(
        id=fields.text("id"),
        name=fields.text("name"),
        scenario=fields.text("scenario", "default"),
        server=fields.text("server", ""),
        level=fields.text("level"),
        state=fields.text("state", RUNNING),
        started=fields.real("started") or 0.0,
        ended=fields.real("ended"),
        exit_code=fields.whole("exit_code"),
        command=fields.texts("command"),
        warmup_seconds=fields.real("warmup_seconds"),
        warmup_requests=fields.whole("warmup_requests"),
        repetition=fields.whole("repetition", 1),
        session=fields.text("session", ""),
        position=fields.whole("position", 0),
        interval=fields.real("interval") or 1.0,
        before={name: _config(each, f"run.before.{name}") for name, each in fields.mapping("before").items()},
        after={name: _config(each, f"run.after.{name}") for name, each in fields.mapping("after").items()},
        invalid=fields.texts("invalid"),
        notes=fields.texts("notes"),
        host=fields.text("host", ""),
        pid=fields.whole("pid"),
        software={key: str(value) for key, value in fields.mapping("software").items()},
        sampled_by=fields.text("sampled_by", ""),
    )


def _config(data: Any, where: str) -> ServerConfig:
    fields = _Fields(data, where)
    return ServerConfig(
        name=fields.text("name", where.rpartition(".")[2]),
        model=fields.text("model"),
        version=fields.text("version"),
        start_timestamp=fields.real("start_timestamp"),
        settings={key: str(value) for key, value in fields.mapping("settings").items()},
        budgets={key: float(value) for key, value in fields.mapping("budgets").items()},
        restarts=fields.whole("restarts", 0),
        config_changes=fields.whole("config_changes", 0),
    )


_COLUMNS: Final = tuple(each.name for each in dataclasses.fields(RequestRecord))


def result_to_json(result: ClientResult) -> dict[str, Any]:
    """A client result; requests are written as columns, which is a third of the size."""
    found: dict[str, Any] = to_json(dataclasses.replace(result, requests=(), summaries={}))
    found["summaries"] = {
        key: {
            **to_json(dataclasses.replace(each, percentiles={})),
            "percentiles": [list(p) for p in each.percentiles.items()],
        }
        for key, each in result.summaries.items()
    }
    if result.requests:
        found["requests"] = {column: [getattr(each, column) for each in result.requests] for column in _COLUMNS}
    return found


def result_from_json(data: Any, where: str = "client") -> ClientResult:
    """The stored form of a client result; raises :class:`RunFormatError`."""
    fields = _Fields(data, where)
    columns = {key: value for key, value in fields.mapping("requests").items() if key in _COLUMNS}
    lengths = {len(each) for each in columns.values()}
    if len(lengths) > 1:
        raise RunFormatError(f"{where}.requests has columns of different lengths")
    count = lengths.pop() if lengths else 0
    requests = tuple(RequestRecord(**{key: value[row] for key, value in columns.items()}) for row in range(count))
    summaries = {}
    for key, each in fields.mapping("summaries").items():
        part = _Fields(each, f"{where}.summaries.{key}")
        summaries[key] = Summary(
            mean=part.real("mean"),
            deviation=part.real("deviation"),
            minimum=part.real("minimum"),
            maximum=part.real("maximum"),
            count=part.whole("count"),
            percentiles={float(q): float(value) for q, value in part.get("percentiles", list, [])},
        )
    return ClientResult(
        tool=fields.text("tool", "unknown"),
        tool_version=fields.text("tool_version"),
        label=fields.text("label", ""),
        model=fields.text("model"),
        duration=fields.real("duration"),
        completed=fields.whole("completed"),
        failed=fields.whole("failed"),
        prompt_tokens=fields.whole("prompt_tokens"),
        output_tokens=fields.whole("output_tokens"),
        request_rate=fields.real("request_rate"),
        output_token_rate=fields.real("output_token_rate"),
        summaries=summaries,
        requests=requests,
        load={key: str(value) for key, value in fields.mapping("load").items()},
        notes=fields.texts("notes"),
    )
