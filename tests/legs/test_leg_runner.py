"""scripts/test decides what "green" means, so its own verdicts are tested, on legs made here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Legs:
    """A folder of legs, and runs of scripts/test over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "legs"
        self.folder.mkdir()
        self.logs = folder / "logs"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in {"CI", "VLLMETER_TEST_LIMIT"}},
            "VLLMETER_TEST_LEGS": str(self.folder),
            "VLLMETER_TEST_LOGS": str(self.logs),
        }

    def add(self, name: str, run: str, *, head: str = "", check: str = ":") -> None:
        """Write one leg; `name` with its number, `run` and `check` as shell."""
        (self.folder / f"{name}.sh").write_text(
            f'leg_title="{name}"\n{head}\nleg_check() {{\n{check}\n}}\nleg_run() {{\n{run}\n}}\n', encoding="utf-8"
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, list[str]]:
        """Exit code and output lines (both streams, without the empty ones)."""
        done = subprocess.run(
            ["bash", str(ROOT / "scripts/test"), *arguments],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, [line for line in done.stdout.splitlines() if line.strip()]


@pytest.fixture
def legs(tmp_path: Path) -> Legs:
    return Legs(tmp_path)


def row(lines: list[str], name: str) -> str:
    """The line of the final table about leg `name`."""
    start = next(at for at, line in enumerate(lines) if re.match(r"leg +result +seconds", line))
    return next(line for line in lines[start:] if line.startswith(name + " "))


def test_legs_run_in_the_order_of_their_numbers_and_the_last_line_counts(legs: Legs) -> None:
    """All pass: exit 0, and the closing line is the plain one that machines read."""
    legs.add("20-second", "echo two")
    legs.add("10-first", "echo one")
    code, lines = legs.run()
    assert code == 0
    assert lines.index("one") < lines.index("two")
    assert lines[-1] == "2 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("run", ["false", "false\necho went on", "exit 3", "true | false", 'echo "$undefined"'])
def test_a_leg_fails_at_its_first_failing_command(legs: Legs, run: str) -> None:
    """No failure is lost in the middle of a leg, in a pipe, or in an unset variable."""
    legs.add("10-bad", run)
    legs.add("20-good", "echo still runs")
    code, lines = legs.run()
    assert code == 1
    assert "went on" not in lines
    assert "still runs" in lines
    assert "FAILED" in row(lines, "bad")
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


def test_a_leg_that_cannot_run_is_listed_with_its_reason(legs: Legs) -> None:
    """On a developer's machine that is no failure, but it is said."""
    legs.add("10-gpu", "echo never", check='leg_skip "no GPU in this machine"')
    code, lines = legs.run()
    assert code == 0
    assert "never" not in lines
    assert "no GPU in this machine" in row(lines, "gpu")
    assert lines[-1] == "0 passed, 0 failed, 1 skipped"


def test_on_ci_a_leg_that_cannot_run_fails_unless_the_list_says_why(legs: Legs) -> None:
    """CI has no silent gaps: only what not-on-ci.txt names with a reason may be left out."""
    legs.add("10-gpu", ":", check='leg_skip "no GPU in this machine"')
    legs.add("20-net", ":", check='leg_skip "no network"')
    (legs.folder / "not-on-ci.txt").write_text("# head\ngpu: CI machines have no GPU\n", encoding="utf-8")
    code, lines = legs.run(CI="true")
    assert code == 1
    assert "allowed on CI: CI machines have no GPU" in row(lines, "gpu")
    assert "FAILED" in row(lines, "net")
    assert lines[-1] == "0 passed, 1 failed, 1 skipped"


def test_a_leg_over_its_limit_is_stopped_and_failed(legs: Legs) -> None:
    """A hanging leg costs its limit, not the whole run; its endings still happen."""
    legs.add("10-hangs", "leg_at_end bye\nsleep 40", head='leg_limit=1\nbye() { echo "cleaned up"; }')
    legs.add("20-next", "echo next")
    began = time.monotonic()
    code, lines = legs.run()
    assert time.monotonic() - began < 20
    assert code == 1
    assert "cleaned up" in lines
    assert "stopped after its limit of 1 s" in row(lines, "hangs")
    assert "passed" in row(lines, "next")


def test_the_common_limit_shortens_legs_and_is_said(legs: Legs) -> None:
    """Without time left a leg is failed, never taken as passed."""
    legs.add("10-slow", "sleep 40", head="leg_limit=30")
    legs.add("20-late", "echo late")
    code, lines = legs.run(VLLMETER_TEST_LIMIT="6")
    assert code == 1
    # What was left when the leg began: a busy machine may have used some of the six seconds.
    assert re.search(r"stopped after its limit of [2-6] s", row(lines, "slow"))
    assert "no time left" in row(lines, "late")
    assert "late" not in lines


def test_what_a_leg_leaves_running_is_ended_and_named(legs: Legs) -> None:
    """A forgotten server of one leg must not answer the next one."""
    legs.add("10-forgets", 'sleep 300 &\necho "pid $!"')
    code, lines = legs.run()
    assert code == 0
    pid = next(int(line.removeprefix("pid ")) for line in lines if line.startswith("pid "))
    assert "left processes behind" in row(lines, "forgets")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_leg_by_name_and_an_unknown_name_is_refused(legs: Legs) -> None:
    """A misspelt name is an error that lists the names, not an empty green run."""
    legs.add("10-one", "echo one")
    legs.add("20-two", "echo two")
    code, lines = legs.run("--leg", "two")
    assert code == 0
    assert "one" not in lines
    code, lines = legs.run("--leg", "three")
    assert code == 2
    assert "no leg is called three; there are: one two" in lines[-1]


def test_fast_takes_only_the_legs_that_say_so(legs: Legs) -> None:
    """--fast is a choice of the legs' authors, written in the leg."""
    legs.add("10-quick", "echo quick", head="leg_fast=yes")
    legs.add("20-long", "echo long")
    _, lines = legs.run("--fast")
    assert lines[-1] == "1 passed, 0 failed, 0 skipped"
    assert "quick" in lines


def test_the_closing_line_of_pytest_stands_in_the_table(legs: Legs) -> None:
    """How many tests a leg stands for can be read at the end."""
    legs.add("10-unit", "echo '======= 736 passed, 1 skipped in 31.06s ======='")
    _, lines = legs.run()
    assert row(lines, "unit").endswith("736 passed, 1 skipped in 31.06s")


def test_list_runs_nothing_and_says_what_cannot_run(legs: Legs) -> None:
    """--list answers what there is, and which legs this machine lacks something for."""
    legs.add("10-gpu", "echo ran", check='leg_skip "no GPU in this machine"')
    code, lines = legs.run("--list")
    assert code == 0
    assert "ran" not in lines
    assert any("cannot run here: no GPU in this machine" in line for line in lines)


def test_an_interrupt_ends_the_running_leg(legs: Legs, tmp_path: Path) -> None:
    """Ctrl-C stops what the leg started, and the exit code says so."""
    pid_file = tmp_path / "pid"
    legs.add("10-long", f"sleep 300 &\necho $! >{pid_file}\nwait")
    process = subprocess.Popen(
        ["bash", str(ROOT / "scripts/test")],
        env=legs.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < deadline, "the leg did not start"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_every_leg_is_documented_and_says_what_scripts_test_reads() -> None:
    """docs/testing.md has a row per leg; a title or limit that is no literal would be read as nothing."""
    page = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "scripts/legs").glob("[0-9][0-9]-*.sh"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert re.search(r'^leg_title="[^"$]{10,}"$', text, re.MULTILINE), f"{file.name}: no literal leg_title"
        assert re.search(r"^leg_limit=[0-9]+$", text, re.MULTILINE), f"{file.name}: no literal leg_limit"
        assert re.search(rf"^\| {re.escape(file.stem[3:])} \|", page, re.MULTILINE), (
            f"{file.name}: not in docs/testing.md"
        )
