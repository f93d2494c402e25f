"""The commands that ask a running exporter, as processes of their own, against a real one behind TLS and passwords."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from fakes.openai_stub import OpenAiStub
from security import certificates
from security.serving import ROOT, Served, serving
from vllmeter.config.settings import Server
from vllmeter.remote import AccessError, RemoteError, RemoteExporter, make_access
from vllmeter.scrape.client import ScrapeClient

PASSWORD = "hunter2 with a space"
TOKEN = "0123456789abcdef-token"
KEY = "sk-live-4242"
SECRETS = (PASSWORD, TOKEN, KEY)


@dataclass
class World:
    """A folder with certificates and secrets, and the exporter that wants them."""

    folder: Path
    served: Served

    @property
    def url(self) -> str:
        """Its address."""
        return self.served.url

    @property
    def tls(self) -> list[str]:
        """CA and client certificate as options."""
        return [
            *("--ca-file", str(self.folder / "ca.pem")),
            *("--cert-file", str(self.folder / "client.pem")),
            *("--key-file", str(self.folder / "client.key")),
        ]

    def call(self, *words: str, code: int, **environment: str) -> str:
        """Runs a command; its output, both streams, in which no secret may be."""
        clear = {name: value for name, value in os.environ.items() if not name.startswith("VLLMETER_")}
        done = subprocess.run(
            [sys.executable, "-m", "vllmeter", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=60,
            check=False,
            env={**clear, "PYTHONPATH": str(ROOT / "exporter"), "COLUMNS": "100", **environment},
        )
        text = done.stdout + done.stderr
        assert done.returncode == code, text
        assert "Traceback" not in text
        assert not [secret for secret in SECRETS if secret in text]
        return text


def prepare(folder: Path, more: str = "") -> str:
    """Certificates, secrets and a web.yml that wants all of them; the configuration that names it."""
    certificates.make(folder, plain=True)
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    for name, text in (("password", PASSWORD), ("wrong", "hunter3"), ("token", TOKEN), ("other-token", "x" * 20)):
        (folder / name).write_text(text + "\n")
    (folder / "web.yml").write_text(
        "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: ca.pem, "
        f"client_auth_type: RequireAndVerifyClientCert{more}}}\nbasic_auth_users: {{alice: '{hashed}'}}\n"
        "bearer_token_files: [token]\n"
    )
    return f"listen: 127.0.0.1:0\nnvml: {{enabled: false}}\nweb_config: {folder}/web.yml\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """mTLS, a user and a token in front of an exporter that samples one server five times a second."""
    folder = tmp_path_factory.mktemp("secured")
    with OpenAiStub() as stub:
        config = prepare(folder) + "interval: 200ms\n" + f"servers: [{{name: chat, url: '{stub.url}'}}]\n"
        with serving(folder, config) as served:
            served.wait_for("scrape=ok")
            yield World(folder, served)
            log = served.log
    assert not [secret for secret in SECRETS if secret in log]


def test_top_gets_in_with_a_password_by_options(world: World) -> None:
    """Address, CA, client certificate, user and password file as options."""
    text = world.call(
        "top", "--once", "--url", world.url, *world.tls, "--username", "alice", "--password-file", "password", code=0
    )
    assert "chat" in text


def test_top_gets_in_by_the_environment_alone(world: World) -> None:
    """Every option has a variable; the secret itself may be in one, too."""
    common = {
        "VLLMETER_URL": world.url,
        "VLLMETER_CA_FILE": "ca.pem",
        "VLLMETER_CERT_FILE": "client.pem",
        "VLLMETER_KEY_FILE": "client.key",
    }
    for secret in (
        {"VLLMETER_TOKEN": TOKEN},
        {"VLLMETER_TOKEN_FILE": "token"},
        {"VLLMETER_USERNAME": "alice", "VLLMETER_PASSWORD": PASSWORD},
        {"VLLMETER_USERNAME": "alice", "VLLMETER_PASSWORD_FILE": "password"},
    ):
        document = json.loads(world.call("top", "--json", code=0, **common, **secret))
        assert [server["name"] for server in document["servers"]] == ["chat"]


def stored(folder: Path) -> str:
    """Everything below a folder as text, compressed files unpacked."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found.append((gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace"))
    return "\n".join(found)


def test_run_records_and_marks_with_a_token_and_stores_no_secret(world: World) -> None:
    """Samples (GET) and marks (POST) both pass; of the command line the run keeps no key."""
    code = (
        "import os, time; time.sleep(1)\n"
        "arguments = open(f'/proc/{os.getppid()}/cmdline').read()\n"
        "print('SEEN' if open('token').read().strip() in arguments else 'CLEAN')"
    )
    text = world.call(
        "run", "guarded", "--server", "chat", "--exporter", world.url, *world.tls, "--token-file", "token",
        "--state", "state", "--", sys.executable, "-c", code, "--api-key", KEY, "-H", f"X-Api-Key: {KEY}", code=0,
    )  # fmt: skip
    assert "stored, exit code 0" in text
    assert "CLEAN" in text
    assert "did not take" not in text
    (folder,) = (world.folder / "state" / "runs").glob("*guarded*")
    run = json.loads((folder / "run.json").read_text())
    assert run["sampled_by"] == f"exporter {world.url}"
    assert run["command"][-4:] == ["--api-key", "***", "-H", "X-Api-Key: ***"]
    everything = stored(world.folder / "state")
    assert not [secret for secret in SECRETS if secret in everything]
    live = RemoteExporter(access(world)).get("/api/live")
    assert [(mark["run"], mark["ended"] is not None) for mark in live["runs"]] == [("guarded", True)]


def test_run_does_not_pass_over_an_exporter_that_keeps_it_out(world: World, tmp_path: Path) -> None:
    """Without --exporter, the configured one is found with https; recording beside it unnoticed would lose the mark."""
    config = tmp_path / "vllmeter.yaml"
    config.write_text((world.folder / "vllmeter.yaml").read_text().replace(":0\n", f":{world.served.port}\n", 1))
    words = ("run", "x", "--config", str(config), "--state", str(tmp_path / "s"))
    text = world.call(*words, *world.tls, "--", "true", code=1)
    assert f"{world.url}: it wants credentials. Give --username with --password-file or --token-file" in text
    text = world.call(*words, "--", "true", code=1)
    assert "its certificate is not signed by the CAs of this system" in text
    assert not (tmp_path / "s" / "runs").exists()
    text = world.call(*words, *world.tls, "--token-file", "token", "--", "true", code=0)
    assert "stored" in text


@pytest.mark.parametrize(
    ("command", "code"), [(("top", "--once"), 2), (("run", "x", "--state", "no"), 1)], ids=["top", "run"]
)
def test_both_commands_say_the_same_and_keep_their_exit_codes(
    world: World, command: tuple[str, ...], code: int
) -> None:
    """Place, cause and remedy in one line."""
    after = ("--", "true") if command[0] == "run" else ()
    wrong = (*world.tls, "--username", "alice", "--password-file", "wrong")
    text = world.call(*command, "--url", world.url, *wrong, *after, code=code)
    assert text.strip() == (
        f"{world.url}: it refuses user 'alice' with the password of wrong. Compare with basic_auth_users of its web.yml"
    )
    plain = world.url.replace("https", "http")
    text = world.call(*command, "--url", plain, *after, code=code)
    assert text.strip() == f"{plain}: this port speaks TLS. Write {world.url}, with --ca-file when its CA is your own"
    text = world.call(*command, "--url", world.url, "--ca-file", "nowhere.pem", *after, code=2)
    assert text.strip() == (
        "--ca-file nowhere.pem: cannot be read (No such file or directory): check the path and its permissions"
    )
    text = world.call(*command, "--url", world.url.replace("//", f"//alice:{KEY}@"), *after, code=2)
    assert "holds credentials" in text
    assert "--password-file" in text
    assert "No such option" in world.call(*command, "--password", "x", *after, code=2)


# ---------------------------------------------------------------------------- one request each, in this process


def access(world: World, **changes: Any) -> Any:
    files = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key", "token_file": "token", **changes}
    named = {key: world.folder / name for key, name in files.items() if key.endswith("_file") and name is not None}
    return make_access(files.get("url", world.url), environment={}, username=files.get("username"), **named)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"token_file": None},
            "credentials",
            "it wants credentials. Give --username with --password-file or --token-f",
        ),
        ({"token_file": "other-token"}, "credentials", "other-token. Compare with bearer_token_files of its web.yml"),
        ({"ca_file": None}, "tls", "not signed by the CAs of this system. Give the CA that signed it with --ca-file"),
        ({"ca_file": "stranger.pem"}, "tls", "stranger.pem. Give the CA that signed it with --ca-file"),
        (
            {"cert_file": None, "key_file": None},
            "tls",
            "it wants a client certificate. Give --cert-file and --key-file",
        ),
        (
            {"cert_file": "stranger.pem", "key_file": "stranger.key"},
            "tls",
            "expired, or another CA signed it. Renew it",
        ),
    ],
    ids=["no credentials", "wrong token", "no CA", "wrong CA", "no certificate", "certificate of a stranger"],
)
def test_each_refusal_says_what_to_give(world: World, changes: dict[str, Any], kind: str, message: str) -> None:
    """The exporter lives on, and who has everything gets in."""
    with pytest.raises(RemoteError) as caught:
        RemoteExporter(access(world, **changes)).healthy()
    assert caught.value.kind == kind
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{world.url}: ")
    RemoteExporter(access(world)).healthy()


def test_a_name_that_the_certificate_does_not_hold(world: World) -> None:
    """Through a tunnel the address is another: --server-name says whose certificate is expected."""
    url = world.url.replace("127.0.0.1", "localhost")
    with pytest.raises(RemoteError, match=r"its certificate is not for 'localhost'.*--server-name"):
        RemoteExporter(access(world, url=url)).healthy()
    RemoteExporter(replace(access(world, url=url), server_name="127.0.0.1")).healthy()


def test_a_home_made_ca_is_taken_by_every_python(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 made contexts strict; what Prometheus and curl take must not depend on that, here and in scrapes."""
    real = ssl.create_default_context

    def strict(*args: Any, **more: Any) -> ssl.SSLContext:
        context = real(*args, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    RemoteExporter(access(world)).healthy()
    files = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key"}
    tls = {key: str(world.folder / name) for key, name in files.items()}
    auth = {"bearer_token_file": str(world.folder / "token")}
    client = ScrapeClient(Server.model_validate({"name": "x", "url": world.url, "tls": tls, "auth": auth}))
    got = client.metrics()
    client.close()
    assert got.ok, got


def test_a_rotated_token_is_read_again(world: World) -> None:
    """A run of hours outlives its token."""
    rotating = world.folder / "rotating"
    rotating.write_text("y" * 20)
    remote = RemoteExporter(access(world, token_file="rotating"))
    with pytest.raises(RemoteError):
        remote.healthy()
    rotating.write_text(TOKEN)
    remote.healthy()


def test_expired_certificates_are_named_on_both_sides(tmp_path: Path) -> None:
    """The exporter's own, and the client's."""
    config = prepare(tmp_path, ", min_version: TLS13")
    certificates.signed(tmp_path, "client", days=-1)
    with serving(tmp_path, config) as served:
        there = World(tmp_path, served)
        with pytest.raises(RemoteError, match=r"client certificate .*client\.pem: it has expired, or another CA"):
            RemoteExporter(access(there)).healthy()
    certificates.signed(tmp_path, "server", days=-1)
    certificates.signed(tmp_path, "client")
    with serving(tmp_path, config) as served:
        there = World(tmp_path, served)
        with pytest.raises(RemoteError, match=r"has expired\. Renew the cert_file of its web\.yml"):
            RemoteExporter(access(there)).healthy()


def test_an_address_with_https_where_none_is_spoken(tmp_path: Path) -> None:
    """The other way round."""
    with serving(tmp_path, "listen: 127.0.0.1:0\nnvml: {enabled: false}\n") as served:
        url = served.url.replace("http", "https")
        with pytest.raises(RemoteError, match=f"this port speaks no TLS. Write {served.url}"):
            RemoteExporter(make_access(url, environment={})).healthy()
        remote = RemoteExporter(make_access(served.url, environment={}))
        with pytest.raises(RemoteError, match=r"answers 404.*Check the port"):
            remote.get("/no-such-path")
        with pytest.raises(RemoteError, match="its answer is no JSON"):
            remote.get("/metrics")


def test_what_else_may_be_behind_an_address() -> None:
    """Nothing, a port that says nothing, one that hangs up, one that redirects: never a credential sent on."""
    with pytest.raises(RemoteError, match=r"connection refused.*vllmeter serve"):
        RemoteExporter(make_access("127.0.0.1:9", environment={})).healthy()
    with pytest.raises(RemoteError, match="no such host"):
        RemoteExporter(make_access("no-such-host.invalid:9877", environment={})).healthy()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = RemoteExporter(make_access(f"127.0.0.1:{silent.getsockname()[1]}", environment={}))
        with pytest.raises(RemoteError, match=r"no answer within 0\.3 s"):
            remote.healthy(0.3)
    answers: list[bytes] = []

    def serve(sock: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = sock.accept()
            except OSError:
                return
            with connection:
                answers.append(connection.recv(65536))
                connection.sendall(answer)

    for answer, words in (
        (b"", "closed without an answer"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://evil\x1b[31m/\r\nContent-Length: 0\r\n\r\n",
            r"redirects to http://evil",
        ),
        (b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n\x1b[2Jboom\n", r"answers 500: \?\[2Jboom"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as sock:
            threading.Thread(target=serve, args=(sock, answer), daemon=True).start()
            remote = RemoteExporter(
                make_access(f"http://127.0.0.1:{sock.getsockname()[1]}", environment={"VLLMETER_TOKEN": TOKEN})
            )
            with pytest.raises(RemoteError, match=words) as caught:
                remote.get("/api/live")
            assert "\x1b" not in str(caught.value)
            assert TOKEN not in str(caught.value)
    assert TOKEN.encode() in answers[0]


@pytest.mark.parametrize(
    ("given", "environment", "message"),
    [
        ({"username": "a"}, {}, "--username a: no password: give --password-file FILE, or set VLLMETER_PASSWORD"),
        ({"password_file": "password"}, {}, "--password-file: no user: give --username, or set VLLMETER_USERNAME"),
        ({}, {"VLLMETER_PASSWORD": PASSWORD}, "VLLMETER_PASSWORD: no user"),
        ({"username": "a", "password_file": "password"}, {"VLLMETER_PASSWORD": PASSWORD}, "use one of them"),
        ({"token_file": "token"}, {"VLLMETER_TOKEN": TOKEN}, "--token-file and VLLMETER_TOKEN are both given"),
        ({"username": "a", "token_file": "token"}, {}, "--username and --token-file are both given"),
        ({"username": "a:b", "password_file": "password"}, {}, "a user name holds no colon"),
        ({"token_file": "none"}, {}, "none: cannot be read (No such file or directory)"),
        ({"token_file": "empty"}, {}, "empty: is empty"),
        ({"token_file": "binary"}, {}, "binary: is no text"),
        ({"token_file": "lines"}, {}, "lines: holds several lines"),
        ({"token_file": "words"}, {}, "words: holds more than a token"),
        ({"key_file": "token"}, {}, "belongs to a certificate"),
        ({"ca_file": "token"}, {}, "token: holds no certificate in PEM form"),
        ({"cert_file": "client.pem", "key_file": "server.key"}, {}, "certificate and key do not belong together"),
        ({"cert_file": "client.pem"}, {}, "(without --key-file): no certificate with an unencrypted key"),
        ({"cert_file": "client.pem", "key_file": "locked.key"}, {}, "no certificate with an unencrypted key"),
        ({"url": f"https://alice:{KEY}@h"}, {}, "holds credentials"),
        ({"url": f"alice:{KEY}@h:9"}, {}, "holds credentials"),
        ({"url": f"http://alice:{KEY}@[h"}, {}, "holds credentials"),
        ({"url": "http://h:99999"}, {}, "write for example"),
        ({"url": "ftp://h"}, {}, "write for example"),
        ({"url": "http://"}, {}, "write for example"),
    ],
)
def test_mistakes_in_the_options_are_explained_before_anything_is_asked(
    tmp_path: Path, given: dict[str, Any], environment: dict[str, str], message: str
) -> None:
    """Which option or file, what is wrong, what to do; no secret."""
    prepare(tmp_path)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "lines").write_text(f"{TOKEN}\n{TOKEN}\n")
    (tmp_path / "words").write_text(f"Bearer {TOKEN}\n")
    subprocess.run(
        ["openssl", "ec", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", "locked.key"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    files = {key: tmp_path / name for key, name in given.items() if key.endswith("_file")}
    rest = {key: value for key, value in given.items() if not key.endswith("_file")}
    with pytest.raises(AccessError) as caught:
        make_access(**{"url": "https://127.0.0.1:1", **rest, **files}, environment=environment)
    assert message in str(caught.value)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]


def test_an_address_is_completed_and_nothing_secret_is_printed(tmp_path: Path) -> None:
    """https as soon as a TLS option is given; repr and warnings hold no secret."""
    prepare(tmp_path)
    token = {"VLLMETER_TOKEN": TOKEN}
    assert make_access("gpu1:9877/", environment={}).url == "http://gpu1:9877"
    assert make_access("gpu1:9877", ca_file=tmp_path / "ca.pem", environment={}).url == "https://gpu1:9877"
    assert make_access("http://[::1]:9877/base/", environment={}).url == "http://[::1]:9877/base"
    assert TOKEN not in repr(make_access("gpu1", environment=token))
    assert make_access("http://gpu1", environment=token).exposed
    assert not make_access("https://gpu1", environment=token).exposed
    assert not make_access("http://127.0.0.1", environment=token).exposed


# ---------------------------------------------------------------------------- stack


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's prometheus is not installed")
def test_stack_lets_prometheus_in(tmp_path: Path) -> None:
    """`vllmeter stack` with a web_config: Prometheus scrapes over mTLS with a password; else it says why not."""
    config = prepare(tmp_path)
    (tmp_path / "vllmeter.yaml").write_text(config)
    here = World(tmp_path, Served(subprocess.Popen(["true"]), tmp_path / "none"))
    here.served.process.wait()
    words = ("stack", "--config", "vllmeter.yaml", "--folder", "kept")
    text = here.call(*words, *here.tls, code=1)
    assert "it wants credentials. Give --username with --password-file or --token-file" in text
    text = here.call(*words, *here.tls, code=2, VLLMETER_TOKEN=TOKEN)
    assert "Prometheus reads its credentials from a file" in text
    log = tmp_path / "stack.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllmeter", *words, *here.tls, "--username", "alice", "--password-file", "password"],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "exporter"), "PYTHONUNBUFFERED": "1"},
        )
    try:
        deadline = time.monotonic() + 60
        while (found := re.search(r"prometheus +(http://\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        while True:
            with urllib.request.urlopen(found[1] + "/api/v1/query?query=up", timeout=5) as answer:
                result = json.load(answer)["data"]["result"]
            if [(each["metric"]["job"], each["value"][1]) for each in result] == [("vllmeter", "1")]:
                break
            assert time.monotonic() < deadline, result
            time.sleep(0.5)
    finally:
        process.terminate()
        process.wait(30)
    assert not [secret for secret in SECRETS if secret in stored(tmp_path / "kept") + log.read_text()]
