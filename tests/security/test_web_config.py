"""web.yml: what is accepted, and that a mistake never shows a secret."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest

from security import certificates
from vllmeter.config.load import ConfigError
from vllmeter.web.web_config import load_web_config

# A fixed salt: two workers of one run must collect the same tests.
HASH = bcrypt.hashpw(b"hunter2", b"$2b$04$abcdefghijklmnopqrstuu").decode()


def load(folder: Path, text: str) -> object:
    path = folder / "web.yml"
    path.write_text(text)
    return load_web_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("basic_auth_user: {a: b}", "web.yml:1: basic_auth_user: unknown key; did you mean `basic_auth_users`?"),
        ("http_server_config: {http2: true}", "http_server_config: unknown key"),
        ("rate_limit: {burst: 1}", "rate_limit: unknown key"),
        ("basic_auth_users: {alice: hunter2-in-clear}", "alice: no bcrypt hash"),
        ("basic_auth_users: {'a:b': x}", "must not hold a colon"),
        (f"basic_auth_users: {{alice: '{HASH.replace('$04$', '$31$')}'}}", "cost must be from 4 to 15"),
        ("bearer_token_files: [missing]", "missing cannot be read (No such file or directory): check the"),
        ("bearer_token_files: [short]", "fewer than 16 characters"),
        ("allowed_hosts: ['http://x']", "host names without scheme"),
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file: missing"),
        ("tls_server_config: {cert_file: a, key_file: b}", "tls_server_config.cert_file: "),
        ("tls_server_config: {cert_file: a, key_file: b}", "/a cannot be read (No such file or directory): check the"),
        ("tls_server_config: {cert_file: short, key_file: b}", "/b cannot be read (No such file or directory): check"),
        ("tls_server_config: {cert_file: short, key_file: short}", "a certificate file cannot be used"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}", "of anybody"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: Maybe}", "use NoClientCert"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "belong together"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "min_version"),
        ("[1]", "expected settings like `tls_server_config:`"),
    ],
)
def test_each_mistake_is_named_and_no_value_is_shown(tmp_path: Path, text: str, message: str) -> None:
    """What we do not do is refused by name; a password in clear by mistake does not get into a log."""
    (tmp_path / "short").write_text("s3cret\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_files_lie_beside_the_configuration_and_secrets_do_not_print(tmp_path: Path) -> None:
    """Relative paths start at web.yml, as in exporter-toolkit; the loaded object can be logged."""
    certificates.make(tmp_path)
    (tmp_path / "token").write_text("0123456789abcdef-token\n")
    security = load(
        tmp_path,
        "tls_server_config: {cert_file: server.pem, key_file: server.key, client_auth_type: "
        "RequireAndVerifyClientCert, client_ca_file: ca.pem, min_version: TLS13}\n"
        f"basic_auth_users: {{alice: '{HASH}'}}\nbearer_token_files: [token]\nallowed_hosts: [GPU1.example.com]\n",
    )
    assert repr(security) == "WebSecurity(users=1, tokens=1, tls=True)"
    assert security.tokens == (b"0123456789abcdef-token",)  # type: ignore[attr-defined]
    assert security.allowed_hosts == ("gpu1.example.com",)  # type: ignore[attr-defined]


def test_an_empty_file_is_an_open_exporter(tmp_path: Path) -> None:
    """Nothing set, nothing asked."""
    assert load(tmp_path, "").authenticates is False  # type: ignore[attr-defined]
