"""Reads a configuration file strictly: every mistake is reported at once, with file, line, key and what is accepted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.constructor import SafeConstructor

from vllmeter.config.settings import Settings

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_MOST_VALUES: Final = 100_000
"""Values of a file with its aliases written out; a real one for 200 servers has a few thousand."""
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's reader where PyYAML was built with it, as its wheels are: the same nodes and lines, but fast."""
_UNREADABLE: Final = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML raises for values that are not what their tag says: ``!!bool 5`` is a KeyError."""


class ConfigError(Exception):
    """One or more mistakes in a configuration; ``str()`` is what a person should read.

    ``problems`` holds one line per mistake, each beginning with ``FILE:LINE:``.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


def load_config(path: Path) -> Settings:
    """Reads and checks ``path``.

    :raises ConfigError: the file cannot be read or has mistakes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            [f"{path}: no such file. `vllmeter init` writes one; without a file vLLM processes of this host are found."]
        ) from error
    except IsADirectoryError as error:
        raise ConfigError(
            [f"{path}: is a folder; give the configuration file itself, such as {path / 'vllmeter.yaml'}"]
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from error
    return parse_config(text, str(path))


def parse_config(text: str, name: str = "vllmeter.yaml") -> Settings:
    """Checks the text of a configuration file called ``name``.

    :raises ConfigError: with every mistake found.
    """
    return parse_model(text, name, Settings)


def parse_model(text: str, name: str, model: type[Model], *, show: bool = True) -> Model:
    """Checks YAML text against a model; ``show`` False keeps values that were given out of the messages.

    :raises ConfigError: with every mistake found.
    """
    try:
        node = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError([f"{name}:{line}: not valid YAML: {error.problem or error.context}"]) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError([f"{name}:1: not valid YAML: {error}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{name}:1: nested too deeply"]) from error
    lines: dict[KeyPath, int] = {}
    problems: list[str] = []
    data: Any = {} if node is None else _build(node, (), lines, problems, name)
    if not isinstance(data, dict):
        example = next(iter(model.model_fields)) if model is not Settings else "servers"
        raise ConfigError([f"{name}:1: expected settings like `{example}:`, found {_kind(data)}"])
    try:
        settings = model.model_validate(data)
    except ValidationError as error:
        problems.extend(_explain(error, name, lines, model, show=show))
    if problems:
        raise ConfigError(sorted(set(problems), key=_line_of))
    return settings


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeError):
        return yaml.compose(text, Loader=yaml.SafeLoader)  # it says better what is wrong


def _line_of(problem: str) -> tuple[int, str]:
    number = problem.split(":", 2)[1]
    return (int(number) if number.isdigit() else 0, problem)


def _build(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], problems: list[str], name: str) -> Any:
    """Plain data from a YAML node, noting the line of each key and every key given twice.

    Aliases share nodes; a node that contains itself cannot be data and is refused by the depth limit.
    """
    lines[path] = node.start_mark.line + 1
    if len(lines) > _MOST_VALUES:
        raise ConfigError([f"{name}:{lines[path]}: more than {_MOST_VALUES} values; do aliases repeat one another?"])
    if len(path) > 20:
        problems.append(f"{name}:{lines[path]}: nested too deeply")
        return None
    if isinstance(node, yaml.MappingNode):
        result: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key_node, yaml.ScalarNode) or not isinstance(key, Hashable):
                where = f"{_dotted(path)}: " if path else ""
                problems.append(f"{name}:{line}: {where}a key is text, not a list or a mapping")
                continue
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = _build(value_node, (*path, "<<"), lines, problems, name)
                for part in merged if isinstance(merged, list) else [merged]:
                    if isinstance(part, dict):
                        for merged_key, merged_value in part.items():
                            result.setdefault(merged_key, merged_value)
                            lines.setdefault((*path, str(merged_key)), line)
                continue
            here = (*path, str(key))
            if here in lines and key in result and not _from_merge(node, key):
                problems.append(f"{name}:{line}: {_dotted(here)}: given twice (first in line {lines[here]})")
            result[key] = _build(value_node, here, lines, problems, name)
            lines[here] = line
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, number), lines, problems, name) for number, item in enumerate(node.value)]
    return _scalar(node)


def _from_merge(node: yaml.MappingNode, key: Hashable) -> bool:
    own = [k for k, _ in node.value if k.tag != "tag:yaml.org,2002:merge" and _scalar(k) == key]
    return len(own) < 2


def _scalar(node: yaml.Node) -> Any:
    try:
        return SafeConstructor().construct_object(node, deep=True)
    except _UNREADABLE:
        # A tag like !!python/object or an impossible date: kept as text, the model says what it wanted.
        return str(getattr(node, "value", ""))


def _explain(
    error: ValidationError, name: str, lines: dict[KeyPath, int], root: type[BaseModel], *, show: bool
) -> list[str]:
    problems = []
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(item["loc"])
        line = _nearest(path, lines)
        kind, where = item["type"], _dotted(path)
        if kind == "extra_forbidden":
            accepted = _accepted(path[:-1], root)
            close = difflib.get_close_matches(str(path[-1]), accepted, n=1, cutoff=0.6)
            hint = f"; did you mean `{close[0]}`?" if close else ""
            problems.append(f"{name}:{line}: {where}: unknown key{hint} Accepted: {', '.join(accepted)}")
        elif kind == "missing":
            problems.append(f"{name}:{line}: {where}: missing; {_describe(path, root)}")
        else:
            text = _plain(kind, path, item["input"], root) or str(item["msg"]).removeprefix("Value error, ")
            given = (
                f" (given: {item['input']!r})"
                if show and _showable(item["input"]) and repr(item["input"]) not in text
                else ""
            )
            prefix = f"{where}: " if where and not text.startswith("servers[") else ""
            if text.startswith("servers["):
                # A model-wide check names the place itself: point at that line.
                line = _nearest(_parse_dotted(text.partition(":")[0]), lines)
            problems.append(f"{name}:{line}: {prefix}{text}{given}")
    return problems


def _plain(kind: str, path: KeyPath, given: object, root: type[BaseModel]) -> str | None:
    """The mistakes that people make most, in words of the file instead of the validator's; None = its own words."""
    if kind in ("tuple_type", "list_type"):
        return f"expected a list, each entry on a line of its own that begins with `- `; found {_kind(given)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = _accepted(path, root)
        example = f"`{path[-1]}: {{{keys[0]}: …}}`" if keys and path and isinstance(path[-1], str) else "`key: value`"
        return f"expected keys below it, such as {example}, found {_kind(given)}. Accepted: {', '.join(keys)}"
    if kind == "string_type":
        quoted = "; YAML reads on, off, yes and no so, unless they stand in quotes" if isinstance(given, bool) else ""
        return f"expected text, found {_kind(given)}{quoted}"
    if kind == "less_than_equal" and path[-1] == "fraction" and isinstance(given, int | float) and 2 <= given <= 100:
        return f"a fraction is a share from 0 to 1: write {given / 100:g} for {given:g} %"
    return None


def _parse_dotted(text: str) -> KeyPath:
    out: list[str | int] = []
    for part in text.replace("[", ".").replace("]", "").split("."):
        out.append(int(part) if part.isdigit() else part)
    return tuple(out)


def _nearest(path: KeyPath, lines: dict[KeyPath, int]) -> int:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _model_at(path: KeyPath, root: type[BaseModel]) -> type[BaseModel] | None:
    """The settings model that the keys at ``path`` belong to."""
    model: type[BaseModel] | None = root
    for part in path:
        if isinstance(part, int):
            continue
        if model is None or part not in model.model_fields:
            return None
        model = _model_in(model.model_fields[part].annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def _accepted(path: KeyPath, root: type[BaseModel]) -> list[str]:
    model = _model_at(path, root)
    return sorted(model.model_fields) if model else []


def _describe(path: KeyPath, root: type[BaseModel]) -> str:
    model = _model_at(path[:-1], root)
    if model and path and path[-1] in model.model_fields:
        return (model.model_fields[str(path[-1])].description or "").rstrip(".")
    return "it is required"


_CREDENTIALS = re.compile(r"//[^/@\s]*@")


def _showable(value: object) -> bool:
    """Values that help when shown; never ones that hold credentials (messages end up in logs and tickets)."""
    return isinstance(value, str | int | float | bool) and len(str(value)) < 80 and not _CREDENTIALS.search(str(value))


def _kind(value: object) -> str:
    return {
        list: "a list",
        dict: "keys with values",
        str: "text",
        int: "a number",
        float: "a number",
        bool: "a truth value",
        type(None): "nothing",
    }.get(type(value), "something else")
