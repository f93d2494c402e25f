"""Damage to documents: nodes replaced, dropped, doubled, retyped; characters that should not be there."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from fuzz.source import Source

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

WORDS = (
    "None", "True", "0.9", "auto", "-1", "1e400", "[]", "{}", "é", "\x00", "9" * 40, "9" * 5000, "a: b", "${X}", "&a",
    "*a", "!!x", "²", "١", "on", "22:22", "1_0", "0o7", "p100",
)  # fmt: skip
KEYS = (
    "x",
    "url",
    "name",
    "servers",
    "services",
    "command",
    "metrics",
    "value",
    "p100",
    "p²",
    "p(200)",
    "p9.9.9_ttft_ms",
    "",
)


def odd(source: Source) -> Any:
    """A value that is likely to be wrong where it is put."""
    return source.pick(
        (None, True, 0, -1, 1.5, 1e308, "", "x", [], {}, [[]], {"a": None}, 10**30, 10**400, float("inf"), *WORDS)
    )


def mutate(source: Source, value: Any, depth: int = 0) -> Any:
    """The document with some nodes replaced, dropped, doubled or retyped; often unchanged."""
    if depth > 8 or source.empty:
        return value
    if isinstance(value, dict) and value:
        out = {key: mutate(source, item, depth + 1) for key, item in value.items()} if source.often(2) else dict(value)
        if not source.often(10):
            key = source.pick(list(out))
            action = source.number(4)
            if action == 0:
                del out[key]
            elif action == 1:
                out[key] = odd(source)
            elif action == 2:
                out[source.pick(KEYS)] = out[key]
            else:
                out[key] = [out[key], copy.copy(out[key])]
        return out
    if isinstance(value, list) and value:
        out_list = [mutate(source, item, depth + 1) for item in value[:40]]
        if not source.often(10):
            out_list[source.number(len(out_list))] = odd(source)
        return out_list
    return value if source.often(40) else odd(source)


_PIECES = (
    ":", "-", "\t", "{", "&a ", "*a", "<<: ", "!!python/object:x ", "\n", "'", "!!bool ", "!!timestamp ", "? ", "[a]: ",
    "!!set ", "#", "|", ">", "%", "\x85", "!reset ", "[" * 2000,
)  # fmt: skip


def damaged_text(source: Source, text: str) -> str:
    """The text with a piece of syntax put in somewhere."""
    at = source.number(len(text) + 1)
    return text[:at] + source.pick(_PIECES) + text[at:]


def as_yaml(source: Source, document: Any) -> str:
    """The document in one of YAML's styles."""
    return str(
        yaml.dump(
            document,
            Dumper=DUMPER,
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=source.pick((False, True, None)),
            default_style=source.pick((None, None, '"')),
        )
    )
