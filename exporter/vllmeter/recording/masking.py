"""Takes out of a recording what is nobody's business: credentials, people, hosts, addresses (pure).

Names of metrics and labels are never touched, only label values, command lines, environment values and paths; the same
text always becomes the same mask, so that command lines, labels and processes still belong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from vllmeter.snapshot import HostProcess, ProcessTable

MASKED: Final = "masked"
WHAT: Final = (
    "API keys, tokens and passwords (command lines, environment, labels)",
    "home folders and user names in paths",
    "host names",
    "IP addresses other than loopback",
)
"""What a masked recording says in its header."""

_SECRET_NAME: Final = re.compile(
    r"(?:^|[_.\-])(?:api[_\-]?keys?|token|secret|passwords?|passwd|authorization|credentials?|private[_\-]?key)$",
    re.IGNORECASE,
)
_SECRET_VALUES: Final = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_\-]{12,}"
    r"|\bhf_[A-Za-z0-9]{16,}"
    r"|\b(?:ghp|gho|ghu|ghs|ghr|glpat|xox[abp])[_\-][A-Za-z0-9_\-]{16,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"
    r"|(?<=[Bb]earer )[^\s\"\\]+"
    r"|(?<=://)[^/\s:@\"]+:[^/\s@\"]+(?=@)"
)
_HOMES: Final = re.compile(r"/(?:home|Users)/[^/\s\"':\\]+|/root(?=[/\s\"':]|$)")
_ADDRESS: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_PLAIN_ADDRESSES: Final = ("127.", "0.0.0.0", "255.")  # noqa: S104 - compared with, never listened on


class Masker:
    """Masks texts of one machine.

    :param hosts: names of this host; whole words are replaced wherever a value holds them
    :param words: anything else that must not appear (user names, project names)
    """

    def __init__(self, hosts: Sequence[str] = (), words: Sequence[str] = ()) -> None:
        self._addresses: dict[str, str] = {}
        self._steps: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = [
            (_SECRET_VALUES, lambda _: MASKED),
            (_HOMES, lambda _: "/home/user"),
            (_ADDRESS, self._address),
        ]
        names = sorted({h for h in hosts if len(h) > 2 and h != "localhost"}, key=len, reverse=True)
        if names:
            self._steps.append((_whole_words(names), lambda _: "host"))
        extra = sorted({w for w in words if w}, key=len, reverse=True)
        if extra:
            self._steps.append((_whole_words(extra), lambda _: MASKED))
        self._seen: dict[str, str] = {}

    def text(self, value: str) -> str:
        """One value (a label value, an argument, a path) with everything masked."""
        for pattern, replacement in self._steps:
            value = pattern.sub(replacement, value)
        return value

    def body(self, body: bytes) -> bytes:
        """An exposition body: label values are masked, everything else stays byte for byte."""
        text = body.decode("utf-8", "surrogateescape")
        lines = text.split("\n")
        changed = False
        for number, line in enumerate(lines):
            brace = line.find("{")
            if brace < 0 or line.startswith("#"):
                continue
            end = line.rfind("}") + 1
            labels = line[brace:end]
            masked = self._seen.get(labels)
            if masked is None:
                masked = _LABEL.sub(self._label, labels)
                if len(self._seen) > 20_000:
                    self._seen.clear()
                self._seen[labels] = masked
            if masked != labels:
                lines[number] = line[:brace] + masked + line[end:]
                changed = True
        return "\n".join(lines).encode("utf-8", "surrogateescape") if changed else body

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command line: what follows a secret option (up to the next option) is masked too."""
        out: list[str] = []
        hiding = False
        for word in argv:
            name, equals, _ = word.partition("=")
            if word.startswith("-"):
                hiding = bool(_SECRET_NAME.search(name.lstrip("-"))) and not equals
                if equals and _SECRET_NAME.search(name.lstrip("-")):
                    out.append(f"{name}={MASKED}")
                else:
                    out.append(self.text(word))
            elif hiding:
                out.append(MASKED)
            elif equals and _SECRET_NAME.search(name):
                out.append(f"{name}={MASKED}")
            else:
                out.append(self.text(word))
        return tuple(out)

    def settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Named values (environment, flags): those with a secret name are masked whole."""
        return {name: MASKED if _SECRET_NAME.search(name) else self.text(value) for name, value in settings.items()}

    def process(self, item: HostProcess) -> HostProcess:
        """One process."""
        return replace(
            item,
            argv=None if item.argv is None else self.argv(item.argv),
            environ=None if item.environ is None else self.settings(item.environ),
            cgroup=None if item.cgroup is None else self.text(item.cgroup),
            absent={name: self.text(reason) for name, reason in item.absent.items()},
        )

    def table(self, table: ProcessTable) -> ProcessTable:
        """A process table.  Of a namespace's own addresses only loopback stays: the others name a machine."""
        return replace(
            table,
            processes={pid: self.process(item) for pid, item in table.processes.items()},
            namespace_addresses={
                inode: tuple(a for a in addresses if a.startswith(_PLAIN_ADDRESSES) or a == "::1")
                for inode, addresses in table.namespace_addresses.items()
            },
        )

    def _label(self, found: re.Match[str]) -> str:
        name, value = found.groups()
        return f'{name}="{MASKED if _SECRET_NAME.search(name) else self.text(value)}"'

    def _address(self, found: re.Match[str]) -> str:
        address = found.group()
        if address.startswith(_PLAIN_ADDRESSES):
            return address
        # RFC 5737's block for documentation: nobody's address.
        return self._addresses.setdefault(address, f"192.0.2.{len(self._addresses) % 254 + 1}")


def _whole_words(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile(
        r"(?<![A-Za-z0-9\-])(?:" + "|".join(re.escape(name) for name in names) + r")(?![A-Za-z0-9\-])", re.IGNORECASE
    )
