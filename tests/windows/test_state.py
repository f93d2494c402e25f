"""The state of a server follows the evidence, and nothing is called stuck that only looks so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from vllmeter.snapshot import SERVER_STATES
from vllmeter.windows.state import Evidence, Observation, StateMachine, same_life

WALL = 1_800_000_000.0


class Story:
    """Feeds one observation a second to a machine."""

    def __init__(self) -> None:
        self.machine = StateMachine()
        self.now = 0.0
        self.cpu = 10.0
        self.seen: list[str] = []

    def tell(
        self,
        seconds: int,
        *,
        outcome: str = "ok",
        running: float = 0.0,
        waiting: float = 0.0,
        moved: bool = False,
        progressed: bool | None = None,
        connections: int | None = None,
        cpu: float | None = None,
        engine: str | None = None,
        health: int | str | None = 200,
        asleep: bool = False,
        evidence: Evidence | None = None,
        in_flight: float | None = None,
    ) -> str:
        """Let time pass; ``cpu`` = share of a core that the engine uses (None = /proc is not readable)."""
        for _ in range(seconds):
            self.now += 1.0
            if cpu is not None:
                self.cpu += cpu
            found = (
                replace(evidence)
                if evidence is not None
                else Evidence(
                    api_alive=None if cpu is None else True,
                    start_ticks=None if cpu is None else ((100, 1),),
                    engine_states=None if engine is None else (engine,),
                    engine_cpu_seconds=None if cpu is None else self.cpu,
                    connections=connections,
                )
            )
            self.machine.step(
                Observation(
                    at=self.now,
                    wall=WALL + self.now,
                    outcome=outcome,
                    in_flight=in_flight,
                    health=health,
                    running=running,
                    waiting=waiting,
                    asleep=asleep,
                    moved=moved,
                    progressed=moved if progressed is None else progressed,
                    evidence=found,
                )
            )
            self.seen.append(self.machine.state)
        return self.machine.state


@pytest.fixture
def story() -> Iterator[Story]:
    """A fresh server; every state that was shown is one that is exposed."""
    made = Story()
    yield made
    assert set(made.seen) <= set(SERVER_STATES)
    assert made.machine.reason


def test_idle_and_busy(story: Story) -> None:
    """No requests is ready, moving requests are busy, also when they come and go between two samples."""
    assert story.tell(10, cpu=0.0, engine="S", connections=0) == "ready"
    assert story.tell(5, running=3, moved=True, cpu=0.9, engine="R", connections=3) == "busy"
    assert story.tell(1, moved=True, cpu=0.9, engine="S", connections=1) == "busy"
    assert story.tell(1, cpu=0.0, engine="S", connections=0) == "ready"


def test_a_minute_of_prefill_is_not_stuck(story: Story) -> None:
    """A chunked prefill moves no counter for 60 s while the engine computes: busy all the time."""
    story.tell(5, cpu=0.0, engine="S", connections=0)
    story.tell(60, running=1, cpu=0.95, engine="R", connections=1)
    assert set(story.seen[5:]) == {"busy"}
    assert story.tell(1, running=1, moved=True, cpu=0.9, engine="R", connections=1) == "busy"


def test_a_minute_of_prefill_shown_by_sm_activity_only(story: Story) -> None:
    """SM time of the processes is enough to tell a long prefill from a hang."""
    for _ in range(60):
        state = story.tell(1, running=1, evidence=Evidence(sm_utilization_ratio=0.9, connections=1))
        assert state == "busy"


def test_hang_while_working_is_stuck_after_30_s(story: Story) -> None:
    """Requests in the engine, clients connected, no counter and no CPU: stuck after 30 s, not before."""
    story.tell(10, running=2, moved=True, cpu=0.9, engine="R", connections=2)
    assert story.tell(29, running=2, cpu=0.0, engine="S", connections=2) == "busy"
    assert story.tell(2, running=2, cpu=0.0, engine="S", connections=2) == "stuck"
    assert story.tell(1, running=2, moved=True, cpu=0.9, engine="R", connections=2) == "busy"


def test_spinning_without_progress_is_stuck_after_120_s(story: Story) -> None:
    """An engine that burns CPU (a hung collective) is stuck when nothing comes out for two minutes."""
    story.tell(10, running=2, moved=True, cpu=0.9, engine="R", connections=2)
    assert story.tell(115, running=2, cpu=1.0, engine="R", connections=2) == "busy"
    assert story.tell(10, running=2, cpu=1.0, engine="R", connections=2) == "stuck"


def test_stopped_while_idle_and_then_a_request(story: Story) -> None:
    """SIGSTOP while idle: said at once; with a request, which no gauge shows, stuck after 30 s."""
    story.tell(10, cpu=0.0, engine="S", connections=0)
    assert story.tell(5, cpu=0.0, engine="T", connections=0) == "unknown_progress"
    assert story.tell(29, cpu=0.0, engine="T", connections=1) == "unknown_progress"
    assert story.tell(3, cpu=0.0, engine="T", connections=1) == "stuck"
    assert "stopped" in story.machine.reason


def test_hang_while_idle_without_proc_is_unknown(story: Story) -> None:
    """From /metrics alone a hung engine looks idle: after two quiet minutes the state says that it cannot know."""
    assert story.tell(100) == "ready"
    assert story.tell(30) == "unknown_progress"
    assert story.tell(1, moved=True) == "busy"
    assert story.tell(1) == "ready"


def test_the_time_before_the_first_answer_is_not_quiet(story: Story) -> None:
    """A server whose port refuses for three minutes while it loads is ready with its first answer, as always."""
    story.tell(180, outcome="refused", health=None)
    assert story.tell(119) == "ready"
    assert set(story.seen[180:]) == {"ready"}
    assert story.tell(3) == "unknown_progress"


def test_rest_with_proc_stays_ready(story: Story) -> None:
    """With the engine process in view an idle server is ready for as long as it is idle."""
    story.tell(1000, cpu=0.0, engine="S", connections=0)
    assert set(story.seen) == {"ready"}


def test_another_scraper_never_makes_an_idle_server_stuck(story: Story) -> None:
    """A monitor that polls every second keeps a connection open: not known, but never stuck."""
    story.tell(600, cpu=0.0, engine="S", connections=1)
    assert "stuck" not in story.seen
    assert story.seen[-1] == "unknown_progress"


def test_gauges_left_over_after_all_clients_went(story: Story) -> None:
    """vLLM keeps the last gauges when all clients leave at once: stale, never stuck."""
    story.tell(10, running=8, waiting=3, moved=True, cpu=0.9, engine="R", connections=11)
    story.tell(400, running=8, waiting=3, cpu=0.0, engine="S", connections=0)
    assert story.seen[-1] == "stale_gauges"
    assert "stuck" not in story.seen


def test_gauges_left_over_without_proc_are_unknown_not_stuck(story: Story) -> None:
    """Without process evidence left-over gauges, a hang and a long prefill look the same: never called stuck."""
    story.tell(10, running=8, moved=True)
    story.tell(400, running=8)
    assert "stuck" not in story.seen
    assert story.seen[-1] == "unknown_progress"


def test_left_over_gauges_with_unknown_connections(story: Story) -> None:
    """The engine rests, but nobody can say whether clients are connected: unknown."""
    story.tell(10, running=8, moved=True, cpu=0.9, engine="R")
    assert story.tell(200, running=8, cpu=0.0, engine="S") == "unknown_progress"
    assert "stuck" not in story.seen


def test_engine_dead_shows_by_health_while_metrics_stay(story: Story) -> None:
    """EngineCore killed: /health is 503, /metrics is a frozen 200."""
    story.tell(5, running=2, moved=True)
    assert story.tell(1, running=2, health=503) == "engine_dead"
    assert story.machine.reason == "/health answers 503; its gauges are frozen and not shown"
    assert story.tell(1, outcome="pending", in_flight=0.1, health=503) == "engine_dead"
    assert story.tell(1, outcome="parse", health=503) == "engine_dead"


@pytest.mark.parametrize("health", [500, 404, 401, 502, 204, "timeout", "reset", "redirect"])
def test_another_answer_of_health_claims_no_dead_engine(story: Story, health: int | str) -> None:
    """A proxy, a missing path, a broken middleware: the state comes from the rest, the reason says what was seen."""
    seen = f"/health answers {health}" if isinstance(health, int) else f"/health gives no answer ({health})"
    assert story.tell(5, health=health) == "ready"
    assert story.machine.reason == f"no requests; {seen}"
    assert story.tell(5, running=2, moved=True, health=health) == "busy"
    # while the next answer is awaited the state stands, and the words do not pile up
    assert story.tell(2, outcome="pending", in_flight=0.1, health=health) == "busy"
    assert story.machine.reason == f"2 requests; {seen}"
    assert story.tell(1, outcome="http_5xx", health=health) == "failing"
    assert story.machine.reason == f"the answer to /metrics cannot be used: http_5xx; {seen}"
    assert story.tell(1, outcome="refused", health=None) == "gone"
    assert "engine_dead" not in story.seen
    assert story.tell(1) == "ready"
    assert "/health" not in story.machine.reason


def test_a_503_of_everything_is_a_proxy_unless_the_engine_is_known_to_be_gone(story: Story) -> None:
    """vLLM's own /metrics stays 200 when its engine died; a proxy without a backend answers 503 to all paths."""
    story.tell(5, cpu=0.0, engine="S", connections=0)
    assert story.tell(1, outcome="http_5xx", health=503) == "failing"
    assert story.machine.reason.endswith("http_5xx; /health answers 503")
    assert story.tell(1, outcome="http_5xx", health=503, cpu=0.0, engine="S") == "failing"
    gone = Evidence(api_alive=True, engine_states=())
    assert story.tell(1, outcome="http_5xx", health=503, evidence=gone) == "engine_dead"


def test_engine_dead_shows_by_its_process(story: Story) -> None:
    """The engine process is gone or a zombie although the API server answers."""
    story.tell(5, cpu=0.0, engine="S", connections=0)
    assert story.tell(1, cpu=0.0, engine="Z", connections=0) == "engine_dead"
    assert story.machine.reason.endswith("; its gauges are frozen and not shown")
    assert story.tell(1, evidence=Evidence(api_alive=True, engine_states=())) == "engine_dead"
    gone = Evidence(api_alive=True, engine_states=())
    assert story.tell(1, outcome="timeout", health="timeout", evidence=gone) == "engine_dead"
    assert story.machine.reason == "/metrics has not answered for 1 s and the engine process is gone"


def test_pending_answer_is_late_and_refusal_is_gone(story: Story) -> None:
    """A busy API server answers seconds late; a refused connection is gone at once."""
    story.tell(5, running=2, moved=True)
    assert story.tell(1, outcome="pending", in_flight=1.0) == "busy"
    assert story.tell(3, outcome="pending", in_flight=4.0) == "late"
    assert story.tell(1, running=2, moved=True) == "busy"
    assert story.tell(1, outcome="refused") == "gone"
    assert story.tell(1, outcome="timeout") == "late"
    assert story.tell(1, outcome="reset") == "gone"


def test_no_answer_for_two_minutes_is_stuck(story: Story) -> None:
    """An API server that accepts and never answers is stuck; half a minute is enough when its process is stopped."""
    story.tell(5)
    assert story.tell(100, outcome="timeout", health="timeout") == "late"
    assert story.tell(30, outcome="timeout", health="timeout") == "stuck"
    story.tell(5)
    stopped = Evidence(api_alive=True, api_state="T")
    assert story.tell(29, outcome="pending", in_flight=5.0, evidence=stopped) == "late"
    assert story.tell(3, outcome="pending", in_flight=5.0, evidence=stopped) == "stuck"


def test_hanging_metrics_beside_a_good_health_prove_nothing_about_the_engine(story: Story) -> None:
    """/health 200 says that the API server works, a hanging /metrics that nothing is known of its engine."""
    story.tell(5, running=2, moved=True)
    assert story.tell(115, outcome="timeout") == "late"
    assert story.tell(15, outcome="timeout") == "unknown_progress"
    assert story.machine.reason == (
        "/metrics has not answered for 130 s, but /health answers 200: whether the engine works is not known"
    )
    assert story.tell(3, outcome="pending", in_flight=3.0) == "unknown_progress"
    assert "stuck" not in story.seen
    assert story.tell(1, outcome="timeout", health="timeout") == "stuck"
    assert story.tell(1, running=2, moved=True) == "busy"


def test_time_spent_gone_does_not_count_as_unanswered(story: Story) -> None:
    """After ten minutes down, the first pending answer is not ten minutes late."""
    story.tell(5)
    story.tell(600, outcome="refused")
    assert story.tell(3, outcome="pending", in_flight=3.0) == "late"


def test_starting_needs_a_new_process(story: Story) -> None:
    """Refused while a process that never answered is alive: starting; while the old one is alive: gone."""
    new = Evidence(api_alive=True, start_ticks=((200, 9),))
    assert story.tell(40, outcome="refused", evidence=new) == "starting"
    story.tell(5, evidence=new)
    assert story.tell(1, outcome="refused", evidence=new) == "gone"
    again = Evidence(api_alive=True, start_ticks=((300, 99),))
    assert story.tell(1, outcome="refused", evidence=again) == "starting"


def test_orphaned_engine_is_named(story: Story) -> None:
    """The API server was killed and its engine survives: gone, and the reason says what still holds memory."""
    story.tell(5)
    assert story.tell(1, outcome="refused", evidence=Evidence(api_alive=False, engine_states=("S",))) == "gone"
    assert "left over" in story.machine.reason


def test_sleeping_comes_before_demand(story: Story) -> None:
    """A sleeping engine is sleeping, whatever its gauges say."""
    assert story.tell(300, asleep=True, running=1, cpu=0.0, engine="S", connections=1) == "sleeping"


def test_unusable_bodies_are_failing(story: Story) -> None:
    """A 500, a login page or a truncated body is an answer, but no reading."""
    assert story.tell(1, outcome="http_5xx") == "failing"
    assert story.tell(1, outcome="parse", health=None) == "failing"


def test_a_server_without_engine_metrics_says_so(story: Story) -> None:
    """--disable-log-stats: it answers, and nothing is known about its progress."""
    machine = StateMachine()
    machine.step(Observation(at=1.0, wall=None, outcome="ok", engine_metrics=False))
    assert machine.state == "unknown_progress"
    assert "disable-log-stats" in machine.reason


def test_restart_clears_what_the_old_process_owed(story: Story) -> None:
    """Demand of the old process does not count against the new one."""
    story.tell(100, running=2, moved=False, cpu=0.0, engine="S", connections=2)
    story.machine.restarted(story.now)
    assert story.tell(5, running=2, cpu=0.9, engine="R", connections=2) == "busy"


def test_since_is_the_time_of_the_change(story: Story) -> None:
    """``since`` moves only when the state does."""
    story.tell(5)
    since = story.machine.since
    story.tell(5)
    assert story.machine.since == since
    story.tell(1, running=1, moved=True)
    assert story.machine.since == WALL + 11.0


def test_evidence_that_ends_decides_nothing(story: Story) -> None:
    """When /proc stops being readable, its last picture does not decide any longer."""
    story.tell(10, running=1, moved=True, cpu=0.9, engine="R", connections=1)
    story.tell(100, running=1)
    assert story.seen[-1] == "unknown_progress"


def test_the_same_look_again_is_no_new_evidence() -> None:
    """A reader of /proc that hangs leaves its last look behind: its unchanged CPU time is not an engine at rest."""
    machine = StateMachine()
    look = Evidence(engine_states=("R",), engine_cpu_seconds=50.0, connections=2)
    for second in range(200):
        fresh = second < 5
        machine.step(
            Observation(
                at=float(second),
                wall=None,
                outcome="ok",
                running=2.0,
                moved=fresh,
                progressed=fresh,
                evidence=replace(look, engine_cpu_seconds=45.0 + second) if fresh else look,
            )
        )
        assert machine.state in ("busy", "unknown_progress")
    assert machine.state == "unknown_progress"


def test_children_that_come_and_go_are_the_same_life() -> None:
    """One common process is the same server; none in common is another life."""
    assert same_life(((1, 5), (2, 6)), ((1, 5),))
    assert not same_life(((3, 9),), ((1, 5), (2, 6)))
    assert same_life(None, ((1, 5),))
    assert not same_life(((1, 5),), None)


def test_a_canary_settles_what_cannot_be_seen(story: Story) -> None:
    """Without /proc a quiet server is unknown until a canary request proves that it works."""
    assert story.tell(130) == "unknown_progress"
    story.machine.proved(story.now)
    assert story.tell(60) == "ready"
