"""Read a vLLM server's command line as vLLM reads it, without running anything.

What counts was taken from vLLM's own parser and `vllm serve --help=all`
(see :mod:`vllmeter.memory.serve_flags`):

* underscores and dashes are equal in option names, up to the first dot; ``--a b`` and ``--a=b`` are equal;
* a unique prefix of a long option is that option (argparse abbreviation);
* of a repeated option the last wins, dotted ones are merged: ``--compilation-config.mode 3``, ``-cc.mode=3``;
* some integers are human-readable: lower case is decimal (``2g`` = 2,000,000,000), upper case is binary
  (``2G`` = 2,147,483,648, no decimals), ``GiB`` and ``GB`` are refused;
* the values of ``--config FILE`` come before those of the command line, so the command line wins;
* ``-O2``, ``-O=2`` and ``-O 2`` are ``--optimization-level 2``.

A wrong reading here would end up as a wrong budget, so what vLLM would refuse is a problem, not a guess.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from vllmeter.memory import serve_flags

Kind = Literal["none", "one", "many", "optional", "size"]
Value = str | bool | tuple[str, ...] | None

FLAG_LIST_VERSION: Final = serve_flags.VLLM_VERSION

OLDER_OPTIONS: Final[Mapping[str, tuple[Kind, str]]] = MappingProxyType(
    {
        "--swap-space": ("one", "removed by vLLM 0.18; V1 recomputes preempted requests and never swaps"),
        "--num-lookahead-slots": ("one", "removed; speculative decoding is set by --speculative-config"),
        "--max-seq-len-to-capture": ("one", "V0 only; use --max-cudagraph-capture-size (0.11.1 and later)"),
        "--cuda-graph-sizes": (
            "many",
            "vLLM 0.9.0 to 0.12 only; use --cudagraph-capture-sizes or --max-cudagraph-capture-size",
        ),
        "--task": ("one", "older releases; use --runner pooling (and --convert for a generative model)"),
        "--guided-decoding-backend": ("one", "older releases; see --structured-outputs-config"),
        "--num-scheduler-steps": ("one", "V0 only"),
        "--multi-step-stream-outputs": ("one", "V0 only"),
        "--scheduler-delay-factor": ("one", "V0 only"),
        "--preemption-mode": ("one", "V0 only; V1 always recomputes"),
        "--speculative-model": ("one", "V0 only; use --speculative-config"),
        "--num-speculative-tokens": ("one", "V0 only; use --speculative-config"),
        "--use-v2-block-manager": ("none", "V0 only"),
        "--disable-log-requests": ("none", "older releases; off is the default now (--enable-log-requests)"),
        "--disable-frontend-multiprocessing": ("none", "V0 only"),
        "--enable-reasoning": ("none", "older releases; --reasoning-parser is enough"),
        "--worker-use-ray": ("none", "V0 only; use --distributed-executor-backend ray"),
        "--engine-use-ray": ("none", "V0 only"),
        "--rope-scaling": ("one", "older releases; use --hf-overrides"),
        "--rope-theta": ("one", "older releases; use --hf-overrides"),
        "--quantization-param-path": ("one", "V0 only"),
        "--kv-cache-memory": (
            "size",
            "an abbreviation of --kv-cache-memory-bytes that vLLM's own log prints",
        ),
    }
)
"""Options of earlier releases: still read (the value matters on such a release), reported as absent from the
list of :data:`FLAG_LIST_VERSION`.  Exact end versions only where a source gave them."""

NEVER_EXISTED: Final[Mapping[str, tuple[Kind, str]]] = MappingProxyType(
    {
        "--prefix-caching-memory-percentage": (
            "one",
            (
                "never existed: the prefix cache has no quota, it lives in free KV blocks. "
                "Use --enable-prefix-caching (the default) and size the KV cache instead"
            ),
        ),
        "--cuda-graph-capture-size": (
            "many",
            (
                "never existed: use --max-cudagraph-capture-size N or --cudagraph-capture-sizes 1 2 4 … "
                "(vLLM 0.11.1 and later)"
            ),
        ),
    }
)

UNKNOWN_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "VLLM_CPU_OFFLOAD_GB": (
            "never existed, vLLM ignores it: weights go to the CPU with --cpu-offload-gb N, "
            "KV cache with --kv-offloading-size GIB (vLLM 0.11.1 and later)"
        ),
    }
)

_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {name: kind for names, kind in serve_flags.OPTIONS for name in names}  # type: ignore[misc]
)
_CANONICAL: Final[Mapping[str, str]] = MappingProxyType(
    {name: names[0] for names, _ in serve_flags.OPTIONS for name in names}
)
_SIZES: Final = frozenset(
    names[0].removeprefix("--").replace("-", "_") for names, kind in serve_flags.OPTIONS if kind == "size"
)
_DEEPEST: Final = 50
"""Parts of a dotted option, and levels of the JSON that they make up."""
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

API_SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"
CLI_MODULE: Final = "vllm.entrypoints.cli.main"


def human_readable_int(text: str) -> int:
    """Bytes or tokens from ``2g``, ``2G``, ``25.6k``, ``4096``; ValueError with the remedy otherwise.

    Source: the parser of vLLM (``2g`` is decimal, ``2G`` binary and without decimals).
    """
    text = text.strip()
    match = _SIZE.fullmatch(text)
    if match is not None:
        number, suffix = match.groups()
        if len(number) > 30:
            raise ValueError(f"a number of {len(number)} digits is no size")
        if suffix in _DECIMAL:
            return int(float(number) * _DECIMAL[suffix])
        if "." in number:
            raise ValueError(
                f"{text!r}: no decimals with the binary suffix {suffix}; write {number}{suffix.lower()} "
                "(decimal) or whole units"
            )
        return int(number) * _BINARY[suffix]
    try:
        return int(text)
    except ValueError:
        unit = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KkMmGgTt])i?[Bb]", text)
        hint = f"; write {unit.group(1)}{unit.group(2).upper()} (binary)" if unit else ""
        raise ValueError(f"{text!r} is not an integer as vLLM reads it (2g = 2e9, 2G = 2^31){hint}") from None


def _port(text: str | None) -> int | None:
    """None for what is no port that a server can be reached at."""
    if text is None or not re.fullmatch(r"\s*[0-9]{1,5}\s*", text) or not 0 < int(text) <= 65535:
        return None
    return int(text)


@dataclass(frozen=True, slots=True)
class FlagProblem:
    """Something in the command line that vLLM refuses, ignores, or that does not exist in the known list.

    ``kind``: ``never_existed``, ``older`` (existed in an earlier release), ``unknown`` (not in the list of
    :data:`FLAG_LIST_VERSION`; it may be newer), ``ambiguous``, ``value`` (bad or missing value), ``unused``
    (a positional that nothing takes), ``environment``.
    """

    kind: str
    flag: str
    message: str


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """A parsed server command.

    ``options`` maps the canonical long option without leading dashes, with underscores
    (``gpu_memory_utilization``), to its last value: a string, a tuple for list options, True/False for
    switches.  Dotted options are merged into the JSON text of their parent.
    ``entry``: ``serve`` (``vllm serve``), ``api_server`` (the old module) or ``arguments`` (an image with
    arguments only).
    """

    entry: str
    model: str | None
    options: Mapping[str, Value] = field(default_factory=dict)
    problems: tuple[FlagProblem, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config_file: str | None = None
    repeated: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        """The value of an option as text; the first one of a list; None when not given."""
        value = self.options.get(name)
        if isinstance(value, tuple):
            return value[0] if value else None
        return value if isinstance(value, str) else None

    def switch(self, name: str) -> bool | None:
        """The value of a switch; None when not given (then the release's default counts)."""
        value = self.options.get(name)
        return value if isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        """A decimal option; None when not given or unreadable (then a problem says so)."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            return None

    def integer(self, name: str) -> int | None:
        """An integer option, human-readable where vLLM reads it so; None when not given or unreadable."""
        text = self.text(name)
        if text is None:
            return None
        try:
            if name == "max_model_len" and text.strip().lower() in ("-1", "auto"):
                return -1
            return human_readable_int(text) if name in _SIZES else int(text)
        except ValueError:
            return None

    def nested(self, name: str) -> Mapping[str, Any]:
        """A JSON option as a mapping; empty when not given or not an object."""
        text = self.text(name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def served_names(self) -> tuple[str, ...]:
        """``--served-model-name``, else the model itself."""
        value = self.options.get("served_model_name")
        if isinstance(value, tuple) and value:
            return value
        return (self.model,) if self.model else ()

    @property
    def port(self) -> int:
        """``--port``; vLLM's default is 8000.  That is also the answer where a problem says that it is no port."""
        return _port(self.text("port")) or 8000

    @property
    def fraction(self) -> float | None:
        """``--gpu-memory-utilization`` as given; None when the default counts."""
        return self.number("gpu_memory_utilization")

    @property
    def pooling(self) -> bool:
        """True when the flags say that it generates nothing (``--runner pooling`` or an older ``--task``)."""
        if self.text("runner") == "pooling":
            return True
        return self.text("task") in ("embed", "embedding", "classify", "score", "reward", "pooling")

    @property
    def eager(self) -> bool:
        """True when the flags switch CUDA graphs off (``--enforce-eager``, ``-O0``, or graph mode NONE)."""
        if self.switch("enforce_eager"):
            return True
        if self.text("optimization_level") == "0":
            return True
        mode = self.nested("compilation_config").get("cudagraph_mode")
        return isinstance(mode, str) and mode.upper() == "NONE"


# --------------------------------------------------------------------------- finding the server in a command


_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_SEPARATORS: Final = frozenset({"&&", "||", ";", "|", "&"})


def _base(token: str) -> str:
    return token.rsplit("/", 1)[-1]


def split_command(text: str) -> list[str]:
    """Split a command string into words as a shell would, separators apart; ValueError on an open quote."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


@dataclass(frozen=True, slots=True)
class FoundServer:
    """Where a server starts in an argument vector: the words after it and how it was named."""

    entry: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def find_server(argv: Sequence[str], *, depth: int = 0) -> FoundServer | None:
    """Find ``vllm serve`` or the API-server module in an argument vector; None when there is none.

    Looks through interpreters, wrappers (``uv run``, ``nsys profile``) and ``sh -c "…"``; takes
    ``NAME=value`` words before the command as environment.  Nothing is executed or expanded.
    """
    words = list(argv)
    # A shell with -c: read its text instead
    for index, word in enumerate(words):
        if _base(word) in _SHELLS and depth < 3:
            rest = words[index + 1 :]
            for offset, option in enumerate(rest):
                if option.startswith("-") and not option.startswith("--") and "c" in option[1:]:
                    if offset + 1 < len(rest):
                        try:
                            inner = split_command(rest[offset + 1])
                        except ValueError:
                            return None
                        return find_server(inner, depth=depth + 1)
                    return None
                if not option.startswith("-"):
                    break
    start = 0
    for index, word in enumerate(words):
        entry = None
        skip = 0
        following = words[index + 1] if index + 1 < len(words) else None
        if _base(word) == "vllm" and following == "serve":
            entry, skip = "serve", 2
        elif word == "-m" and following == API_SERVER_MODULE:
            entry, skip = "api_server", 2
        elif word == "-m" and following == CLI_MODULE and words[index + 2 : index + 3] == ["serve"]:
            entry, skip = "serve", 3
        elif word.endswith("vllm/entrypoints/openai/api_server.py"):
            entry, skip = "api_server", 1
        if word in _SEPARATORS:
            start = index + 1
        if entry is None:
            continue
        arguments: list[str] = []
        for argument in words[index + skip :]:
            if argument in _SEPARATORS:
                break
            arguments.append(argument)
        environment: dict[str, str] = {}
        for argument in words[start:index]:
            name, equals, value = argument.partition("=")
            if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
                environment[name] = value
        return FoundServer(entry, tuple(arguments), environment)
    return None


# --------------------------------------------------------------------------- options


def _dashes(name: str) -> str:
    """Underscores to dashes between ``--`` and the first dot, as vLLM does."""
    if not name.startswith("--"):
        return name
    head, dot, tail = name.partition(".")
    return head.replace("_", "-") + dot + tail


def _destination(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class _Resolved:
    name: str
    kind: Kind
    negated: bool = False
    problem: FlagProblem | None = None


def _resolve(name: str) -> _Resolved | None:
    """The option a (dashed, undotted) name stands for; None when it is no option at all."""
    if name in _KINDS:
        canonical = _CANONICAL[name]
        negated = name.startswith("--no-") and not canonical.startswith("--no-")
        return _Resolved(canonical, _KINDS[name], negated)
    if name in NEVER_EXISTED:
        kind, why = NEVER_EXISTED[name]
        return _Resolved(name, kind, problem=FlagProblem("never_existed", name, f"{name} {why}"))
    if name in OLDER_OPTIONS:
        kind, why = OLDER_OPTIONS[name]
        message = f"{name} is not an option of vLLM {FLAG_LIST_VERSION}: {why}"
        target = "--kv-cache-memory-bytes" if name == "--kv-cache-memory" else name
        return _Resolved(target, kind, problem=FlagProblem("older", name, message))
    if name.startswith("--") and len(name) > 2:
        matches = sorted({option for option in _KINDS if option.startswith(name)})
        targets = {(_CANONICAL[m], m.startswith("--no-")) for m in matches}
        if len(targets) == 1:
            return _resolve(matches[0])
        if matches:
            problem = FlagProblem(
                "ambiguous", name, f"{name} could be {', '.join(matches)}: vLLM refuses it, write one in full"
            )
            return _Resolved(name, "none", problem=problem)
    return None


def _looks_like_option(word: str) -> bool:
    """argparse's rule: what starts with ``-`` is an option, but not ``-``, ``-1``, or a text with a space."""
    if not word.startswith("-") or word == "-":
        return False
    if _NEGATIVE_NUMBER.fullmatch(word):
        return False
    name = _dashes(word.split("=", 1)[0])
    if _resolve(name.split(".", 1)[0]) is not None or word.startswith("-O"):
        return True
    return " " not in word


def config_file_arguments(values: Mapping[str, Any]) -> list[str]:
    """Turn the content of a ``--config`` file into arguments as vLLM does.

    True gives the switch, False its ``--no-`` form where there is one, a list its items, a mapping JSON.
    """
    arguments: list[str] = []
    for key, value in values.items():
        option = "--" + str(key)
        if isinstance(value, bool):
            if value:
                arguments.append(option)
            elif _dashes("--no-" + str(key)) in _KINDS:
                arguments.append("--no-" + str(key))
        elif isinstance(value, list):
            if value:
                arguments.append(option)
                arguments.extend(str(item) for item in value)
        elif isinstance(value, dict):
            try:
                arguments += [option, json.dumps(value, default=str)]
            except (TypeError, ValueError, RecursionError):  # keys or loops that only YAML knows
                arguments += [option, str(value)]
        else:
            arguments += [option, str(value)]
    return arguments


def _merge(target: dict[str, Any], update: Mapping[str, Any], depth: int = 0) -> None:
    for key, value in update.items():
        current = target.get(key)
        if isinstance(value, dict) and isinstance(current, dict) and depth < _DEEPEST:
            _merge(current, value, depth + 1)
        elif isinstance(value, list) and isinstance(current, list):
            target[key] = [*current, *value]
        else:
            target[key] = value


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        return text
    except ValueError:
        try:
            return human_readable_int(text)
        except ValueError:
            return text


def parse_arguments(
    arguments: Sequence[str],
    *,
    entry: str = "serve",
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServeCommand:
    """Parse the words after ``vllm serve`` (or after the module, or of an image with arguments only).

    ``config`` is the parsed content of the file that ``--config`` names, read by the caller (None: not
    available, then a problem says so).  Never raises for what a user wrote: what is odd is in ``problems``.
    """
    words = list(arguments)
    problems: list[FlagProblem] = []
    config_path: str | None = None
    for index, word in enumerate(words):
        if word == "--config" or word.startswith("--config="):
            inline = word.partition("=")[2]
            config_path = inline or (words[index + 1] if index + 1 < len(words) else None)
            del words[index : index + (1 if inline else 2)]
            break
    front: list[str] = []
    if config_path is not None:
        if config is None:
            problems.append(
                FlagProblem(
                    "value",
                    "--config",
                    f"--config {config_path} was not read: options set in that file are not known here",
                )
            )
        else:
            front = config_file_arguments(config)
    positionals: list[str] = []
    options: dict[str, Value] = {}
    repeated: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    seen_in: dict[str, int] = {}

    def take(source: list[str], origin: int) -> None:
        index = 0
        only_positionals = False
        while index < len(source):
            word = source[index]
            index += 1
            if only_positionals or not _looks_like_option(word):
                positionals.append(word)
                continue
            if word == "--":
                only_positionals = True
                continue
            name, equals, inline = word.partition("=")
            name = _dashes(name)
            if name.startswith("-O") and not name.startswith("--"):
                level = inline if name == "-O" and equals else name[2:]
                if not level and index < len(source):
                    level = source[index]
                    index += 1
                if level in ("0", "1", "2", "3"):
                    options["optimization_level"] = level
                elif level.startswith("{") or "=" in word[2:]:
                    options["compilation_config"] = level or inline
                else:
                    options["optimization_level"] = level
                continue
            dotted = "." in name
            root, _, path = name.partition(".")
            resolved = _resolve(root)
            if resolved is None:
                problems.append(
                    FlagProblem(
                        "unknown",
                        root,
                        f"{root} is not an option of vLLM {FLAG_LIST_VERSION} (the list used here); vLLM "
                        "refuses unknown options: check it against `vllm serve --help=all` of your release",
                    )
                )
                # Its value, if it has one, is the next word when that is no option: not the model.
                if not equals and index < len(source) and not _looks_like_option(source[index]):
                    index += 1
                continue
            if resolved.problem is not None:
                problems.append(resolved.problem)
                if resolved.problem.kind == "ambiguous":
                    if not equals and index < len(source) and not _looks_like_option(source[index]):
                        index += 1
                    continue
            key = _destination(resolved.name)
            if dotted:
                if not equals:
                    if index >= len(source):
                        problems.append(FlagProblem("value", name, f"{name} has no value"))
                        continue
                    inline = source[index]
                    index += 1
                value_any: Any = inline.split(",") if path.endswith("+") else _json_value(inline)
                path = path.removesuffix("+")
                if path.count(".") >= _DEEPEST:
                    problems.append(FlagProblem("value", name[:80], f"{name[:80]}… has more than {_DEEPEST} parts"))
                    continue
                for part in reversed(path.split(".")):
                    value_any = {part: value_any}
                _merge(nested.setdefault(key, {}), value_any)
                continue
            if seen_in.get(key) == origin:
                repeated.append(resolved.name)
            seen_in[key] = origin
            if resolved.kind == "none":
                if equals:
                    problems.append(FlagProblem("value", name, f"{name} takes no value, vLLM refuses {word!r}"))
                    continue
                options[key] = not resolved.negated
                continue
            values: list[str] = []
            if equals:
                values.append(inline)
            else:
                limit = None if resolved.kind == "many" else 1
                while index < len(source) and (limit is None or len(values) < limit):
                    if _looks_like_option(source[index]):
                        break
                    values.append(source[index])
                    index += 1
            if not values:
                if resolved.kind == "optional":
                    options[key] = True
                else:
                    problems.append(FlagProblem("value", name, f"{name} has no value"))
                continue
            if resolved.kind == "size":
                text = values[0]
                if not (key == "max_model_len" and text.strip().lower() in ("-1", "auto")):
                    try:
                        human_readable_int(text)
                    except ValueError as error:
                        problems.append(FlagProblem("value", name, f"{name}: {error}"))
            options[key] = tuple(values) if resolved.kind == "many" else values[0]

    take(front, 0)
    config_model = options.pop("model", None) if front else None
    take(words, 1)
    for key, tree in nested.items():
        # vLLM appends the dotted ones as one more JSON argument, and the last argument wins
        try:
            options[key] = json.dumps(tree, sort_keys=True)
        except RecursionError:
            problems.append(FlagProblem("value", key, f"the value of {key} is nested too deeply"))
    port = options.get("port")
    if isinstance(port, str) and _port(port) is None:
        problems.append(
            FlagProblem(
                "value", "--port", f"{port[:40]!r} is no port from 1 to 65535: where the server listens is not known"
            )
        )
    fraction = options.get("gpu_memory_utilization")
    if isinstance(fraction, str):
        try:
            number = float(fraction)
        except ValueError:
            problems.append(
                FlagProblem("value", "--gpu-memory-utilization", f"{fraction!r} is no number between 0 and 1")
            )
        else:
            if not 0 < number <= 1:
                problems.append(
                    FlagProblem(
                        "value",
                        "--gpu-memory-utilization",
                        f"{fraction} is not in (0, 1]: it is a fraction of the card, not a percentage",
                    )
                )
    model = options.get("model")
    model_text = model if isinstance(model, str) else None
    rest = list(positionals)
    if model_text is None and rest and entry != "api_server":
        model_text = rest.pop(0)
    if model_text is None and isinstance(config_model, str):
        model_text = config_model
    for word in rest:
        problems.append(FlagProblem("unused", word, f"{word!r} belongs to no option: vLLM refuses it"))
    variables = dict(environment or {})
    for name, why in UNKNOWN_ENVIRONMENT.items():
        if name in variables:
            problems.append(FlagProblem("environment", name, f"{name} {why}"))
    return ServeCommand(
        entry=entry,
        model=model_text,
        options=MappingProxyType(options),
        problems=tuple(problems),
        environment=MappingProxyType(variables),
        config_file=config_path,
        repeated=tuple(dict.fromkeys(repeated)),
    )


def parse_command(
    argv: Sequence[str] | str,
    *,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServeCommand | None:
    """Parse a whole command line; None when it starts no vLLM server.

    ``argv`` as in ``/proc/PID/cmdline`` or one string as in a Compose file.  Variables given before the
    command are added to ``environment``.
    """
    if isinstance(argv, str):
        try:
            argv = split_command(argv)
        except ValueError:
            return None
    found = find_server(argv)
    if found is None:
        return None
    merged = {**(environment or {}), **found.environment}
    return parse_arguments(found.arguments, entry=found.entry, config=config, environment=merged)


def with_environment(command: ServeCommand, environment: Mapping[str, str]) -> ServeCommand:
    """The same command with more environment (and the problems that follow from it)."""
    merged = {**environment, **command.environment}
    problems = list(command.problems)
    for name, why in UNKNOWN_ENVIRONMENT.items():
        if name in merged and name not in command.environment:
            problems.append(FlagProblem("environment", name, f"{name} {why}"))
    return replace(command, environment=MappingProxyType(merged), problems=tuple(problems))
