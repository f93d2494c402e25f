"""The state of one server, and the evidence behind it.

Order of evidence (the first that decides wins):

1. what the connection says: refused or reset -> ``gone`` (``starting`` while a new process of the server is alive),
   a pending answer -> ``late`` (``stuck`` when it stays unanswered, ``unknown_progress`` when ``/health`` answers 200
   all the while), unusable body -> ``failing``;
2. ``/health``: 503 is vLLM's word for a dead engine -> ``engine_dead`` (its ``/metrics`` stays 200 with frozen values).
   Any other answer, or none, is named in the reason and decides nothing: it may be a proxy, a missing path, a broken
   middleware.  So is a 503 beside an HTTP 5xx of ``/metrics``, unless the engine process is known to be gone;
3. the engine process in ``/proc``: missing or zombie -> ``engine_dead``;
4. the sleep state -> ``sleeping``;
5. demand against progress: the engine's process state and CPU growth, SM activity, connections to the port, then
   counters.

Demand is running or waiting requests, or open connections.  Progress is a token or a finished request.

* ``stuck``: demand, and for 30 s neither a counter nor the engine moved; or demand and no progress for 120 s whatever
  the engine does.  A chunked prefill of 60 s moves no counter but keeps the engine busy: not stuck.
* ``stale_gauges``: vLLM's gauges show requests, but nobody is connected and the engine rests (it keeps the last values
  when all clients leave at once).  Nobody waits for anything.
* ``unknown_progress``: the evidence does not decide.  Gauges show requests, nothing moves, and ``/proc`` is not
  readable; or the server has been quiet for two minutes and a hung engine would look exactly the same (an engine that
  hung while idle shows running 0, waiting 0 even with a request inside); or connections stay open without a request in
  the engine, which idle keep-alive clients and other scrapers do as well.  Only a stopped engine process decides there.

Open connections alone never make a server stuck unless its engine process is stopped: another monitor that polls
``/metrics`` once a second keeps a connection open all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

STILL_SECONDS: Final = 30.0
"""Demand, and neither counters nor engine moved for this long: stuck."""

NO_PROGRESS_SECONDS: Final = 120.0
"""Demand and no token and no finished request for this long: stuck, whatever the engine does."""

QUIET_SECONDS: Final = 120.0
"""Idle for this long without process evidence: a hang cannot be told from rest."""

LATE_SECONDS: Final = 2.0
"""An answer that takes longer than this, and longer than two intervals, is late."""

CPU_ACTIVE: Final = 0.02
"""Share of one core that an engine at rest does not reach (it sleeps on its queue)."""

SM_ACTIVE: Final = 0.01
"""Share of SM time above which a process is computing."""

EVIDENCE_SECONDS: Final = 15.0
"""How long a look at the processes counts."""

DEAD: Final = 503
"""What vLLM's ``/health`` answers once its engine is dead (EngineDeadError); a living one answers 200."""

ALIVE: Final = 200
"""What ``/health`` answers while the API server works and knows of no error of its engine.  No proof of progress: an
engine that hangs has no error."""

_FROZEN: Final = "; its gauges are frozen and not shown"

_GONE: Final = frozenset({"refused", "reset", "unreachable", "dns"})
_WAITED: Final = frozenset({"timeout"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the host shows about a server's processes at one moment.  None = not known, never "none".

    Make a new object for every look at ``/proc``: the same object again means that there was no newer look, and after
    :data:`EVIDENCE_SECONDS` it no longer counts.

    ``api_alive``: a process that serves the port (or will) exists.  ``start_ticks`` identifies the server's processes:
    (pid, start) pairs; sets without a common pair are different lives of the server.
    ``api_state`` and ``engine_states``: state letters as in ``/proc/PID/stat``; an empty tuple means the engine
    processes were looked for and are not there.  ``engine_cpu_seconds``: CPU time of engine and workers together.
    ``connections``: established connections to the port, without our own.
    """

    api_alive: bool | None = None
    start_ticks: tuple[tuple[int, int], ...] | None = None
    api_state: str | None = None
    engine_states: tuple[str, ...] | None = None
    engine_cpu_seconds: float | None = None
    connections: int | None = None
    sm_utilization_ratio: float | None = None


NOTHING: Final = Evidence()


@dataclass(frozen=True, slots=True)
class Observation:
    """One tick of one server.

    ``outcome``: ``ok``, ``pending``, or why the scrape failed (``refused``, ``timeout``, ``http_500``, …).
    ``health``: HTTP status of ``/health``, or why it gave no answer; None = not asked.
    ``moved``: any engine counter or histogram moved since the last usable sample; ``progressed``: tokens or finished
    requests did.
    """

    at: float
    wall: float | None
    outcome: str
    in_flight: float | None = None
    health: int | str | None = None
    running: float | None = None
    waiting: float | None = None
    asleep: bool | None = None
    moved: bool = False
    progressed: bool = False
    engine_metrics: bool = True
    evidence: Evidence = NOTHING


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """State and history of one server.  Wall times are Unix time; None = not (yet) seen."""

    state: str
    reason: str
    since: float | None = None
    restarts: int = 0
    last_restart: float | None = None
    config_changes: int = 0
    last_config_change: float | None = None
    last_change: str = ""
    start_timestamp: float | None = None
    sleep_state: str | None = None
    frozen: bool = False
    """whether the newest sample came from a server with a dead engine: its gauges are no longer true"""
    last_preemption: float | None = None
    last_events: Mapping[str, float] = field(default_factory=dict)
    """preemption, error, rejection, http_5xx, restart, config_change -> Unix time of the sample that showed it"""


class StateMachine:
    """Works out the state from a sequence of observations.  Times are monotonic seconds."""

    __slots__ = (
        "_active_at",
        "_answered_at",
        "_connected_since",
        "_cpu",
        "_demand_since",
        "_evidence",
        "_evidence_at",
        "_first",
        "_interval",
        "_looked_at",
        "_moved_at",
        "_ok_at",
        "_ok_ticks",
        "_progress_at",
        "_said",
        "reason",
        "since",
        "state",
    )

    def __init__(self, interval: float = 1.0) -> None:
        self._interval = interval
        self.state = "gone"
        self.reason = self._said = "not looked at yet"
        self.since: float | None = None
        self._first: float | None = None
        self._ok_at: float | None = None
        self._ok_ticks: tuple[tuple[int, int], ...] | None = None
        self._moved_at = 0.0
        self._progress_at = 0.0
        self._active_at = 0.0
        self._answered_at = 0.0
        self._evidence: Evidence = NOTHING
        self._looked_at = 0.0
        self._evidence_at: float | None = None
        self._cpu: tuple[float, float] | None = None
        self._demand_since: float | None = None
        self._connected_since: float | None = None

    def step(self, seen: Observation) -> str:
        """Take an observation and return the new state."""
        if self._first is None:
            self._first = seen.at
            self._moved_at = self._progress_at = self._active_at = self._answered_at = seen.at
        if seen.evidence is not self._evidence:
            self._evidence = seen.evidence
            self._looked_at = seen.at
            self._look(seen.evidence, seen.at)
        elif seen.at - self._looked_at > EVIDENCE_SECONDS and seen.evidence is not NOTHING:
            seen = replace(seen, evidence=NOTHING)
        self._follow(seen)
        state, said = self._decide(seen)
        reason = said + _health_words(seen, state)
        if state != self.state:
            self.since = seen.wall
        self.state = state
        self._said, self.reason = said, reason
        return state

    def restarted(self, at: float) -> None:
        """Another process serves now: nothing that the old one owed counts against it."""
        self._moved_at = self._progress_at = self._active_at = at
        self._demand_since = self._connected_since = self._cpu = None

    def proved(self, at: float) -> None:
        """A canary request got its token at ``at``: the engine works."""
        self._moved_at = max(self._moved_at, at)
        self._progress_at = max(self._progress_at, at)

    # ------------------------------------------------------------------ timers

    def _look(self, evidence: Evidence, at: float) -> None:
        """Take a new look at the engine's activity."""
        if evidence.engine_cpu_seconds is None and evidence.sm_utilization_ratio is None:
            return
        worked = self._worked(evidence, at)
        # Without an earlier reading there is no growth: the engine gets the benefit of the doubt from now on.
        if worked or self._evidence_at is None or at - self._evidence_at > EVIDENCE_SECONDS:
            self._active_at = at
        self._evidence_at = at

    def _follow(self, seen: Observation) -> None:
        evidence = seen.evidence
        if not evidence.connections:
            self._connected_since = None
        elif self._connected_since is None:
            self._connected_since = seen.at
        if seen.outcome != "pending" and seen.outcome not in _WAITED:
            self._answered_at = seen.at
        if seen.outcome != "ok":
            return
        if self._ok_at is None:
            # Before its first answer it was starting, not quiet.
            self._moved_at = self._progress_at = seen.at
        if seen.moved:
            self._moved_at = seen.at
        if seen.progressed:
            self._progress_at = seen.at
        if _demand(seen) > 0.0:
            if self._demand_since is None:
                self._demand_since = seen.at
        else:
            self._demand_since = None
        self._ok_at = seen.at
        if evidence.start_ticks is not None:
            self._ok_ticks = evidence.start_ticks

    def _worked(self, evidence: Evidence, at: float) -> bool:
        """Whether the engine computed since the last look."""
        worked = evidence.sm_utilization_ratio is not None and evidence.sm_utilization_ratio > SM_ACTIVE
        cpu = evidence.engine_cpu_seconds
        if cpu is not None:
            if self._cpu is not None and at > self._cpu[0]:
                grown = (cpu - self._cpu[1]) / (at - self._cpu[0])
                # A smaller total is another set of processes: somebody works there.
                worked = worked or grown > CPU_ACTIVE or grown < 0.0
            self._cpu = (at, cpu)
        return worked

    # ------------------------------------------------------------------ decisions

    def _decide(self, seen: Observation) -> tuple[str, str]:
        if seen.outcome in _GONE:
            return self._unreachable(seen)
        if seen.outcome == "pending" or seen.outcome in _WAITED:
            return self._unanswered(seen)
        if seen.health == DEAD and (seen.outcome != "http_5xx" or _no_engine(seen.evidence)):
            return "engine_dead", f"/health answers {DEAD}" + (_FROZEN if seen.outcome == "ok" else "")
        if seen.outcome != "ok":
            return "failing", f"the answer to /metrics cannot be used: {seen.outcome}"
        evidence = seen.evidence
        if evidence.engine_states is not None:
            if not evidence.engine_states:
                return "engine_dead", "the engine process is gone while the API server still answers" + _FROZEN
            if all(state in "ZX" for state in evidence.engine_states):
                return "engine_dead", "the engine process is a zombie while the API server still answers" + _FROZEN
        if seen.asleep:
            return "sleeping", "the engine sleeps"
        if not seen.engine_metrics:
            return "unknown_progress", "/metrics holds no engine metrics (--disable-log-stats?)"
        if self._demand_since is not None:
            return self._with_demand(seen, self._demand_since)
        return self._without_demand(seen)

    def _unreachable(self, seen: Observation) -> tuple[str, str]:
        evidence = seen.evidence
        if evidence.api_alive and not same_life(evidence.start_ticks, self._ok_ticks):
            return "starting", f"connection {seen.outcome}, the process is alive and has not answered yet"
        if evidence.api_alive is False and evidence.engine_states:
            return "gone", f"connection {seen.outcome}; the API server died and its engine process is left over"
        if self._ok_at is None:
            return "gone", f"connection {seen.outcome}; it has not answered since this exporter started"
        return "gone", f"connection {seen.outcome}"

    def _unanswered(self, seen: Observation) -> tuple[str, str]:
        waiting = max(seen.in_flight or 0.0, seen.at - self._answered_at)
        evidence = seen.evidence
        words = f"/metrics has not answered for {waiting:.0f} s"
        if seen.health == DEAD:
            return "engine_dead", f"/health answers {DEAD}"
        if _no_engine(evidence):
            return "engine_dead", f"{words} and the engine process is gone"
        if evidence.api_state in ("T", "t") and waiting >= STILL_SECONDS:
            return "stuck", f"{words} and its process is stopped"
        if waiting >= NO_PROGRESS_SECONDS:
            if seen.health == ALIVE:
                return (
                    "unknown_progress",
                    f"{words}, but /health answers {ALIVE}: whether the engine works is not known",
                )
            return "stuck", words
        if seen.outcome == "pending" and waiting <= max(LATE_SECONDS, 2.0 * self._interval):
            if self._ok_at is None:
                return "late", "waiting for the first answer"
            return self.state, self._said
        return "late", words

    def _with_demand(self, seen: Observation, demand_since: float) -> tuple[str, str]:
        evidence = seen.evidence
        demand = round(_demand(seen))
        words = f"{demand} request" + "s" * (demand != 1)
        # A request that has just come in had no time to progress.
        progress = seen.at - max(demand_since, self._progress_at)
        still = seen.at - max(demand_since, self._moved_at)
        resting = self._resting(seen.at, demand_since)
        rested = resting is not None and resting >= STILL_SECONDS
        connected = evidence.connections
        if still >= STILL_SECONDS and _stopped(evidence) and connected != 0:
            return "stuck", f"{words}, nothing moved for {still:.0f} s and the engine process is stopped"
        if progress >= NO_PROGRESS_SECONDS:
            if connected == 0 and (resting is None or rested):
                return "stale_gauges", f"the gauges show {words}, but nobody is connected and nothing moves"
            if connected or (resting is not None and not rested):
                return "stuck", f"{words} and no token and no finished request for {progress:.0f} s"
        if still < STILL_SECONDS:
            return "busy", words
        if resting is None:
            return "unknown_progress", (
                f"the gauges show {words}, no counter moved for {still:.0f} s: a long prefill, a hang and left-over "
                "gauges look the same without process evidence"
            )
        if not rested:
            return "busy", f"{words}; no counter moved for {still:.0f} s, but the engine computes"
        if connected == 0:
            return "stale_gauges", f"the gauges show {words}, but nobody is connected and the engine rests"
        if connected:
            return "stuck", f"{words}, neither a counter nor the engine moved for {min(still, resting):.0f} s"
        return "unknown_progress", (
            f"the gauges show {words}, nothing moved for {still:.0f} s: hung, or left over after the clients went "
            "(connections to the port are not known)"
        )

    def _without_demand(self, seen: Observation) -> tuple[str, str]:
        evidence = seen.evidence
        if seen.moved:
            return "busy", "requests came and went since the last sample"
        if _stopped(evidence):
            connected = seen.at - self._connected_since if self._connected_since is not None else 0.0
            if connected >= STILL_SECONDS:
                return "stuck", f"connections open for {connected:.0f} s and the engine process is stopped"
            return "unknown_progress", "the engine process is stopped: the next request will hang"
        quiet = seen.at - self._moved_at
        resting = self._resting(seen.at, self._moved_at)
        if resting is None:
            if quiet >= QUIET_SECONDS:
                return "unknown_progress", (
                    f"quiet for {quiet:.0f} s: without process evidence a hung engine looks the same as an idle one"
                )
            return "ready", "no requests"
        if self._connected_since is not None:
            still = seen.at - max(self._connected_since, self._moved_at)
            if min(still, resting) >= STILL_SECONDS:
                return "unknown_progress", (
                    f"connections open for {still:.0f} s without a request in the engine: idle clients, another "
                    "scraper, or a hung engine"
                )
        return "ready", "no requests"

    def _resting(self, at: float, since: float) -> float | None:
        """Seconds for which the engine has not computed, None without fresh evidence about it."""
        if self._evidence_at is None or at - self._evidence_at > EVIDENCE_SECONDS:
            return None
        return at - max(self._active_at, since)


def same_life(now: tuple[tuple[int, int], ...] | None, before: tuple[tuple[int, int], ...] | None) -> bool:
    """Whether two looks show the same life of a server: some process is in both (children come and go).

    False when nothing was seen before; True when nothing is known now.
    """
    if before is None:
        return False
    return now is None or not set(now).isdisjoint(before)


def _no_engine(evidence: Evidence) -> bool:
    """Whether the engine processes were looked for and none lives."""
    return evidence.engine_states is not None and all(state in "ZX" for state in evidence.engine_states)


def _health_words(seen: Observation, state: str) -> str:
    """What ``/health`` said, where it is not what one expects and the reason does not say it yet."""
    if seen.health in (None, ALIVE) or state == "engine_dead" or seen.outcome in _GONE:
        return ""
    if isinstance(seen.health, int):
        return f"; /health answers {seen.health}"
    return f"; /health gives no answer ({seen.health})"


def _demand(seen: Observation) -> float:
    return (seen.running or 0.0) + (seen.waiting or 0.0)


def _stopped(evidence: Evidence) -> bool:
    """Whether the engine process is stopped (SIGSTOP, debugger)."""
    return bool(evidence.engine_states) and any(state in "Tt" for state in evidence.engine_states or ())
