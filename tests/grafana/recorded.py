"""The recording as a Prometheus would hold it, without waiting: exporter stepped, rules evaluated, blocks written.

The exporter's own code makes every sample (:class:`fakes.stepper.Stepper`), as a scrape every :data:`SCRAPE` seconds
would have read it.  promtool writes them as TSDB blocks.  A first Prometheus on these blocks evaluates the recording
rules and alerts at every step; their results become blocks too.  Blocks hold no stale markers (a scrape would write
them), so the servers run with a look-back shorter than one scrape and are asked at the moments of scrapes: what was
absent is absent.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fakes.stepper import Stepper, settings_of
from grafana.servers import Prometheus
from vllmeter.memory.startup_log import StartupLog
from vllmeter.recording.player import Player
from vllmeter.snapshot import Baseline

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "captures"
RECORDING = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
CLIENT = ROOT / "tests" / "windows" / "client-ttft.json"
RULES = ROOT / "prometheus" / "rules"
ALERTS = ROOT / "alerts"

SCRAPE = 5
LOOKBACK = "4s"
CHAT = "vllm-qwen3"
LOGS = {"vllm-reranker": "rerank", "vllm-embed": "embed"}
RUNS = {
    # phase of the recording -> scenario; the phases are what a user would have wrapped in `vllmeter run`
    "base-2048-short": "short",
    "base-2048-long": "long",
    "cand-8192-short": "short",
    "cand-8192-long": "long",
}

Sample = tuple[str, float, float]
"""series as text, value, Unix time"""


@dataclass(frozen=True)
class Phase:
    """When a phase of the load test was played, in Unix time."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Recorded:
    """All samples of the recording."""

    samples: Sequence[Sample]
    phases: Mapping[str, Phase]
    begin: float
    end: float


def _with_labels(line: str, labels: str) -> tuple[str, str]:
    """Series with the target's labels, and the value."""
    series, value = line.rsplit(" ", 1)
    if series.endswith("}"):
        return f"{series[:-1]},{labels}}}", value
    return f"{series}{{{labels}}}", value


def _baseline(player: Player) -> Baseline:
    """What `vllmeter baseline` would have stored from the client's file of the first short run."""
    del player
    ttft = sorted(json.loads(CLIENT.read_text(encoding="utf-8"))["base-2048-short"])
    return Baseline(
        server=CHAT,
        scenario="short",
        run="base-2048-short",
        recorded=0.0,
        ttft={"mean": sum(ttft) / len(ttft), "p95": ttft[math.ceil(0.95 * len(ttft)) - 1]},
        throughput=None,
    )


@lru_cache(maxsize=4)
def play(host: str = "gpu-1") -> Recorded:
    """Steps the exporter through the whole recording."""
    player = Player(RECORDING, loop=False)
    stepper = Stepper(settings_of(player), {s.name: s.version or "" for s in player.header.servers})
    stepper.store.baselines = (_baseline(player),)
    for name, log in LOGS.items():
        text = (CAPTURES / "logs" / f"vllm-0.26.0__h200__{log}.log").read_text(encoding="utf-8")
        stepper.store.log_facts(name, StartupLog().feed_all(text.splitlines()), None)
    starts = (CAPTURES / "logs" / "vllm-0.26.0__h200__chat-two-starts.log").read_text(encoding="utf-8")
    first, second = starts.split("\nCMD", 1)
    chat = StartupLog()
    stepper.store.log_facts(CHAT, chat.feed_all(first.splitlines()), None)

    labels = f'job="vllmeter",instance="{host}:9877",host="{host}"'
    # Two hosts have equal server names and equal GPU indices, but no card is in both.
    uuid = "GPU-" if host == "gpu-1" else f"GPU-{host}-"
    samples: list[Sample] = []
    phases: dict[str, Phase] = {}
    player.seek(0.0, 0.0)
    last = ""
    position = 0
    wall = 0.0
    while position <= player.duration:
        moment = player.at(stepper.at)
        wall = round(moment.wall, 3)
        stepper.wall_zero = moment.wall - stepper.at
        if moment.phase != last:
            if last in RUNS:
                stepper.mark_run(last, RUNS[last], CHAT, start=False)
            if moment.phase in RUNS:
                stepper.mark_run(moment.phase, RUNS[moment.phase], CHAT, start=True)
            if moment.phase.startswith("restart"):
                stepper.store.log_facts(CHAT, chat.feed_all(("CMD" + second).splitlines()), None)
            if last:
                phases[last] = Phase(last, phases[last].begin, wall)
            phases[moment.phase] = Phase(moment.phase, wall, wall)
            last = moment.phase
        stepper.moment(moment)
        if position % SCRAPE == 0:
            lines = [line for line in stepper.metrics(openmetrics=False).decode().splitlines() if line[0] != "#"]
            for line in lines:
                series, value = _with_labels(line.replace('uuid="GPU-', f'uuid="{uuid}'), labels)
                samples.append((series, float(value), wall))
            # What Prometheus itself adds to every scrape, and what the process of the exporter gives.
            samples.append((f"up{{{labels}}}", 1.0, wall))
            samples.append((f"scrape_samples_scraped{{{labels}}}", float(len(lines)), wall))
            samples.append((f"process_cpu_seconds_total{{{labels}}}", 0.008 * position, wall))
        position += 1
        stepper.at += 1
    phases[last] = Phase(last, phases[last].begin, wall)
    begin = samples[0][2]
    return Recorded(tuple(samples), phases, begin, samples[-1][2])


# ---------------------------------------------------------------------------- rules and alerts


def _expressions() -> dict[str, str]:
    """Recorded name -> expression."""
    out = {}
    for path in sorted(RULES.glob("*.rules.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                if "record" in rule:
                    out[rule["record"]] = rule["expr"]
    return out


def recorded_names() -> frozenset[str]:
    """Every name that prometheus/rules record."""
    return frozenset(_expressions())


_RECORDED_NAME = re.compile(r"\b[a-z_]+:vllmeter_[a-zA-Z0-9_]+:[a-zA-Z0-9_]+")


def levels() -> list[dict[str, str]]:
    """The rules in an order in which each level rests only on earlier ones."""
    left = _expressions()
    out: list[dict[str, str]] = []
    done: set[str] = set()
    while left:
        ready = {name: expr for name, expr in left.items() if not set(_RECORDED_NAME.findall(expr)) & left.keys()}
        if not ready:
            raise ValueError(f"rules that rest on each other: {', '.join(sorted(left))}")
        out.append(ready)
        done |= ready.keys()
        left = {name: expr for name, expr in left.items() if name not in done}
    return out


def _labels_text(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(
        f'{key}="{value.translate({92: chr(92) * 2, 34: chr(92) + chr(34), 10: chr(92) + "n"})}"'
        for key, value in sorted(labels.items())
        if key != "__name__"
    )
    return f"{name}{{{inner}}}"


def evaluate(server: Prometheus, rules: Mapping[str, str], begin: float, end: float, step: int) -> Iterator[Sample]:
    """Samples that the rules would have recorded."""
    for name, expr in rules.items():
        for series in server.range(expr, begin, end, step):
            text = _labels_text(name, series["metric"])
            for at, value in series["values"]:
                yield text, float(value), float(at)


def _seconds(text: str | None) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", str(text or "0s"))
    assert match is not None, text
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def alerts(server: Prometheus, begin: float, end: float, step: int) -> Iterator[Sample]:
    """Prometheus' own series ``ALERTS`` for the alert rules."""
    for path in sorted(ALERTS.glob("*.alerts.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                if "alert" not in rule:
                    continue
                wait = _seconds(rule.get("for"))
                for series in server.range(rule["expr"], begin, end, step):
                    labels = {k: v for k, v in series["metric"].items() if k != "__name__"}
                    extra = {k: v for k, v in rule.get("labels", {}).items() if "{{" not in str(v)}
                    labels |= {"alertname": rule["alert"], **extra}
                    since: float | None = None
                    before = -1e9
                    for at, _ in series["values"]:
                        if float(at) - before > step * 1.5:
                            since = float(at)
                        before = float(at)
                        assert since is not None
                        state = "firing" if float(at) - since >= wait else "pending"
                        yield _labels_text("ALERTS", {**labels, "alertstate": state}), 1.0, float(at)


# ---------------------------------------------------------------------------- blocks


def write_blocks(promtool: Path | str, samples: Iterable[Sample], folder: Path, scratch: Path) -> None:
    """TSDB blocks of the samples, added to ``folder``.

    :raises AssertionError: promtool refuses them
    """
    scratch.mkdir(parents=True, exist_ok=True)
    text = scratch / "samples.om"
    number = 0
    with text.open("w", encoding="utf-8") as out:
        for series, value, at in sorted(samples, key=lambda sample: sample[2]):
            shown = "NaN" if math.isnan(value) else repr(value).replace("inf", "Inf")
            out.write(f"{series} {shown} {at:.3f}\n")
            number += 1
        out.write("# EOF\n")
    if not number:
        return
    run_promtool(promtool, text, folder)
    text.unlink()


def run_promtool(promtool: Path | str, text: Path, folder: Path) -> None:
    """``promtool tsdb create-blocks-from openmetrics``."""
    done = subprocess.run(
        [str(promtool), "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"promtool: {done.stdout}{done.stderr}"


def build(promtool: Path | str, prometheus: Path | str, folder: Path, hosts: Sequence[str] = ("gpu-1",)) -> Recorded:
    """Blocks of the recording in ``folder``, played on each of ``hosts`` at once, with rules and alerts evaluated."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder.parent / (folder.name + "-scratch")
    plays = [play(host) for host in hosts]
    begin, end = plays[0].begin, plays[0].end
    write_blocks(promtool, [sample for one in plays for sample in one.samples], folder, scratch)
    everything: list[Sample] = []
    for rules in levels():
        with Prometheus(prometheus, folder, scratch, LOOKBACK) as server:
            made = list(evaluate(server, rules, begin, end, SCRAPE))
        everything += made
        write_blocks(promtool, made, folder, scratch)
    with Prometheus(prometheus, folder, scratch, LOOKBACK) as server:
        fired = list(alerts(server, begin, end, SCRAPE))
    write_blocks(promtool, fired, folder, scratch)
    all_samples = [sample for one in plays for sample in one.samples] + everything + fired
    return Recorded(tuple(all_samples), plays[0].phases, begin, end)


def save_facts(recorded: Recorded, path: Path) -> None:
    """Times and phases, for whoever uses the blocks later."""
    facts: dict[str, Any] = {
        "begin": recorded.begin,
        "end": recorded.end,
        "phases": {name: [phase.begin, phase.end] for name, phase in recorded.phases.items()},
    }
    path.write_text(json.dumps(facts), encoding="utf-8")
