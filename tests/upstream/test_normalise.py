"""What the normaliser makes of versions, spellings, deployments and of bodies that contradict themselves.

Bodies here are made from the name table (tests/upstream/made_bodies.py), not captured.
"""

from __future__ import annotations

import pytest

from upstream.made_bodies import Made, make
from vllmeter.exposition.parse import Parser
from vllmeter.snapshot import ServerReading
from vllmeter.upstream.normalise import Normaliser

V0 = ("0.4.1", "0.4.3", "0.5.5", "0.6.3", "0.6.6", "0.7.3", "0.8.5", "0.9.0", "0.9.2", "0.10.2", "0.11.0")
V1 = (
    "0.7.2",
    "0.7.3",
    "0.8.0",
    "0.8.5",
    "0.9.0",
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.12.0",
    "0.14.0",
    "0.16.0",
    "0.20.0",
    "0.26.0",
    "0.33.0",
)


def read(made: Made | str, version: str | None = None) -> ServerReading:
    text, content_type = (made, "text/plain") if isinstance(made, str) else (made.text, made.content_type)
    return Normaliser().normalise(Parser().parse(text, content_type), version)


def families(reading: ServerReading) -> set[str]:
    return {ref.family for ref in reading.layout.refs}


def histogram(
    reading: ServerReading, family: str, engine: str = "0"
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    for ref, buckets, total in zip(reading.layout.histograms, reading.buckets, reading.sums, strict=True):
        if ref.family == family and dict(ref.labels)["engine"] == engine:
            return ref.bounds, tuple(buckets), total
    raise AssertionError(f"no {family}")


def notes(reading: ServerReading) -> str:
    return "\n".join(reading.layout.notes)


# --------------------------------------------------------------------------- versions

_ALWAYS = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total",
}


@pytest.mark.parametrize(("version", "engine"), [*((v, "v0") for v in V0), *((v, "v1") for v in V1)])
def test_core_of_every_version(version: str, engine: str) -> None:
    """Every version gives load, tokens, KV usage, TTFT and per-output latency, with its own bounds and values."""
    made = make(version, engine)
    reading = read(made)
    labelled = any("engine" in dict(key) for _, key in made.scalars)
    key = (("engine", "0"),) if labelled else ()
    for family, name in _ALWAYS.items():
        assert reading.scalar(family, engine="0") == made.scalars[name, key]
    usage = made.scalars.get(("kv_cache_usage_perc", key), made.scalars.get(("gpu_cache_usage_perc", key)))
    if version != "0.11.0" or engine == "v1":  # V0 0.11.0 has lost the old name and never got the new one
        assert reading.scalar("kv_cache_usage_ratio") == usage
    assert histogram(reading, "ttft_seconds") == made.histograms["time_to_first_token_seconds", "0"]
    itl = made.histograms.get(
        ("inter_token_latency_seconds", "0"), made.histograms.get(("time_per_output_token_seconds", "0"))
    )
    assert histogram(reading, "inter_token_latency_seconds") == itl
    assert reading.layout.unmapped == ()
    assert reading.layout.engine_metrics
    assert reading.layout.model_names == ("a-model",)
    assert reading.layout.engines == ("0",)


def test_what_v0_does_not_have_is_absent() -> None:
    """V1's families are absent on V0, and V0's swapped requests are absent (not 0) on V1."""
    v0, v1 = read(make("0.6.6", "v0"), "0.6.6"), read(make("0.33.0", "v1"))
    assert "requests_swapped" in families(v0)
    assert "requests_swapped" not in families(v1)
    for family in ("requests_waiting_by_reason", "prompt_tokens_by_source_total", "server_sleep_state"):
        assert family not in families(v0)
        assert family in families(v1)
    assert "time_per_output_token_seconds" not in families(v0)
    assert "prefix_cache_queries_tokens_total" not in families(v0)


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0"])
def test_old_and_new_name_together_use_the_new_one(version: str) -> None:
    """Where a release has both names of one quantity only the new one counts, and a note says so."""
    made = make(version, "v1")
    reading = read(made)
    key = (("engine", "0"),)
    assert made.scalars["kv_cache_usage_perc", key] != made.scalars["gpu_cache_usage_perc", key]
    assert [ref.source for ref in reading.layout.scalars if ref.family == "kv_cache_usage_ratio"] == [
        "vllm:kv_cache_usage_perc"
    ]
    assert reading.scalar("kv_cache_usage_ratio") == made.scalars["kv_cache_usage_perc", key]
    assert histogram(reading, "inter_token_latency_seconds") == made.histograms["inter_token_latency_seconds", "0"]
    assert "vllm:gpu_cache_usage_perc: not used, vllm:kv_cache_usage_perc says the same" in reading.layout.notes
    assert reading.layout.sources["prefix_cache_hits_tokens_total"] == "vllm:prefix_cache_hits_total"


def test_old_queue_name_alone() -> None:
    """time_in_queue_requests stands in for the queue time where the new name is missing."""
    made = make("0.6.6", "v0", without=("request_queue_time_seconds",))
    assert histogram(read(made, "0.6.6"), "queue_time_seconds") == made.histograms["time_in_queue_requests", "0"]


@pytest.mark.parametrize(
    ("version", "told", "there"),
    [("0.8.5", None, False), ("0.8.5", "0.8.5", False), ("0.9.0", None, True), ("0.9.0", "0.9.0", True)],
)
def test_prefix_counters_in_blocks_are_absent(version: str, told: str | None, there: bool) -> None:
    """gpu_prefix_cache_* counts blocks before 0.9.0: absent then with a note, used from 0.9.0 on."""
    reading = read(make(version, "v1"), told)
    assert ("prefix_cache_queries_tokens_total" in families(reading)) is there
    assert ("counts blocks before" in notes(reading)) is not there


def test_prefix_counters_of_unknown_unit_are_absent() -> None:
    """Without cache configuration and version the unit of the old prefix counters is not known: absent."""
    made = make("0.9.0", "v1", without=("cache_config_info",))
    assert "prefix_cache_hits_tokens_total" not in families(read(made))
    assert "prefix_cache_hits_tokens_total" in families(read(made, "0.9.1"))


def test_a_version_that_says_nothing_is_no_version() -> None:
    """A build from a shallow clone calls itself 0.1.dev1: its body tells more than that."""
    assert "prefix_cache_hits_tokens_total" in families(read(make("0.9.0", "v1"), "0.1.dev1+g1234567"))
    assert "prefill_time_seconds" not in families(read(make("0.6.4", "v0"), "0.1.dev1+g1234567"))


@pytest.mark.parametrize("told", ["0.6.4", "0.6.4.post1"])
def test_0_6_4_swaps_prefill_and_decode(told: str) -> None:
    """The two histograms that 0.6.4 swaps are swapped back when the version is known."""
    made = make("0.6.4", "v0")
    reading = read(made, told)
    assert histogram(reading, "prefill_time_seconds") == made.histograms["request_decode_time_seconds", "0"]
    assert histogram(reading, "decode_time_seconds") == made.histograms["request_prefill_time_seconds", "0"]
    assert "swaps prefill and decode" in notes(reading)


@pytest.mark.parametrize(("version", "told"), [("0.6.4", None), ("0.6.6", None), ("0.6.5", "0.6.5")])
def test_prefill_and_decode_are_absent_where_they_may_be_swapped(version: str, told: str | None) -> None:
    """0.6.4 to 0.6.6 look alike: without a version the two histograms are left out."""
    reading = read(make(version, "v0"), told)
    assert not families(reading) & {"prefill_time_seconds", "decode_time_seconds"}
    assert "inference_time_seconds" in families(reading)
    assert "swaps prefill and decode" in notes(reading)


@pytest.mark.parametrize(("version", "told"), [("0.6.6", "0.6.6"), ("0.7.3", None), ("0.9.0", None)])
def test_prefill_and_decode_are_used_where_they_are_right(version: str, told: str | None) -> None:
    """Where the swap is ruled out the two histograms are used under their own names."""
    made = make(version, "v0")
    assert histogram(read(made, told), "prefill_time_seconds") == made.histograms["request_prefill_time_seconds", "0"]


def test_a_later_known_version_changes_the_reading() -> None:
    """The version may come later than the first body: the plan is made anew."""
    made = make("0.6.4", "v0")
    normaliser, parser = Normaliser(), Parser()
    before = normaliser.normalise(parser.parse(made.text, made.content_type))
    after = normaliser.normalise(parser.parse(made.text, made.content_type), "0.6.4")
    assert "prefill_time_seconds" not in families(before)
    assert "prefill_time_seconds" in families(after)


def test_v0_before_its_first_request() -> None:
    """V0 declares its families and has no samples: the server has engine metrics, all absent."""
    reading = read(make("0.6.3", "v0", idle=True))
    assert reading.layout.engine_metrics
    assert families(reading) == set()
    assert "no sample yet" in notes(reading)


# --------------------------------------------------------------------------- spellings and deployments


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_"])
def test_other_spellings(prefix: str) -> None:
    """Underscores and Ray's prefix are the same metrics; the source says how they were spelled."""
    made, usual = make("0.26.0", "v1", prefix=prefix), make("0.26.0", "v1")
    left, right = read(made), read(usual)
    assert list(left.values) == list(right.values)
    assert left.buckets == right.buckets
    assert left.layout.sources["requests_running"] == prefix + "num_requests_running"
    assert left.layout.unmapped == ()


def test_two_spellings_together_count_once() -> None:
    """A body with both spellings is not added up."""
    made = make("0.26.0", "v1")
    both = made.text + make("0.26.0", "v1", prefix="vllm_", multiprocess=True).text.replace(
        "# HELP python_info", "# again"
    )
    reading = read(both)
    assert reading.scalar("prompt_tokens_total") == made.scalars["prompt_tokens_total", (("engine", "0"),)]
    assert reading.layout.sources["prompt_tokens_total"] == "vllm:prompt_tokens_total"


def test_rust_frontend() -> None:
    """OpenMetrics of the Rust frontend: counters and histograms are read, what it lacks is absent."""
    made = make("0.26.0", "v1", rust=True)
    reading = read(made)
    assert reading.scalar("prompt_tokens_total") == made.scalars["prompt_tokens_total", (("engine", "0"),)]
    assert histogram(reading, "iteration_tokens") == made.histograms["iteration_tokens_total", "0"]
    assert not families(reading) & {"server_sleep_state", "multimodal_cache_hits_total", "request_preemptions"}
    assert reading.layout.cache_config == {}
    assert reading.process_start is None
    assert reading.layout.unmapped == ()


def test_ray_replicas_behind_one_endpoint() -> None:
    """Several Ray replicas: counters and request gauges are summed, KV usage is the largest, a note says so."""
    first = make("0.26.0", "v1", prefix="ray_vllm_", extra={"ReplicaId": "a"})
    second = make("0.26.0", "v1", prefix="ray_vllm_", extra={"ReplicaId": "b"})
    lines = first.text.splitlines() + [line for line in second.text.splitlines() if 'ReplicaId="b"' in line]
    reading = read("\n".join(lines) + "\n")
    key = (("engine", "0"),)
    for family, name, times in (
        ("prompt_tokens_total", "prompt_tokens_total", 2),
        ("requests_running", "num_requests_running", 2),
        ("kv_cache_usage_ratio", "kv_cache_usage_perc", 1),
    ):
        assert reading.scalar(family) == pytest.approx(times * first.scalars[name, key])
    bounds, counts, total = first.histograms["time_to_first_token_seconds", "0"]
    assert histogram(reading, "ttft_seconds") == (bounds, tuple(2 * n for n in counts), 2 * total)
    assert "the sum of 2 series of ray_vllm_num_requests_running" in notes(reading)


def test_counters_without_their_suffix() -> None:
    """Some relays drop ``_total``: the bare name is taken, but never added to the full one."""
    bare = '# TYPE ray_vllm_prompt_tokens gauge\nray_vllm_prompt_tokens{engine="0"} 5\n'
    full = '# TYPE ray_vllm_prompt_tokens_total counter\nray_vllm_prompt_tokens_total{engine="0"} 5\n'
    assert read(bare).scalar("prompt_tokens_total") == 5
    assert read(bare + full).scalar("prompt_tokens_total") == 5


def test_pid_series_take_the_largest() -> None:
    """KV usage per process (0.9.2-0.11.0 with several API servers) is the largest, never the sum."""
    head = '# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine="0",model_name="m",pid='
    body = f'{head}"10"}} 0\nvllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="11"}} 0.75\n'
    reading = read(body)
    assert reading.scalar("kv_cache_usage_ratio") == 0.75
    assert [ref.labels for ref in reading.layout.scalars] == [(("engine", "0"),)]
    running = body.replace("kv_cache_usage_perc", "num_requests_running").replace("0.75", "3").replace("} 0\n", "} 2\n")
    assert read(running).scalar("requests_running") == 3


def test_several_api_servers_lose_the_step_histogram() -> None:
    """With several API servers tokens per step is wrong in vLLM: absent with a note; one API server keeps it."""
    assert "iteration_tokens" in families(read(make("0.26.0", "v1")))
    several = read(make("0.26.0", "v1", multiprocess=True))
    assert "iteration_tokens" not in families(several)
    assert "several API servers" in notes(several)
    # V0's default is multiprocess with one API server: there it is right.
    assert "iteration_tokens" in families(read(make("0.8.5", "v0", multiprocess=True)))


def test_data_parallel_engines() -> None:
    """Each engine keeps its series, in the order of its rank."""
    made = make("0.26.0", "v1", engines=("0", "1", "10", "2"))
    reading = read(made)
    assert reading.layout.engines == ("0", "1", "2", "10")
    assert reading.scalar("requests_running", engine="10") == made.scalars["num_requests_running", (("engine", "10"),)]
    assert histogram(reading, "ttft_seconds", "2") == made.histograms["time_to_first_token_seconds", "2"]


def test_external_rank_is_not_assumed_to_be_zero() -> None:
    """One rank of an external balancer carries its own number."""
    assert read(make("0.26.0", "v1", engines=("3",))).layout.engines == ("3",)


# --------------------------------------------------------------------------- restarts


def test_start_and_birth() -> None:
    """Process start and the birth of the core counters are read; births of other families are not."""
    made = make("0.26.0", "v1")
    late = made.text + 'vllm:tool_call_parser_invocations_created{mode="x"} 1.9e+09\nhttp_requests_created 1.9e+09\n'
    reading = read(late)
    assert (reading.process_start, reading.created) == (1.7e9, 1.70000001e9)
    assert not any("created" in ref.source for ref in reading.layout.refs)


# --------------------------------------------------------------------------- unknown names


def test_unknown_names_are_listed_once_per_family() -> None:
    """Engine families that no row knows are counted by family, whatever their kind; foreign metrics are not."""
    body = """\
# TYPE vllm:new_thing_seconds histogram
vllm:new_thing_seconds_bucket{le="+Inf"} 1
vllm:new_thing_seconds_sum 1
vllm:new_thing_seconds_count 1
# TYPE vllm:new_thing_seconds_created gauge
vllm:new_thing_seconds_created 1
# TYPE vllm:new_events_total counter
vllm:new_events_total 1
# TYPE vllm:new_events_created gauge
vllm:new_events_created 1
# TYPE vllm:declared_only gauge
vllm:undeclared 1
# TYPE vllm:kvcr_things_total counter
vllm:kvcr_things_total 1
# TYPE lmcache:num_hit_tokens_total counter
lmcache:num_hit_tokens_total 1
my_own_metric 1
"""
    reading = read(body)
    assert reading.layout.unmapped == (
        "vllm:declared_only",
        "vllm:new_events_total",
        "vllm:new_thing_seconds",
        "vllm:undeclared",
    )
    assert families(reading) == set()
    assert reading.layout.engine_metrics


def test_huge_info_metric_is_known_and_dropped() -> None:
    """The configuration-as-labels metric of some nightly builds is not passed on and not counted as unknown."""
    labels = ",".join(f'option_{i}="{"x" * 200}"' for i in range(500))
    reading = read("# TYPE vllm:vllm_config_info gauge\nvllm:vllm_config_info{" + labels + "} 1\n")
    assert reading.layout.unmapped == ()
    assert families(reading) == set()


def test_frontend_metrics_alone_are_no_engine_metrics() -> None:
    """With --disable-log-stats a few metrics of the API server stay; the engine's are still off."""
    body = "# TYPE vllm:websocket_connections_active gauge\nvllm:websocket_connections_active 0\n"
    assert not read(body).layout.engine_metrics


# --------------------------------------------------------------------------- values that cannot be

_TTFT = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {0}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="1.0"}} {1}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {2}
vllm:time_to_first_token_seconds_sum{{engine="0"}} {3}
vllm:time_to_first_token_seconds_count{{engine="0"}} {4}
vllm:num_requests_running{{engine="0"}} 2
"""


@pytest.mark.parametrize(
    "values",
    [
        (5, 4, 5, 1, 5),  # buckets fall
        (1, 2, 3, 1, 4),  # count is not the +Inf bucket
        (1, 2, 3, -1, 3),  # negative sum: vLLM recorded a negative interval
        (1, 2, 3, "NaN", 3),
        (1, 2, "+Inf", 1, "+Inf"),
        (-1, 2, 3, 1, 3),
        ("NaN", 2, 3, 1, 3),
        (1, "NaN", 3, 1, 3),
        (1, 2, 3, "+Inf", 3),
    ],
)
def test_histograms_that_contradict_themselves(values: tuple[float | str, ...]) -> None:
    """A histogram whose numbers cannot be is left out with a note; everything else of the body stays."""
    normaliser, parser = Normaliser(), Parser()
    good = normaliser.normalise(parser.parse(_TTFT.format(1, 2, 3, 1.5, 3)))
    bad = normaliser.normalise(parser.parse(_TTFT.format(*values)))
    again = normaliser.normalise(parser.parse(_TTFT.format(1, 2, 4, 2.5, 4)))
    assert histogram(good, "ttft_seconds") == ((0.1, 1.0), (1.0, 2.0, 3.0), 1.5)
    assert families(bad) == {"requests_running"}
    assert "contradicts itself" in notes(bad)
    assert "ttft_seconds" not in bad.layout.sources
    assert histogram(again, "ttft_seconds") == ((0.1, 1.0), (1.0, 2.0, 4.0), 2.5)
    assert again.layout is good.layout


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (_TTFT.replace('le="+Inf"', 'le="7"'), "no +Inf bucket"),
        (_TTFT.replace('le="0.1"', 'le="1"'), "two buckets for one bound"),
        (_TTFT.replace('le="0.1"', 'le="x"'), "without a bound"),
        (_TTFT.replace('le="0.1"', 'le="NaN"'), "no +Inf bucket"),
        ("\n".join(line for line in _TTFT.split("\n") if "_sum" not in line), "no sum or no count"),
    ],
)
def test_histograms_with_broken_series(broken: str, says: str) -> None:
    """A histogram without all of its parts is left out with the reason."""
    reading = read(broken.format(1, 2, 3, 1.5, 3))
    assert families(reading) == {"requests_running"}
    assert says in notes(reading)


def test_merged_histograms_need_the_same_bounds() -> None:
    """Series that become one histogram are summed only over equal bounds, and only if each is sound."""
    one = _TTFT.format(1, 2, 3, 1.5, 3).replace('engine="0"', 'engine="0",model_name="a"')
    two = _TTFT.format(1, 2, 3, 1.5, 3).replace('engine="0"', 'engine="0",model_name="b"').split("\n", 1)[1]
    assert histogram(read(one + two), "ttft_seconds") == ((0.1, 1.0), (2.0, 4.0, 6.0), 3.0)
    other = read(one + two.replace('le="1.0"', 'le="2.0"'))
    assert "ttft_seconds" not in families(other)
    assert "different bounds" in notes(other)
    broken = read(one + two.replace("_count{", "_count{", 1).replace("} 3\n", "} 4\n", 1))
    assert "ttft_seconds" not in families(broken)


@pytest.mark.parametrize("value", ["-1", "NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("name", ["num_requests_running", "prompt_tokens_total", "kv_cache_usage_perc"])
def test_scalars_that_cannot_be(name: str, value: str) -> None:
    """A negative or non-finite counter or gauge is left out with a note; the others stay."""
    reading = read(f'vllm:{name}{{engine="0"}} {value}\nvllm:num_requests_waiting{{engine="0"}} 4\n')
    assert families(reading) == {"requests_waiting"}
    assert reading.scalar("requests_waiting") == 4
    assert "impossible" in notes(reading)


def test_one_engine_may_be_broken_alone() -> None:
    """Only the series that cannot be is left out, not its family on other engines."""
    reading = read('vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 4\n')
    assert [ref.labels for ref in reading.layout.scalars] == [(("engine", "1"),)]
    assert 'requests_running{engine="0"}' in notes(reading)


def test_a_broken_twin_does_not_hide_behind_the_largest() -> None:
    """Of several pid series one NaN or negative makes the merged value absent."""
    for bad in ("NaN", "-1", "+Inf"):
        body = "".join(f'vllm:kv_cache_usage_perc{{engine="0",pid="{i}"}} {v}\n' for i, v in enumerate(("0.5", bad)))
        assert "kv_cache_usage_ratio" not in families(read(body))


@pytest.mark.parametrize(("value", "there"), [("1.0", True), ("1.0000001", True), ("1.1", False), ("57.0", False)])
def test_ratios_above_one(value: str, there: bool) -> None:
    """A share above 1 is no share: absent rather than clipped."""
    assert ("kv_cache_usage_ratio" in families(read(f'vllm:kv_cache_usage_perc{{engine="0"}} {value}\n'))) is there


def test_declared_type_must_fit() -> None:
    """A known name that is declared with another type is left out with a note."""
    reading = read('# TYPE vllm:prompt_tokens_total gauge\nvllm:prompt_tokens_total{engine="0"} 1\n')
    assert families(reading) == set()
    assert "declared as gauge, not counter" in notes(reading)


# --------------------------------------------------------------------------- pooling servers, features that are off

_SERVER = """\
vllm:request_success_total{{engine="0",finished_reason="stop"}} {finished}
vllm:request_success_total{{engine="0",finished_reason="abort"}} {aborted}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
"""


@pytest.mark.parametrize(
    ("finished", "aborted", "tokens", "pooling"),
    [(0, 0, 0, False), (5, 0, 0, True), (5, 0, 1, False), (0, 3, 0, False)],
)
def test_pooling_is_seen_from_finished_requests(finished: int, aborted: int, tokens: int, pooling: bool) -> None:
    """Requests that finished without any token ever mean a pooling server; aborted ones and silence do not."""
    reading = read(_SERVER.format(finished=finished, aborted=aborted, tokens=tokens))
    assert ("generation_tokens_total" not in families(reading)) is pooling
    assert "kv_cache_usage_ratio" in families(reading)


@pytest.mark.parametrize(("blocks", "there"), [("1", False), ("0", False), ("700", True), ("None", True)])
def test_engine_without_kv_cache(blocks: str, there: bool) -> None:
    """Encoder-only engines have one dummy block: their KV usage of 0 is no reading."""
    body = _SERVER.format(finished=0, aborted=0, tokens=0)
    body += f'vllm:cache_config_info{{engine="0",num_gpu_blocks="{blocks}"}} 1\n'
    assert ("kv_cache_usage_ratio" in families(read(body))) is there
    assert ("generation_tokens_total" in families(read(body))) is there


@pytest.mark.parametrize(("caching", "there"), [("False", False), ("True", True), ("None", True)])
def test_prefix_caching_off(caching: str, there: bool) -> None:
    """With prefix caching off its counters are absent, not 0."""
    body = 'vllm:prefix_cache_hits_total{engine="0"} 0\n'
    body += f'vllm:cache_config_info{{engine="0",enable_prefix_caching="{caching}",num_gpu_blocks="9"}} 1\n'
    assert ("prefix_cache_hits_tokens_total" in families(read(body))) is there


def test_estimates_appear_with_their_first_value() -> None:
    """Performance estimates are absent while they are all 0, because then the flag is off or nothing ran."""
    names = ("flops", "read_bytes", "write_bytes")
    body = "".join(f'vllm:estimated_{name}_per_gpu_total{{{{engine="0"}}}} {{}}\n' for name in names)
    assert families(read(body.format(0, 0, 0))) == set()
    assert len(families(read(body.format(5, 0, 0)))) == 3


def test_contradicting_cache_configurations() -> None:
    """Two configuration series of one engine that differ: the differing labels are not used."""
    body = 'vllm:cache_config_info{engine="0",a="1",b="2"} 1\nvllm:cache_config_info{engine="0",a="1",b="3"} 1\n'
    reading = read(body)
    assert reading.layout.cache_config == {"0": {"a": "1"}}
    assert "says two things about b" in notes(reading)


# --------------------------------------------------------------------------- plans


def test_readings_of_one_shape_share_their_layout() -> None:
    """As long as the body's shape stays the layout is one object; another shape makes another."""
    normaliser, parser = Normaliser(), Parser()
    first = normaliser.normalise(parser.parse(_TTFT.format(1, 2, 3, 1.5, 3)))
    second = normaliser.normalise(parser.parse(_TTFT.format(2, 3, 4, 2.5, 4)))
    third = normaliser.normalise(parser.parse(_TTFT.format(2, 3, 4, 2.5, 4) + "vllm:num_requests_waiting 1\n"))
    assert first.layout is second.layout
    assert third.layout is not second.layout
    assert third.scalar("requests_waiting") == 1


def test_flapping_faults_do_not_pile_up() -> None:
    """Plans for broken series are bounded, whatever combination of series breaks."""
    lines = [f'vllm:request_success_total{{{{finished_reason="r{i}"}}}} {{{i}}}' for i in range(6)]
    template = "\n".join(lines) + "\n"
    normaliser, parser = Normaliser(), Parser()
    for mask in range(64):
        values = ["-1" if mask >> i & 1 else "1" for i in range(6)]
        reading = normaliser.normalise(parser.parse(template.format(*values)))
        assert len(reading.values) == 6 - bin(mask).count("1")
    assert normaliser._plan is not None
    assert len(normaliser._plan.variants) <= 16
