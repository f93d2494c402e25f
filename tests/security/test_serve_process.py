"""``vllmeter serve`` as a process: its end, its start, TLS, slow clients, and what never leaves it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
import requests

from fakes import fault_server as f
from security import certificates
from security.serving import Served, launch, serving
from vllmeter.web.server import REQUEST_SECONDS

QUIET = "listen: 127.0.0.1:0\nnvml: {enabled: false}\ndiscovery: {processes: false}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(tmp_path: Path, number: int) -> None:
    """systemd, Docker and Kubernetes count anything else as a failure."""
    with serving(tmp_path, QUIET) as served:
        assert requests.get(served.url + "/metrics", timeout=5).status_code == 200
        begun = time.monotonic()
        assert served.end(number) == 0
        assert time.monotonic() - begun < 8
        assert served.log.rstrip().endswith("stopped")


def test_an_open_page_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The stream of the live page is closed by us."""
    with serving(tmp_path, QUIET) as served:
        stream = requests.get(served.url + "/api/stream", stream=True, timeout=5)
        assert stream.status_code == 200
        assert next(stream.iter_content(16))
        begun = time.monotonic()
        assert served.end() == 0
        assert time.monotonic() - begun < 8
        stream.close()


def test_sighup_loads_the_file_again_and_a_bad_one_keeps_the_old(tmp_path: Path) -> None:
    """Servers come and go without a restart; a mistake is logged with its line."""
    with f.FaultServer() as server, serving(tmp_path, QUIET) as served:
        path = tmp_path / "vllmeter.yaml"
        path.write_text(QUIET + f"servers: [{{name: a, url: '{server.url}'}}]\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("config=loaded")
        served.wait_for("server=a")
        path.write_text(QUIET + "server: []\n")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("config=kept")
        assert 'server_up{server="a"}' in requests.get(served.url + "/metrics", timeout=5).text
        assert served.end() == 0


def test_a_taken_port_is_one_clear_message(tmp_path: Path) -> None:
    """No traceback, exit code 1, and nothing was started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = launch(tmp_path, QUIET, "--listen", f"127.0.0.1:{port}")
        assert served.process.wait(20) == 1
    assert served.log.strip() == (
        f"listen 127.0.0.1:{port}: Address already in use. Use another --listen, or stop what uses the port."
    )


def test_a_bad_web_config_ends_the_start_with_its_line(tmp_path: Path) -> None:
    """Never an open exporter where a closed one was asked for."""
    (tmp_path / "web.yml").write_text("basic_auth: {}\n")
    served = launch(tmp_path, QUIET + f"web_config: {tmp_path}/web.yml\n")
    assert served.process.wait(20) == 2
    assert f"{tmp_path}/web.yml:1: basic_auth: unknown key" in served.log


def test_it_starts_without_an_nvidia_library(tmp_path: Path) -> None:
    """Also where the binding itself is missing: everything but the GPU works, and the reason is on /metrics."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "pynvml.py").write_text("raise ImportError('not installed')\n")
    root = Path(__file__).resolve().parents[2]
    env = {"PYTHONPATH": f"{tmp_path}/shim:{root}/exporter"}
    with serving(tmp_path, "listen: 127.0.0.1:0\ndiscovery: {processes: false}\n", env=env) as served:
        served.wait_for("nvml=down")
        wanted = 'vllmeter_nvml_status_info{reason="no_pynvml"} 1'
        deadline = time.monotonic() + 10
        while wanted not in (text := requests.get(served.url + "/metrics", timeout=5).text):
            assert time.monotonic() < deadline, text
            time.sleep(0.3)
        assert "vllmeter_nvml_up 0" in text
        assert served.end() == 0


# ---------------------------------------------------------------------------- TLS


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Served]:
    """TLS with required client certificates, and one user."""
    certificates.make(tmp_path)
    hashed = bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(
        "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: ca.pem, "
        f"client_auth_type: RequireAndVerifyClientCert}}\nbasic_auth_users: {{alice: '{hashed}'}}\n"
    )
    with serving(tmp_path, QUIET + f"web_config: {tmp_path}/web.yml\n") as served:
        yield served


def test_tls_with_client_certificates_and_a_password(secured: Served, tmp_path: Path) -> None:
    """Right certificate and password: in.  Anything less: out, and the exporter lives on."""
    ca, own = str(tmp_path / "ca.pem"), (str(tmp_path / "client.pem"), str(tmp_path / "client.key"))
    stranger = (str(tmp_path / "stranger.pem"), str(tmp_path / "stranger.key"))
    assert secured.url.startswith("https://")
    url = secured.url + "/metrics"
    assert requests.get(url, verify=ca, cert=own, auth=("alice", "hunter2"), timeout=5).status_code == 200
    assert requests.get(url, verify=ca, cert=own, timeout=5).status_code == 401
    for cert in (None, stranger):
        with pytest.raises(requests.ConnectionError):
            requests.get(url, verify=ca, cert=cert, auth=("alice", "hunter2"), timeout=5)
    with pytest.raises(requests.ConnectionError):
        requests.get(url.replace("https", "http"), timeout=5)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", secured.port), 5) as sock:
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.load_cert_chain(*own)
        with old.wrap_socket(sock) as tls:
            assert tls.version() == "TLSv1.2"
    assert requests.get(url, verify=ca, cert=own, auth=("alice", "hunter2"), timeout=5).status_code == 200


def test_a_renewed_certificate_is_used_without_a_restart(secured: Served, tmp_path: Path) -> None:
    """Certificates live for weeks, exporters for months."""

    def shown() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        with socket.create_connection(("127.0.0.1", secured.port), 5) as sock, context.wrap_socket(sock) as tls:
            return tls.getpeercert(binary_form=True) or b""

    before = shown()
    certificates.signed(tmp_path, "server")
    deadline = time.monotonic() + 10
    while shown() == before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert shown() != before


# ---------------------------------------------------------------------------- hostile clients


def test_clients_that_never_ask_are_let_go(tmp_path: Path) -> None:
    """Half a request keeps a connection for seconds, not for ever; others are served meanwhile."""
    with serving(tmp_path, QUIET) as served:
        held = [socket.create_connection(("127.0.0.1", served.port), 5) for _ in range(50)]
        for sock in held[:25]:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: local")
        assert requests.get(served.url + "/metrics", timeout=5).status_code == 200
        begun = time.monotonic()
        for sock in held:
            sock.settimeout(REQUEST_SECONDS + 10)
            assert sock.recv(1000) == b""
            sock.close()
        assert time.monotonic() - begun < REQUEST_SECONDS + 8
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000)
            assert b"400" in sock.recv(1000)
        assert served.end() == 0


def test_no_request_adds_a_server_or_an_address() -> None:
    """The list of servers comes from the file and discovery: no route takes an address, so there is no open proxy."""
    from vllmeter.config.settings import Settings
    from vllmeter.web.app import create_app
    from vllmeter.wiring import Exporter

    exporter = Exporter(Settings.model_validate({"nvml": {"enabled": False}}))
    description = json.dumps(create_app(exporter).openapi()).lower()
    exporter.stop()
    names = {"url", "target", "address", "host", "proxy", "endpoint", "port"}
    found = {name for name in names if f'"name": "{name}"' in description or f'"{name}": {{"' in description}
    assert not found


# ---------------------------------------------------------------------------- secrets

SECRETS = ("sk-live-4242", "hf_s3cr3t", "t0ken-of-the-server", "pw-in-address", "hunter2")


def test_no_secret_leaves_the_process(tmp_path: Path) -> None:
    """API keys in other processes' arguments, tokens for servers, passwords in addresses: on no page, in no log."""
    neighbour = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "vllm", "serve", "m", "--api-key", SECRETS[0]],
        env={**os.environ, "HF_TOKEN": SECRETS[1], "VLLM_API_KEY": SECRETS[1]},
    )
    config = (
        "listen: 127.0.0.1:0\nnvml: {processes_every: 1s}\ndiscovery: {processes: true}\n"
        f"prometheus: {{url: 'http://bob:{SECRETS[3]}@127.0.0.1:1'}}\n"
        f"servers: [{{name: a, url: 'URL', auth: {{bearer_token_env: MY_TOKEN}}, match: {{command: 'vllm serve'}}}}]\n"
    )
    try:
        with f.FaultServer(f.status("401 Unauthorized", SECRETS[4].encode())) as server:
            text = config.replace("URL", server.url)
            with serving(tmp_path, text, "--log-level", "debug", env={"MY_TOKEN": SECRETS[2]}) as served:
                served.wait_for("reason=auth")
                time.sleep(2)
                seen = {
                    path: urllib.request.urlopen(served.url + path, timeout=5).read().decode()
                    for path in ("/metrics", "/snapshot.json", "/config", "/sd", "/", "/openapi.json")
                }
                assert any(SECRETS[2] in headers.get("authorization", "") for _, headers in server.requests)
                assert served.end() == 0
                seen["log"] = served.log
    finally:
        neighbour.kill()
        neighbour.wait()
    for place, content in seen.items():
        for secret in SECRETS:
            assert secret not in content, place
    assert "http://***@127.0.0.1:1" in seen["/config"]


def test_a_log_line_with_a_secret_is_masked(tmp_path: Path) -> None:
    """Whoever writes it, also a library."""
    code = (
        "import logging; from vllmeter.cli.serve import setup_logging; setup_logging('info')\n"
        "logging.getLogger('x').info('Authorization: Bearer %s at http://u:%s@h/', 'abc-def', 'hunter2')\n"
        "logging.getLogger('y').info('plain %d', 7)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "exporter")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert "Bearer *** at http://***@h/" in done.stderr
    assert "plain 7" in done.stderr
