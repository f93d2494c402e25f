"""Reads a Compose file with vLLM services and writes a ``vllmeter.yaml`` for it.  Nothing is executed or fetched.

Understood: command and entrypoint as string, list or folded scalar; environment as map or list; env_file; profiles;
anchors, merge keys and ``x-`` blocks; ``extends`` within the file; ``${VAR}``, ``${VAR:-default}``, one within another,
and ``$$``; ports in short and long form; ``vllm/vllm-openai`` images that are given arguments only.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from vllmeter.memory.findings import Claim, Finding, PlannedServer, claim_of, overcommit_findings, plan_findings
from vllmeter.memory.flags import ServeCommand, find_server, parse_arguments, split_command, with_environment
from vllmeter.memory.regimes import parse_version, regime_of
from vllmeter.snapshot import Quantity

ReadText = Callable[[str], str | None]
"""Content of a file named in the Compose file, relative to it; None when it cannot be read."""

_VLLM_IMAGE: Final = re.compile(r"(?:^|/)(?:vllm-openai|vllm)(?:-[\w.]+)*(?::|@|$)")
_ANY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, never bound
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}")
_PLAIN: Final = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)
_BRACED: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?:\}|(:?[-?+]))", re.ASCII)
_MOST_VALUES: Final = 100_000
"""Values of the services with aliases and ``extends`` written out."""


class ComposeError(ValueError):
    """The file is no Compose file that can be read; the text names place, cause and remedy."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that ignores Compose's own tags (``!reset``, ``!override``) and keeps 8080:80 a string."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same with libyaml, where PyYAML was built with it."""


def _untag(loader: Any, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
_BOOL: Final = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
_DIFFERENT: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
for _kind in (_Loader, _FastLoader):
    _kind.add_multi_constructor("!", _untag)
    # YAML 1.1 reads 22:22 as a number in base 60, and `on` and `no` as truth values; Compose does not
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _DIFFERENT]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
_UNREADABLE: Final = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML raises for values that are not what their tag says: ``!!bool 5`` is a KeyError."""


def _load(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_FastLoader)  # noqa: S506 - a SafeLoader without Compose's tags
    except _UNREADABLE:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it says better what is wrong


@dataclass(frozen=True, slots=True)
class ComposeServer:
    """One vLLM service of a Compose file."""

    service: str
    command: ServeCommand
    image: str = ""
    version: str | None = None
    container_name: str | None = None
    published: tuple[str, int] | None = None
    """(host address, host port) of the server's port"""
    host_network: bool = False
    profiles: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    replicas: int = 1
    multiproc_place: str = ""
    """volume or folder that holds its PROMETHEUS_MULTIPROC_DIR, else the service itself"""

    @property
    def name(self) -> str:
        """Label ``server``: the service's name."""
        return self.service if _SERVER_NAME.fullmatch(self.service) else _made_name(self.service)


def _made_name(text: str) -> str:
    """A legal label from a service name that is none."""
    return re.sub(r"[^A-Za-z0-9_.:/-]", "-", text).lstrip("_.:/-")[:63]


def _container_name(value: Any) -> str | None:
    """None for what Docker would refuse."""
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value) else None


@dataclass(frozen=True, slots=True)
class ComposeFile:
    """What was read: vLLM services, and notes on what could not be followed."""

    servers: tuple[ComposeServer, ...]
    project: str
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    unresolved: tuple[str, ...] = ()
    """variables without a value, replaced by nothing as Compose does"""


# --------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Variables:
    values: Mapping[str, str]
    missing: dict[str, None] = field(default_factory=dict)
    walked: int = 0

    def expand(self, text: str, depth: int = 0) -> str:
        """The text with its variables replaced; what Compose would refuse (``${1}``) stays as it is."""
        parts = []
        at = 0
        while (dollar := text.find("$", at)) >= 0:
            parts.append(text[at:dollar])
            end, value = self._one(text, dollar, depth)
            parts.append(value)
            at = end
        return "".join((*parts, text[at:]))

    def _one(self, text: str, dollar: int, depth: int) -> tuple[int, str]:
        """(end, value) of what begins at ``dollar``."""
        if text.startswith("$$", dollar):
            return dollar + 2, "$"
        if match := _PLAIN.match(text, dollar):
            return match.end(), self._given(match[1])
        match = _BRACED.match(text, dollar)
        if match is not None and match[2] is None:
            return match.end(), self._given(match[1])
        end = _closing(text, match.end()) if match is not None and depth < 30 else None
        if match is None or end is None:
            return dollar + 1, "$"
        name, operator, rest = match[1], match[2], text[match.end() : end]
        value = self.values.get(name)
        present = value is not None and (value != "" or not operator.startswith(":"))
        if operator.endswith("+"):
            return end + 1, self.expand(rest, depth + 1) if present else ""
        if value is not None and present:
            return end + 1, value
        if operator.endswith("-"):
            return end + 1, self.expand(rest, depth + 1)
        self.missing[name] = None
        return end + 1, ""

    def _given(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            self.missing[name] = None
        return value or ""

    def walk(self, value: Any, depth: int = 0) -> Any:
        self.walked += 1
        if depth > 30:
            raise ComposeError("services: nested too deeply: is there an anchor that contains itself?")
        if self.walked > _MOST_VALUES:
            raise ComposeError(f"services: more than {_MOST_VALUES} values; do aliases repeat one another?")
        if isinstance(value, str):
            return self.expand(value)
        if isinstance(value, list):
            return [self.walk(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {key: self.walk(item, depth + 1) for key, item in value.items()}
        return value


def _closing(text: str, start: int) -> int | None:
    """Where the brace closes that was opened before ``start``; None when it does not."""
    open_braces = 1
    at = start
    while at < len(text):
        if text.startswith("${", at):
            open_braces += 1
            at += 1
        elif text[at] == "}":
            open_braces -= 1
            if not open_braces:
                return at
        at += 1
    return None


def parse_env_file(text: str) -> dict[str, str]:
    """``KEY=value`` lines of an env file; comments, ``export`` and quotes as Compose reads them."""
    values: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        line = line.removeprefix("export ").lstrip()
        name, equals, value = line.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", name.strip()):
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        else:
            value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
        values[name.strip()] = value
    return values


def _words(value: Any, where: str) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return split_command(value)
        except ValueError as error:
            raise ComposeError(f"{where}: a quote is not closed ({error})") from None
    if isinstance(value, list):
        return [str(item) for item in value if item is not None]
    raise ComposeError(f"{where}: expected text or a list, found {type(value).__name__}")


def _environment(service: Mapping[str, Any], read: ReadText, notes: list[str], name: str) -> dict[str, str]:
    values: dict[str, str] = {}
    files = service.get("env_file")
    for item in [files] if isinstance(files, str | dict) else _listed(files):
        path = item.get("path") if isinstance(item, dict) else item
        if not isinstance(path, str):
            continue
        text = read(path)
        if text is None:
            if not (isinstance(item, dict) and item.get("required") is False):
                notes.append(f"{name}: env_file {path} could not be read")
            continue
        values.update(parse_env_file(text))
    own = service.get("environment") or {}
    if isinstance(own, dict):
        values.update({str(key): "" if value is None else _scalar(value) for key, value in own.items()})
    elif isinstance(own, list):
        for item in own:
            key, _, value = str(item).partition("=")
            values[key] = value
    return values


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _listed(value: Any) -> Sequence[Any]:
    """A list as it is; anything else, which Compose would refuse, as an empty one."""
    return value if isinstance(value, list) else ()


def _published(service: Mapping[str, Any], port: int) -> tuple[str, int] | None:
    for item in _listed(service.get("ports")):
        if isinstance(item, dict):
            tcp = str(item.get("protocol") or "tcp") == "tcp"
            if tcp and str(item.get("target")) == str(port) and item.get("published") is not None:
                published = _port(str(item["published"]).split("-", 1)[0])
                address = str(item.get("host_ip") or "")
                if published is not None and _is_address(address):
                    return address or "127.0.0.1", published
            continue
        text, _, protocol = str(item).partition("/")
        if protocol not in ("", "tcp"):
            continue
        address = ""
        if text.startswith("["):
            address, _, text = text[1:].partition("]:")
        parts = text.split(":")
        if len(parts) == 3:
            address, parts = parts[0], parts[1:]
        if len(parts) != 2 or not _is_address(address):
            continue
        host_range, container_range = ([_port(p) for p in part.split("-")] for part in parts)
        first, low, high = host_range[0], container_range[0], container_range[-1]
        if first is None or low is None or high is None or None in host_range:
            continue
        if low <= port <= high and first + port - low <= 65535:
            return address or "127.0.0.1", first + port - low
    return None


def _is_address(text: str) -> bool:
    """Whether a port can be published at it; empty means every address."""
    try:
        return not text or ("%" not in text and bool(ipaddress.ip_address(text)))
    except ValueError:
        return False


def _port(text: str) -> int | None:
    """None for what is no port."""
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) <= 65535 else None


def _gpus(service: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Device ids a service is limited to; empty = all or unknown."""
    ids: list[str] = []
    deploy = service.get("deploy")
    resources = deploy.get("resources") if isinstance(deploy, dict) else None
    reservations = resources.get("reservations") if isinstance(resources, dict) else None
    devices = list(_listed(reservations.get("devices"))) if isinstance(reservations, dict) else []
    own = service.get("gpus")
    devices += own if isinstance(own, list) else []
    for device in devices:
        if isinstance(device, dict):
            ids += [str(item) for item in _listed(device.get("device_ids"))]
    for variable in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        text = environment.get(variable, "")
        if not ids and text and text not in ("all", "void", "none"):
            ids = [item.strip() for item in text.split(",") if item.strip()]
    return tuple(dict.fromkeys(ids))


def _mounted(service: Mapping[str, Any], path: str) -> str | None:
    """Source of the volume that covers ``path`` in the container; None when it lies in the container itself."""
    best: tuple[int, str] | None = None
    for item in _listed(service.get("volumes")):
        if isinstance(item, dict):
            source, target = item.get("source"), item.get("target")
        else:
            parts = str(item).split(":")
            source, target = (parts[0], parts[1]) if len(parts) > 1 else (None, None)
        if not source or not isinstance(target, str):
            continue
        target = target.rstrip("/")
        if path == target or path.startswith(target + "/"):
            best = max(best or (-1, ""), (len(target), str(source)))
    return best[1] if best else None


def _waits(service: Mapping[str, Any]) -> tuple[str, ...]:
    depends = service.get("depends_on")
    if not isinstance(depends, dict):
        return ()
    return tuple(
        str(name)
        for name, rule in depends.items()
        if isinstance(rule, dict) and rule.get("condition") == "service_healthy"
    )


def _extended(services: Mapping[str, Any], name: str, notes: list[str], seen: tuple[str, ...] = ()) -> dict[str, Any]:
    service = services.get(name)
    if not isinstance(service, dict):
        raise ComposeError(f"services.{name}: expected settings, found {type(service).__name__}")
    extends = service.get("extends")
    if extends is None:
        return service
    base = extends.get("service") if isinstance(extends, dict) else extends
    if isinstance(extends, dict) and extends.get("file"):
        notes.append(f"{name}: extends a service of {extends['file']}, which is not followed")
        return service
    if not isinstance(base, str) or base in seen or base == name or base not in services:
        raise ComposeError(f"services.{name}.extends: no service {base!r} to extend")
    merged = dict(_extended(services, str(base), notes, (*seen, name)))
    for key, value in service.items():
        current = merged.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            merged[key] = {**current, **value}
        elif key in ("ports", "env_file") and isinstance(current, list) and isinstance(value, list):
            merged[key] = [*current, *value]
        else:
            merged[key] = value
    return merged


def read_compose(
    text: str,
    *,
    name: str = "compose.yaml",
    project: str = "",
    variables: Mapping[str, str] | None = None,
    read: ReadText = lambda _path: None,
    profiles: Sequence[str] = (),
    config_loader: Callable[[str], Mapping[str, Any] | None] = lambda _path: None,
) -> ComposeFile:
    """Read a Compose file's text.

    ``project``: name of its folder (a top-level ``name:`` wins).  ``variables``: what ``.env`` and the environment
    give for ``${…}``.  ``read``: content of env files.  ``profiles``: the active ones.  ``config_loader``: content
    of a ``--config`` file by the path given on the command line (a path in the container; often not reachable).

    :raises ComposeError: it is no Compose file.
    """
    try:
        data = _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ComposeError(f"{name}:{line}: not valid YAML: {error.problem or error.context}") from None
    except (*_UNREADABLE, RecursionError) as error:
        raise ComposeError(f"{name}:1: not valid YAML: {error}") from None
    services = data.get("services") if isinstance(data, dict) else None
    if not isinstance(services, dict):
        raise ComposeError(f"{name}:1: no `services:` found: is it a Compose file?")
    notes: list[str] = []
    if data.get("include"):
        notes.append("include: other files are not followed; run init for each")
    names = _Variables(variables or {})
    found: list[ComposeServer] = []
    exporters: list[tuple[str, bool]] = []
    for key in services:
        service_name = str(key)
        if not re.fullmatch(r"[._-]*[A-Za-z0-9][A-Za-z0-9._-]*", service_name):
            raise ComposeError(f"{name}: services: {service_name!r} is no name that Compose takes")
        service = names.walk(_extended(services, key, notes))
        image = str(service.get("image") or "")
        environment = _environment(service, read, notes, service_name)
        command = _command(service, image, environment, f"{name}: services.{service_name}", config_loader)
        if command is None:
            if _is_exporter(service, image, profiles):
                exporters.append((service_name, service.get("pid") == "host"))
            continue
        tag = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] else ""
        version = tag.removeprefix("v") if parse_version(tag) else None
        deploy = service.get("deploy")
        scale = service.get("scale")
        replicas = _whole(deploy.get("replicas", scale) if isinstance(deploy, dict) else scale)
        found.append(
            ComposeServer(
                service=service_name,
                command=command,
                image=image,
                version=version,
                container_name=_container_name(service.get("container_name")),
                published=_published(service, command.port),
                host_network=service.get("network_mode") == "host",
                profiles=tuple(str(profile) for profile in _listed(service.get("profiles"))),
                gpus=_gpus(service, environment),
                waits_for=_waits(service),
                replicas=1 if replicas is None else replicas,
                multiproc_place=_mounted(service, environment.get("PROMETHEUS_MULTIPROC_DIR", "")) or service_name,
            )
        )
    own = data.get("name")
    title = own if isinstance(own, str) else re.sub(r"[^a-z0-9_-]", "", project.lower()).lstrip("_-")
    active = set(profiles)
    planned = [plan_of(server, active=active) for server in found]
    findings = plan_findings(planned)
    findings += [
        Finding(
            "no-pid-host",
            "warning",
            f"{exporter}: the exporter has its own PID namespace, so the driver shows it no processes of the servers",
            "add `pid: host` to the service",
            (),
        )
        for exporter, host_pid in exporters
        if not host_pid
    ]
    for server in found:
        if server.replicas > 1:
            findings.append(
                Finding(
                    "replicas",
                    "warning",
                    f"{server.service}: {server.replicas} replicas behind one name are {server.replicas} servers; each "
                    "takes the budget, and one URL reaches only one of them",
                    "write them as separate services, or list their containers as separate servers",
                    (server.name,),
                )
            )
    return ComposeFile(tuple(found), title, tuple(notes), tuple(findings), tuple(names.missing))


def _whole(value: Any) -> int | None:
    """A whole number, also as the text that a variable leaves; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_exporter(service: Mapping[str, Any], image: str, active: Sequence[str]) -> bool:
    """Our image, running what it runs by default or `serve`, in a profile that is active."""
    own = _listed(service.get("profiles"))
    if not re.search(r"(^|/)vllmeter(:|@|$)", image) or service.get("entrypoint") or (own and not {*own} & {*active}):
        return False
    words = service.get("command") or ["serve"]
    return (words.split() if isinstance(words, str) else [str(word) for word in words])[:1] == ["serve"]


def _command(
    service: Mapping[str, Any],
    image: str,
    environment: Mapping[str, str],
    where: str,
    config_loader: Callable[[str], Mapping[str, Any] | None],
) -> ServeCommand | None:
    entrypoint = _words(service.get("entrypoint"), f"{where}.entrypoint")
    command = _words(service.get("command"), f"{where}.command")
    words = [*(entrypoint or ()), *(command or ())]
    server = find_server(words)
    if server is None and entrypoint and entrypoint[-1:] == ["-c"]:
        # sh -c with the text in `command`, which Compose split into words
        server = find_server([*entrypoint, " ".join(command or ())])
    if server is not None:
        arguments, entry, before = list(server.arguments), server.entry, server.environment
    elif not entrypoint and _VLLM_IMAGE.search(image):
        # the image's own entrypoint is the server, what is given are its arguments
        arguments, entry, before = list(command or ()), "arguments", {}
    else:
        return None
    config = None
    for index, word in enumerate(arguments):
        if word == "--config" and index + 1 < len(arguments):
            config = config_loader(arguments[index + 1])
        elif word.startswith("--config="):
            config = config_loader(word.partition("=")[2])
    parsed = parse_arguments(arguments, entry=entry, config=config, environment=before)
    return with_environment(parsed, environment)


def plan_of(server: ComposeServer, *, active: set[str]) -> PlannedServer:
    """The service in the form that findings take; off when none of its profiles is active."""
    return PlannedServer(
        name=server.name,
        command=server.command,
        version=server.version,
        gpus=server.gpus,
        waits_for=server.waits_for,
        place=server.multiproc_place,
        inactive=bool(server.profiles) and not set(server.profiles) & active,
    )


def card_findings(
    servers: Sequence[PlannedServer], total: Quantity, *, context: Quantity | None = None
) -> list[Finding]:
    """Do the budgets of the active servers fit a card of ``total`` bytes of CUDA memory?

    Without a total only fractions that add up to more than 1 are found.
    """
    groups: dict[tuple[str, ...], list[PlannedServer]] = {}
    active = [server for server in servers if not server.inactive]
    devices = sorted({device for server in active for device in server.gpus})
    for device in devices or ["?"]:
        here = [server for server in active if not server.gpus or device in server.gpus]
        groups.setdefault(tuple(server.name for server in here), here)
    found: list[Finding] = []
    for here in groups.values():
        label = next((device for device in devices if any(device in server.gpus for server in here)), None)
        if total.value is not None:
            claims = [claim for server in here if (claim := claim_of(server, total.value, context=context)) is not None]
            found.extend(overcommit_findings(label, total, claims))
            continue
        claims = [claim for server in here if (claim := claim_of(server, 1.0)) is not None]
        share = sum(claim.budget for claim in claims)
        if share > 1 or (share > 0.9 and len(claims) > 1):
            found.append(_fractions_only(claims, share, label))
    return found


def _fractions_only(claims: Sequence[Claim], share: float, label: str | None) -> Finding:
    listed = " + ".join(f"{claim.server} {claim.budget:g}" for claim in claims)
    names = tuple(claim.server for claim in claims)
    if share > 1:
        return Finding(
            "over-commit",
            "error",
            f"the fractions do not fit one card: {listed} = {share:.2f}",
            "lower them so that the sum leaves room for one CUDA context (0.3 to 0.7 GiB) per server",
            names,
            label,
        )
    return Finding(
        "over-commit-with-contexts",
        "warning",
        f"the fractions leave little for {len(claims)} CUDA contexts (0.3 to 0.7 GiB each): {listed} = {share:.2f}",
        "give the card's memory (--gpu-total 7.78GiB) for figures and a set that fits",
        names,
        label,
    )


# --------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class ServerBlock:
    """One entry of ``servers:`` before it is written: values and the comments beside them."""

    name: str
    url: str
    url_note: str = ""
    fraction: float | None = None
    budget_note: str = ""
    match: tuple[str, str] | None = None
    log: tuple[str, str] | None = None
    version: str | None = None
    comment: tuple[str, ...] = ()
    disabled: str | None = None
    """written as a comment, with this reason"""


def blocks_of(compose: ComposeFile, *, inside: bool = False, active: set[str] | None = None) -> tuple[ServerBlock, ...]:
    """Entries for the services of a Compose file; ``inside``: the exporter runs in the same Compose network."""
    blocks = []
    for server in compose.servers:
        command = server.command
        port = command.port
        if inside and not server.host_network:
            url, note = f"http://{server.service}:{port}", ""
        elif server.host_network:
            url, note = f"http://127.0.0.1:{port}", "network_mode: host"
        elif server.published is not None:
            address, published = server.published
            address = "127.0.0.1" if address in _ANY_ADDRESS else address
            host = f"[{address}]" if ":" in address else address
            url, note = f"http://{host}:{published}", f"published port of {port}"
        else:
            url, note = f"http://{server.service}:{port}", "no published port: works only in the same Compose network"
        container = server.container_name or (
            f"{compose.project}-{server.service}-1" if compose.project else server.service
        )
        model = command.model or (command.served_names[0] if command.served_names else "vLLM's default model")
        comment = [f"{model}, {server.image or 'built image'}"]
        fraction, budget_note = _budget_line(server)
        off = None
        if server.profiles and not set(server.profiles) & (active or set()):
            off = f"profile {', '.join(server.profiles)} (docker compose --profile {server.profiles[0]})"
        blocks.append(
            ServerBlock(
                name=server.name,
                url=url,
                url_note=note,
                fraction=fraction,
                budget_note=budget_note,
                match=("container", server.container_name or server.service),
                log=("docker", container),
                version=server.version,
                comment=tuple(comment),
                disabled=off,
            )
        )
    return tuple(blocks)


def _budget_line(server: ComposeServer) -> tuple[float | None, str]:
    command = server.command
    kv_bytes = command.integer("kv_cache_memory_bytes")
    if kv_bytes is not None:
        return None, f"--kv-cache-memory-bytes {kv_bytes:,}: the budget is read from the server and its log"
    fraction = command.fraction
    if fraction is not None and 0 < fraction <= 1:
        return fraction, "--gpu-memory-utilization"
    if any(problem.flag == "--config" for problem in command.problems):
        return None, f"may stand in {command.config_file}; it is read from the running server"
    regime = regime_of(server.version, environment=command.environment)
    assumed = "" if server.version else ", release not known"
    return regime.default_fraction, f"not set: vLLM's default{assumed}"


def render_config(blocks: Sequence[ServerBlock], *, source: str, findings: Sequence[Finding] = ()) -> str:
    """The text of a commented ``vllmeter.yaml``.  It loads as it is."""
    lines = [
        f"# vllmeter.yaml, written by `vllmeter init` from {source}.",
        "# Check it with `vllmeter check`; everything not written here has a default (docs/configuration.md).",
        "listen: 127.0.0.1:9877",
        "interval: 1s",
    ]
    enabled = [block for block in blocks if block.disabled is None]
    lines.append("servers:" if enabled else "servers: []")
    for block in blocks:
        entry = [f"  # {line}" for line in block.comment]
        entry.append(f"  - name: {_quoted(block.name)}")
        entry.append(f"    url: {block.url}" + (f"  # {block.url_note}" if block.url_note else ""))
        if block.fraction is not None:
            entry.append(
                f"    budget: {{fraction: {block.fraction:.15g}}}"
                + (f"  # {block.budget_note}" if block.budget_note else "")
            )
        elif block.budget_note:
            entry.append(f"    # budget: {block.budget_note}")
        if block.match is not None:
            kind, value = block.match
            entry.append(f"    match: {{{kind}: {_quoted(value)}}}")
        if block.log is not None:
            kind, value = block.log
            entry.append(
                f"    log: {{{kind}: {_quoted(value)}}}  # start-up log: weights, KV bytes, why a start failed"
            )
        if block.version is not None:
            entry.append(f'    version: "{block.version}"  # from the image; /version of the server wins')
        if block.disabled is not None:
            lines.append(f"  # off: {block.disabled}")
            lines.extend(line if line.lstrip().startswith("#") else f"  # {line[2:]}" for line in entry)
        else:
            lines.extend(entry)
    if findings:
        lines.append("")
        lines.append("# Findings:")
        for finding in findings:
            who = f" {', '.join(finding.servers)}:" if finding.servers else ""
            lines.append(f"# [{finding.severity}]{who} {finding.message}")
            lines.append(f"#   -> {finding.remedy}")
    return "\n".join(map(_one_line, lines)) + "\n"


def _one_line(line: str) -> str:
    """Comments quote the Compose file: nothing in it may end the comment and go on as configuration."""
    return line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)


def _quoted(text: str) -> str:
    """Plain where YAML reads the same text back, else in double quotes."""
    words = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in words:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())  # JSON's strings are YAML's in double quotes
