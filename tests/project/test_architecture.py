"""Import directions: a pure core, input and output at the edges, one place that wires."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "exporter" / "vllmeter"

IO_MODULES = {
    "asyncio",
    "http",
    "httpx",
    "pynvml",
    "requests",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "urllib3",
    "uvicorn",
    "fastapi",
    "shutil",
}

PURE = (
    "snapshot.py",
    "catalogue.py",
    "join.py",
    "evidence.py",
    "store.py",
    "exposition/",
    "upstream/",
    "windows/",
    "render/",
    "discovery/merge.py",
    "memory/",
    "host/cgroup.py",
    "scrape/outcome.py",
    "scrape/target.py",
    "config/settings.py",
    "config/values.py",
)
"""Modules that read no file, no socket, no clock and no environment; what they need comes in as arguments."""

ONLY_IN = {
    "pynvml": ("gpu/",),
    "uvicorn": ("web/server.py",),
    "fastapi": ("web/",),
    "numpy": ("runs/",),
    "yaml": ("config/load.py", "memory/compose_file.py", "wiring.py", "demo/", "cli/", "discovery/", "web/", "runs/"),
}
"""third-party module -> the only places that may import it"""

LAYERS = {
    "snapshot.py": (),
    "catalogue.py": (),
    "exposition/": (),
    "windows/": ("snapshot",),
    "upstream/": ("snapshot", "catalogue", "exposition"),
    "memory/": ("snapshot", "config"),
    "gpu/": ("snapshot",),
    "host/": ("snapshot", "memory"),
    "render/": ("snapshot", "catalogue"),
    "config/": (),
    "scrape/": ("snapshot", "config", "exposition", "upstream", "render"),
    "recording/": ("snapshot", "config", "gpu", "host", "memory", "scrape", "exposition", "upstream"),
    "discovery/": ("config", "host", "snapshot", "memory", "scrape"),
}
"""part -> parts of the package that it may import (beside itself)"""


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "assets" not in p.parts)


def imported(path: Path) -> set[str]:
    """Dotted names of everything that a module imports, at its top or inside functions, except for typing only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            typing_only.update(ast.walk(node))
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "vllmeter")
    return names


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_pure_modules_do_no_io(path: Path) -> None:
    """The core can be tested without mocks because it touches nothing."""
    if not relative(path).startswith(PURE):
        return
    assert not {name.partition(".")[0] for name in imported(path)} & IO_MODULES
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    forbidden = {"open", "time.time", "time.monotonic", "datetime.now", "os.getenv", "print"}
    assert not calls & forbidden


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_third_party_modules_stay_where_they_belong(path: Path) -> None:
    """pynvml only in gpu/, fastapi only in web/, numpy only where runs are compared, …"""
    tops = {name.partition(".")[0] for name in imported(path)}
    for module, places in ONLY_IN.items():
        if module in tops:
            assert relative(path).startswith(places), f"{relative(path)} imports {module}"


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_layers_import_downwards_only(path: Path) -> None:
    """Each part imports only the parts that the layer table allows."""
    place = relative(path)
    for layer, allowed in LAYERS.items():
        if not place.startswith(layer):
            continue
        own = layer.rstrip("/").removesuffix(".py")
        for name in imported(path):
            if name.startswith("vllmeter."):
                part = name.split(".")[1]
                if part in ("__version__",):
                    continue
                assert part in {own, *allowed}, f"{place} imports vllmeter.{part}"


def test_only_the_wiring_and_the_cli_know_everything() -> None:
    """The wiring is imported by the CLI alone, the CLI by __main__ alone."""
    for path in modules():
        place = relative(path)
        names = imported(path)
        if "vllmeter.wiring" in names:
            assert place.startswith("cli/"), place
        if any(name.startswith("vllmeter.cli") for name in names):
            assert place.startswith(("cli/", "__main__.py")), place


def test_serve_does_not_load_numpy_or_the_test_tools() -> None:
    """A small exporter stays small: heavy modules are loaded by the commands that need them."""
    import subprocess

    code = (
        "import sys, vllmeter.cli.app, vllmeter.wiring, vllmeter.web.app, uvicorn;"
        "print(*sorted({'numpy','matplotlib','rich.live','pytest'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert out.stdout.split() == []
