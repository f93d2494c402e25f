"""Where the blocks of the tests are kept, and which Prometheus programs are there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grafana import recorded

OLD = "2.42"
NEW = "3"


def cache() -> Path:
    """As the scripts have it: $XDG_CACHE_HOME/vllmeter."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllmeter"


def program(name: str, version: str) -> Path | None:
    """prometheus or promtool: Debian's (2.x), or the one built by tools/go (3.x)."""
    if version == OLD:
        found = shutil.which(name, path="/usr/bin:/usr/local/bin:" + os.environ.get("PATH", ""))
        return Path(found) if found else None
    own = os.environ.get(f"VLLMETER_{name.upper()}3")
    if own:
        return Path(own)
    built = sorted((cache() / "tools").glob(f"{name}-3.*/{name}"))
    return built[-1] if built else None


def needed(name: str, version: str) -> Path:
    """The same, or the test is skipped with the reason."""
    found = program(name, version)
    if found is None:
        how = "Debian package prometheus" if version == OLD else "scripts/lib/tools.sh builds it with Go"
        pytest.skip(f"{name} {version} is not here ({how})")
    return found


def _hash(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode())
    inputs = [
        recorded.RECORDING,
        recorded.CLIENT,
        *sorted((recorded.CAPTURES / "logs").glob("*.log")),
        *sorted((recorded.ROOT / "exporter" / "vllmeter").rglob("*.py")),
        *sorted(recorded.RULES.glob("*.yaml")),
        *sorted(recorded.ALERTS.glob("*.alerts.yaml")),
        *(recorded.ROOT / "tests" / "grafana" / name for name in ("recorded.py", "day.py", "stores.py")),
        recorded.ROOT / "tests" / "fakes" / "stepper.py",
    ]
    for path in inputs:
        digest.update(path.name.encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:16]


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept(name: str, make: Callable[[Path], None], *parts: str) -> Path:
    """A folder of blocks made by ``make``; made once for the same inputs, older ones of the same name are removed."""
    root = cache() / "grafana-tests"
    place = root / f"{name}-{_hash(name, *parts)}"
    with _alone(place):
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            for old in root.glob(f"{name}-*"):
                if old.is_dir() and old != place and time.time() - old.stat().st_mtime > 3600:
                    shutil.rmtree(old, ignore_errors=True)
            place.mkdir(parents=True)
            make(place)
            (place / "done").write_text("")
    return place


@contextmanager
def copied(blocks: Path) -> Iterator[Path]:
    """A copy that a Prometheus may write into."""
    folder = Path(tempfile.mkdtemp(prefix="vllmeter-grafana-"))
    try:
        for one in blocks.iterdir():
            if one.is_dir() and (one / "meta.json").exists():
                shutil.copytree(one, folder / one.name)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def recording(*hosts: str) -> Path:
    """Blocks of the recording (played on each of ``hosts`` at once), with ``facts.json``."""
    tool, server = needed("promtool", OLD), needed("prometheus", OLD)

    def make(place: Path) -> None:
        played = recorded.build(tool, server, place, hosts)
        recorded.save_facts(played, place / "facts.json")
        shutil.rmtree(place.parent / (place.name + "-scratch"), ignore_errors=True)

    return kept("recording-" + "-".join(hosts), make, *hosts)


def facts(place: Path) -> dict[str, object]:
    """Times and phases of a recording's blocks."""
    document: dict[str, object] = json.loads((place / "facts.json").read_text(encoding="utf-8"))
    return document
