"""Typed access to the JSON and CSV of result files, with errors that name the field or line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllmeter.runs.results import ResultFileError

MAX_BYTES: Final = 2 * 1024**3
"""Unpacked size above which a file is refused: a guard against a wrong file, not a limit of the formats."""


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A result file as text, with what detection needs."""

    path: str
    text: str

    @property
    def first_line(self) -> str:
        """First line that is not blank."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    def fail(self, place: str, cause: str, remedy: str) -> ResultFileError:
        """An error about this file, to be raised by the caller."""
        return ResultFileError(self.path, place, cause, remedy)


def open_result(path: Path) -> ResultFile:
    """Reads ``path`` (plain or gzip) as UTF-8.

    Raises :class:`ResultFileError` when it is missing, empty, too large, not text or a broken gzip file.
    """
    name = str(path)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ResultFileError(name, "", "no such file", "Give the path of the tool's result file") from None
    except IsADirectoryError:
        raise ResultFileError(name, "", "is a folder", "Give the result file inside it") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise ResultFileError(name, "", f"broken gzip data ({error})", "Copy the file again from its source") from None
    except OSError as error:
        raise ResultFileError(
            name, "", f"cannot be read ({error.strerror or error})", "Check its permissions"
        ) from None
    if len(data) > MAX_BYTES:
        raise ResultFileError(
            name, "", f"is larger than {MAX_BYTES // 1024**3} GiB unpacked", "Import the tool's summary file instead"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ResultFileError(
            name, f"byte {error.start}", "is not UTF-8 text", "Give the JSON or CSV file that the tool wrote"
        ) from None
    if not text.strip():
        raise ResultFileError(name, "", "is empty", "The tool may still be running or may have failed; run it again")
    return ResultFile(name, text)


def is_finite(value: object) -> bool:
    """Whether a JSON value is a number that a float can hold (JSON knows whole numbers of any size)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


_CUT_OFF: Final = "The file may be cut off: let the tool finish, then import it again"


def percentile(text: str) -> float | None:
    """0.99 from ``99``, 0.999 from ``99.9``; None for what is no percentage from 0 to 100."""
    if not re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,9})?", text) or float(text) > 100:
        return None
    return round(float(text) / 100, 9)


def parse_json(file: ResultFile) -> Any:
    """The file as one JSON value; the error names line and column."""
    return decode(file, file.text, None, _CUT_OFF)


def decode(file: ResultFile, text: str, line: int | None, remedy: str) -> Any:
    """One JSON value: the whole file, or its ``line``; the error names the place."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {line or error.lineno}, column {error.colno}"
        raise file.fail(place, f"not valid JSON ({error.msg})", remedy) from None
    except (RecursionError, ValueError):
        # Python reads no whole number of more than 4300 digits, and no nesting without end
        place = f"line {line}" if line else ""
        raise file.fail(place, "holds a number or a nesting that no tool writes", remedy) from None


class Node:
    """A JSON object with its path, so that a wrong field can be named."""

    def __init__(self, file: ResultFile, value: Mapping[str, Any], path: str = "") -> None:
        self.file, self.value, self.path = file, value, path

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _wrong(self, key: str, wanted: str, found: Any) -> ResultFileError:
        shown = json.dumps(found, default=str)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        return self.file.fail(
            f"field {self._path(key)}",
            f"should be {wanted}, found {shown}",
            "The file may be damaged or from a version of the tool that is not known here",
        )

    def has(self, *keys: str) -> bool:
        return all(key in self.value for key in keys)

    def number(self, key: str) -> float | None:
        """A finite number, or None where the field is missing or null (NaN counts as missing)."""
        found = self.value.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self._wrong(key, "a number", found)
        return float(found) if is_finite(found) else None

    def integer(self, key: str) -> int | None:
        found = self.number(key)
        return None if found is None else round(found)

    def text(self, key: str) -> str | None:
        found = self.value.get(key)
        if found is None:
            return None
        if isinstance(found, (dict, list)):
            raise self._wrong(key, "text", found)
        return str(found)

    def node(self, key: str) -> Node | None:
        found = self.value.get(key)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self._wrong(key, "an object", found)
        return Node(self.file, found, self._path(key))

    def nodes(self, key: str) -> list[Node]:
        """A list of objects; [] where missing or null."""
        return [self._element(key, index, found) for index, found in enumerate(self.items(key))]

    def _element(self, key: str, index: int, found: Any) -> Node:
        if not isinstance(found, dict):
            raise self._wrong(f"{key}[{index}]", "an object", found)
        return Node(self.file, found, f"{self._path(key)}[{index}]")

    def items(self, key: str) -> Sequence[Any]:
        found = self.value.get(key)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self._wrong(key, "a list", found)
        return found

    def numbers(self, key: str, length: int | None = None) -> list[float]:
        """A list of numbers; with ``length`` a list of another length is an error."""
        found = self.items(key)
        for index, each in enumerate(found):
            if not is_finite(each):
                raise self._wrong(f"{key}[{index}]", "a finite number", each)
        if length is not None and len(found) != length:
            raise self._wrong(key, f"a list of {length} numbers", f"{len(found)} entries")
        return [float(each) for each in found]


@dataclass(frozen=True, slots=True)
class Row:
    """One CSV row with its line number."""

    file: ResultFile
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """The cell as a finite number; None where empty, "N/A" or the column is missing."""
        text = self.text(column)
        if text in ("", "N/A", "None", "null"):
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.file.fail(
                f"line {self.line}, column {column!r}",
                f"should be a number, found {text[:40]!r}",
                "The file may be damaged: export it again",
            ) from None
        return value if math.isfinite(value) else None


def parse_csv(file: ResultFile, start: int = 1) -> Iterator[Row]:
    """Rows below the header at line ``start``; stops at the first blank line (files hold several tables)."""
    lines = file.text.splitlines()[start - 1 :]
    reader = csv.reader(io.StringIO("\n".join(lines)))
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells:
                return
            if header is None:
                header = [cell.strip() for cell in cells]
                continue
            if len(cells) != len(header):
                raise file.fail(
                    f"line {start - 1 + reader.line_num}",
                    f"has {len(cells)} columns, its header {len(header)}",
                    "The file may be cut off: export it again",
                )
            yield Row(file, start - 1 + reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise file.fail(f"line {start - 1 + reader.line_num}", f"not valid CSV ({error})", "Export it again") from None
