"""kill -9 at any moment: what was said to be stored is there, nothing is half there, and the next start works."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from security.serving import serving
from vllmeter.runs.baseline import load_stored
from vllmeter.runs.model import FINISHED
from vllmeter.runs.store import RunStore

ROUNDS = int(os.environ.get("KILL_ROUNDS", "12"))
"""scripts/faults sets more"""

WRITER = """
import dataclasses, sys
from pathlib import Path
from vllmeter.runs.baseline import StoredBaseline, _save, load_stored
from vllmeter.runs.model import FINISHED, Run
from vllmeter.runs.store import RunStore
from vllmeter.snapshot import Baseline

state = Path(sys.argv[1])
store = RunStore(state)
number = 0
while True:
    number += 1
    run = store.create(Run(id="", name=f"r{number}", started=1.796e9 + number, server="chat"))
    print("begun", run.id, flush=True)
    store.save(dataclasses.replace(run, state=FINISHED, ended=1.796e9 + number + 1, exit_code=0))
    print("done", run.id, flush=True)
    baseline = Baseline(server="chat", scenario=f"s{number}", run=run.id, recorded=1.796e9, throughput=1.0)
    others = [one for one in load_stored(state) if one.baseline.scenario != baseline.scenario]
    _save(state, [*others[-50:], StoredBaseline(baseline, (run.id,))])
    print("baseline", f"s{number}", flush=True)
"""


def test_no_run_and_no_baseline_is_lost(tmp_path: Path) -> None:
    """A process that writes runs and baselines all the time is killed at random moments, again and again."""
    moment = random.Random(7)
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root / "exporter")}
    told: dict[str, list[str]] = {"begun": [], "done": [], "baseline": []}
    for _ in range(ROUNDS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=env
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]  # it works now
        time.sleep(moment.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.stdout.close()
        writer.wait()
        for line in lines:
            kind, _, name = line.strip().partition(" ")
            if line.endswith("\n"):
                told[kind].append(name)
        stored = {one.id: one for one in RunStore(tmp_path).all()}
        for name in told["begun"]:
            run = stored[name].run
            assert run is not None, (name, stored[name].problem)
        for name in told["done"]:
            run = stored[name].run
            assert run is not None
            assert run.state == FINISHED
        scenarios = [one.baseline.scenario for one in load_stored(tmp_path)]
        assert told["baseline"] == [] or told["baseline"][-1] in scenarios
    assert len(told["done"]) > ROUNDS
    assert len(told["baseline"]) > ROUNDS / 2


def test_a_killed_exporter_starts_again_with_the_same_file(tmp_path: Path) -> None:
    """The exporter never writes its configuration; killed while it samples, it comes back as it was."""
    config = "listen: 127.0.0.1:0\nnvml: {enabled: false}\nservers: [{name: a, url: 'http://127.0.0.1:9'}]\n"
    for _ in range(3):
        with serving(tmp_path, config) as served:
            served.wait_for("server=a")
            served.process.kill()
            served.process.wait(10)
        assert (tmp_path / "vllmeter.yaml").read_text() == config
