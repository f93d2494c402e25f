"""Files, HTTP, DNS and pods as sources: real files, a real HTTP server, a stub of the Kubernetes API."""

from __future__ import annotations

import json
import socket
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from discovery.answers import served
from vllmeter.config.load import ConfigError, load_config
from vllmeter.config.settings import DnsDiscovery as DnsSettings
from vllmeter.config.settings import FileDiscovery as FileSettings
from vllmeter.config.settings import HttpDiscovery as HttpSettings
from vllmeter.config.settings import KubernetesDiscovery as KubernetesSettings
from vllmeter.config.settings import Settings
from vllmeter.discovery import fetch
from vllmeter.discovery.dns import DnsDiscovery
from vllmeter.discovery.file import FileDiscovery
from vllmeter.discovery.http import HttpDiscovery
from vllmeter.discovery.kubernetes import KubernetesDiscovery, pod_server
from vllmeter.discovery.source import DiscoveryError
from vllmeter.wiring import Exporter, build_discovery


def group(*targets: str, **labels: str) -> dict[str, Any]:
    return {"targets": list(targets), "labels": labels}


# --------------------------------------------------------------------------- files


def test_files_of_a_pattern_come_and_go(tmp_path: Path) -> None:
    """A new file adds servers, a deleted one takes its own away; JSON and YAML mean the same."""
    source = FileDiscovery(FileSettings(files=(str(tmp_path / "*.json"), str(tmp_path / "*.yaml"))))
    assert source.find() == []
    (tmp_path / "a.json").write_text(json.dumps([group("a:8000", server="a")]))
    (tmp_path / "b.yaml").write_text("- targets: ['b:8000']\n  labels: {server: b}\n")
    assert [server.name for server in source.find()] == ["a", "b"]
    (tmp_path / "a.json").unlink()
    assert [server.name for server in source.find()] == ["b"]


def test_a_half_written_file_keeps_its_servers(tmp_path: Path) -> None:
    """A file that cannot be read now has the servers it had; others are read on."""
    source = FileDiscovery(FileSettings(files=(str(tmp_path / "*.json"),)))
    (tmp_path / "a.json").write_text(json.dumps([group("a:8000", server="a")]))
    (tmp_path / "b.json").write_text(json.dumps([group("b:8000", server="b")]))
    source.find()
    (tmp_path / "a.json").write_text('[{"targets": ["a:80')
    (tmp_path / "b.json").write_text(json.dumps([group("c:8000", server="c")]))
    assert [server.name for server in source.find()] == ["a", "c"]


def test_nothing_readable_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    """The error names file and cause, so that the discoverer keeps what it had."""
    file = tmp_path / "a.yaml"
    file.write_text("targets: {")
    with pytest.raises(DiscoveryError, match=r"a\.yaml"):
        FileDiscovery(FileSettings(files=(str(file),))).find()
    file.write_text("- " * 3_000_000)
    with pytest.raises(DiscoveryError, match="larger than 4 MiB"):
        FileDiscovery(FileSettings(files=(str(file),))).find()
    other = tmp_path / "list.txt"
    other.write_text("[]")
    with pytest.raises(DiscoveryError, match="name it"):
        FileDiscovery(FileSettings(files=(str(other),))).find()


# --------------------------------------------------------------------------- HTTP


def test_http_list_is_asked_as_prometheus_asks() -> None:
    """The refresh interval is told, JSON is asked for, and the list becomes servers."""
    with served() as answers:
        answers.body = json.dumps([group("a:8000", "b:8000")]).encode()
        source = HttpDiscovery(HttpSettings(url=answers.url + "/sd", every=15.0))
        assert [server.name for server in source.find()] == ["a:8000", "b:8000"]
        path, headers = answers.asked[0]
        assert path == "/sd"
        assert headers["x-prometheus-refresh-interval-seconds"] == "15"
        assert headers["accept"] == "application/json"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, b"[]", "answers HTTP 500"),
        (404, b"[]", "answers HTTP 404"),
        (200, b"<html>", "no JSON"),
        (200, b'{"targets": []}', "expected a list"),
        (200, b"[" * 100_000, "no JSON"),
        (200, b" " * (5 << 20), "larger than 4 MiB"),
    ],
)
def test_a_list_that_cannot_be_had_is_an_error(status: int, body: bytes, why: str) -> None:
    """Never an empty list: the servers known before stay."""
    with served() as answers:
        answers.status, answers.body = status, body
        with pytest.raises(DiscoveryError, match=why):
            HttpDiscovery(HttpSettings(url=answers.url)).find()


def test_redirects_stay_on_their_host() -> None:
    """One on the same host is followed, one to another is refused and never asked."""
    with served() as answers, served() as elsewhere:
        answers.status, answers.headers = 302, {"Location": elsewhere.url + "/sd"}
        with pytest.raises(DiscoveryError, match="only the same host is followed"):
            HttpDiscovery(HttpSettings(url=answers.url)).find()
        assert elsewhere.asked == []

        def twice(handler: BaseHTTPRequestHandler) -> None:
            if handler.path == "/sd":
                handler.send_response(307)
                handler.send_header("Location", "/moved")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(200)
            handler.send_header("Content-Length", "2")
            handler.end_headers()
            handler.wfile.write(b"[]")

        answers.behaviour = twice
        assert HttpDiscovery(HttpSettings(url=answers.url + "/sd")).find() == ()


def test_an_answer_that_drips_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte starts the read timeout anew; the time for the whole answer ends it."""
    monkeypatch.setattr(fetch, "TOTAL_SECONDS", 1.0)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(30):
                handler.wfile.write(b" ")
                handler.wfile.flush()
                time.sleep(0.1)
        except OSError:
            return

    with served() as answers:
        answers.behaviour = drip
        source = HttpDiscovery(HttpSettings(url=answers.url))
        begun = time.monotonic()
        with pytest.raises(DiscoveryError, match="in time"):
            source.find()
        assert time.monotonic() - begun < 4
        with pytest.raises(DiscoveryError, match="still not complete"):
            source.find()


def test_nobody_there_is_an_error() -> None:
    """Connection refused, in words."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(DiscoveryError, match="connection refused"):
            HttpDiscovery(HttpSettings(url=f"http://127.0.0.1:{sock.getsockname()[1]}/")).find()


# --------------------------------------------------------------------------- DNS


def entries(*addresses: str) -> list[tuple[Any, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 8000)) for address in addresses]


def test_one_server_per_address() -> None:
    """A and AAAA records become servers with stable names; the order of the answer does not matter."""
    first = DnsDiscovery(DnsSettings(name="vllm.ns.svc"), resolve=lambda *_: entries("10.0.0.2", "10.0.0.1", "fd00::1"))
    second = DnsDiscovery(
        DnsSettings(name="vllm.ns.svc"), resolve=lambda *_: entries("fd00::1", "10.0.0.1", "10.0.0.2")
    )
    assert first.find() == second.find()
    assert [(server.name, server.url) for server in first.find()] == [
        ("vllm-10.0.0.1", "http://10.0.0.1:8000"),
        ("vllm-10.0.0.2", "http://10.0.0.2:8000"),
        ("vllm-fd00::1", "http://[fd00::1]:8000"),
    ]


def test_a_name_that_is_gone_has_no_servers_and_a_resolver_that_fails_is_an_error() -> None:
    """A headless service without pods does not exist in DNS; a resolver without network says nothing about pods."""

    def fails(code: int) -> Any:
        def resolve(*_: Any) -> list[tuple[Any, ...]]:
            raise socket.gaierror(code, "x")

        return resolve

    assert DnsDiscovery(DnsSettings(name="vllm"), resolve=fails(socket.EAI_NONAME)).find() == []
    with pytest.raises(DiscoveryError, match="vllm"):
        DnsDiscovery(DnsSettings(name="vllm"), resolve=fails(socket.EAI_AGAIN)).find()


def test_a_resolver_that_hangs_holds_up_nobody() -> None:
    """The wait ends after the time limit, and no second thread is started while the first still waits."""
    started: list[float] = []

    def hangs(*_: Any) -> list[tuple[Any, ...]]:
        started.append(time.monotonic())
        time.sleep(0.6)
        return entries("10.0.0.1")

    source = DnsDiscovery(DnsSettings(name="vllm"), resolve=hangs, timeout=0.1)
    for _ in range(2):
        with pytest.raises(DiscoveryError, match="resolver"):
            source.find()
    assert len(started) == 1


def test_the_real_resolver_knows_localhost() -> None:
    """The same through the C library."""
    names = [server.url for server in DnsDiscovery(DnsSettings(name="localhost", port=8123)).find()]
    assert "http://127.0.0.1:8123" in names


# --------------------------------------------------------------------------- Kubernetes


def pod(name: str, *, ip: str = "10.1.0.7", ports: tuple[tuple[str, int], ...] = (("http", 8000),), **more: Any) -> Any:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", **more},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "vllm", "ports": [{"name": n, "containerPort": p} for n, p in ports]}],
        },
        "status": {"phase": "Running", "podIP": ip},
    }


def account(folder: Path) -> Path:
    (folder / "token").write_text("secret-token\n")
    return folder


def source_of(api: str, folder: Path, **settings: Any) -> KubernetesDiscovery:
    return KubernetesDiscovery(
        KubernetesSettings(**settings), environ={"NODE_NAME": "node-1"}, account=account(folder), api=api
    )


def test_pods_of_this_node_become_servers_matched_by_uid(tmp_path: Path) -> None:
    """The API is asked for the label on this node, with the token of the moment; each pod is a server."""
    with served() as answers:
        answers.body = json.dumps(
            {"items": [pod("chat-0"), pod("embed-0", ip="fd00::7", ports=(("web", 9000),))]}
        ).encode()
        source = source_of(answers.url, tmp_path, selector="app=vllm,tier in (a,b)")
        servers = source.find()
        assert [(server.name, server.url) for server in servers] == [
            ("chat-0", "http://10.1.0.7:8000"),
            ("embed-0", "http://[fd00::7]:9000"),
        ]
        assert servers[0].match is not None
        assert servers[0].match.pod == "uid-chat-0"
        path, headers = answers.asked[0]
        query = parse_qs(urlsplit(path).query)
        assert urlsplit(path).path == "/api/v1/pods"
        assert query["labelSelector"] == ["app=vllm,tier in (a,b)"]
        assert query["fieldSelector"] == ["spec.nodeName=node-1,status.phase=Running"]
        assert headers["authorization"] == "Bearer secret-token"
        (tmp_path / "token").write_text("rotated")
        source.find()
        assert answers.asked[1][1]["authorization"] == "Bearer rotated"


def test_long_lists_come_in_pages(tmp_path: Path) -> None:
    """The continue token is followed, for a bounded number of pages."""
    with served() as answers:

        def pages(handler: BaseHTTPRequestHandler) -> None:
            token = int(parse_qs(urlsplit(handler.path).query).get("continue", ["0"])[0])
            items = [pod(f"p{token}-{number}", ip=f"10.{token}.0.{number}") for number in range(100)]
            body = json.dumps({"metadata": {"continue": str(token + 1)}, "items": items}).encode()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        answers.behaviour = pages
        assert len(source_of(answers.url, tmp_path).find()) == 500
        assert len(answers.asked) == 8


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ((("http", 8123), ("debug", 8000)), 8123),
        ((("a", 8000), ("b", 9000)), 8000),
        ((("a", 9000),), 9000),
        ((("a", 1), ("b", 2)), 8000),
        ((), 8000),
    ],
)
def test_the_port_is_the_named_one_else_the_only_one_else_the_number(ports: Any, port: int) -> None:
    """A pod may name several ports or none."""
    made = pod_server(pod("chat", ports=ports), KubernetesSettings())
    assert not isinstance(made, str)
    assert made.url == f"http://10.1.0.7:{port}"


def test_static_pods_are_matched_by_their_hash() -> None:
    """The API shows a static pod under a uid that is not in its processes' cgroup."""
    made = pod_server(pod("chat", annotations={"kubernetes.io/config.hash": "abc123"}), KubernetesSettings())
    assert not isinstance(made, str)
    assert made.match is not None
    assert made.match.pod == "abc123"


@pytest.mark.parametrize(
    "broken", [None, {}, [], "x", {"metadata": []}, {"metadata": {"name": "a", "uid": "b"}, "status": 3}]
)
def test_broken_pods_are_left_out_with_a_reason(broken: Any) -> None:
    """Whatever the API says, nothing raises."""
    assert isinstance(pod_server(broken, KubernetesSettings()), str)


@pytest.mark.parametrize(
    ("status", "why"), [(403, "right to `list` pods"), (401, "right to `list` pods"), (500, "HTTP 500")]
)
def test_a_refusal_names_the_right_that_is_missing(tmp_path: Path, status: int, why: str) -> None:
    """The remedy for 401 and 403 is a role binding."""
    with served() as answers:
        answers.status = status
        with pytest.raises(DiscoveryError, match=why):
            source_of(answers.url, tmp_path).find()


def test_outside_of_a_pod_it_says_so(tmp_path: Path) -> None:
    """Each missing piece is named."""
    settings = KubernetesSettings()
    with pytest.raises(DiscoveryError, match="inside a pod only"):
        KubernetesDiscovery(settings, environ={}, account=tmp_path).find()
    with pytest.raises(DiscoveryError, match="NODE_NAME is not set"):
        KubernetesDiscovery(settings, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, account=tmp_path).find()
    with pytest.raises(DiscoveryError, match="automountServiceAccountToken"):
        KubernetesDiscovery(
            settings, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "n"}, account=tmp_path
        ).find()


def test_an_own_namespace_is_asked_alone(tmp_path: Path) -> None:
    """A Role instead of a ClusterRole is enough then."""
    with served() as answers:
        answers.body = b'{"items": []}'
        assert source_of(answers.url, tmp_path, namespace="ml").find() == []
        assert answers.asked[0][0].startswith("/api/v1/namespaces/ml/pods?")


# --------------------------------------------------------------------------- wiring


def test_every_source_is_built_when_it_is_configured() -> None:
    """Processes are looked for only when nothing else is listed or configured."""
    assert [source.name for source in build_discovery(Settings())] == ["processes"]
    all_of_them = Settings.model_validate(
        {
            "discovery": {
                "processes": True,
                "file": {"files": ["x.json"], "every": "2s"},
                "http": {"url": "http://127.0.0.1:1/"},
                "dns": {"name": "vllm"},
                "kubernetes": {},
            }
        }
    )
    sources = build_discovery(all_of_them)
    assert [source.name for source in sources] == ["processes", "file", "http", "dns", "kubernetes"]
    assert sources[1].every == 2.0
    assert [s.name for s in build_discovery(Settings.model_validate({"discovery": {"dns": {"name": "vllm"}}}))] == [
        "dns"
    ]


def test_a_reload_that_changes_discovery_is_refused_and_says_so(tmp_path: Path) -> None:
    """Sources are built at the start; a change that would silently do nothing is an error instead."""
    config = tmp_path / "vllmeter.yaml"
    config.write_text("nvml: {enabled: false}\ndiscovery: {file: {files: [a.json]}}\n")
    exporter = Exporter(load_config(config), config_path=config, state_dir=tmp_path)
    exporter.reload()
    config.write_text("nvml: {enabled: false}\ndiscovery: {file: {files: [b.json]}}\n")
    with pytest.raises(ConfigError, match="discovery: changes only by a restart"):
        exporter.reload()
