"""Reads the single bodies of tests/captures/bodies."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "captures" / "bodies"
_MARK = "# capture: "


@dataclass(frozen=True)
class Body:
    """A body as the server sent it, with what is known about it."""

    name: str
    text: str
    about: tuple[str, ...]
    content_type: str

    @property
    def openmetrics(self) -> bool:
        """Whether the server answered OpenMetrics."""
        return self.content_type.startswith("application/openmetrics-text")


def names() -> list[str]:
    """Names of all bodies, for parametrised tests."""
    return sorted(path.name.removesuffix(".gz") for path in FOLDER.glob("*.gz"))


def load(name: str) -> Body:
    """One body by its file name without ``.gz``."""
    lines = gzip.decompress((FOLDER / f"{name}.gz").read_bytes()).decode().splitlines(keepends=True)
    about = [line.removeprefix(_MARK).strip() for line in lines if line.startswith(_MARK)]
    content_type = next(line.removeprefix("content-type: ") for line in about if line.startswith("content-type: "))
    return Body(name, "".join(lines[len(about) :]), tuple(about), content_type)
