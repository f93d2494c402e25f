"""``web.yml``: TLS and authentication of our own endpoint, in the form of Prometheus' exporter-toolkit.

A documented subset (docs/security.md): what Python cannot offer, or what we do not do, is refused by name instead of
being ignored.  ``bearer_token_files`` and ``allowed_hosts`` are ours.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import bcrypt
from pydantic import Field, field_validator, model_validator

from vllmeter.config.load import ConfigError, parse_model
from vllmeter.config.settings import Strict

_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_DEAREST = 15
"""bcrypt cost: each step doubles the time; 15 takes seconds, and whoever asks makes us compute it"""
_SHORTEST_TOKEN = 16


class TlsServer(Strict):
    """TLS of our own endpoint."""

    cert_file: Path = Field(..., description="Certificate (PEM), the chain included.")
    key_file: Path = Field(..., description="Its key (PEM).")
    client_auth_type: str = Field(
        "NoClientCert", description="NoClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert."
    )
    client_ca_file: Path | None = Field(None, description="CA that signs the certificates of clients.")
    min_version: Literal["TLS12", "TLS13"] = Field("TLS12", description="Oldest version of TLS: TLS12 or TLS13.")

    @field_validator("client_auth_type")
    @classmethod
    def _offered(cls, value: str) -> str:
        if value in ("RequestClientCert", "RequireAnyClientCert"):
            raise ValueError(f"{value} accepts certificates of anybody; use RequireAndVerifyClientCert")
        if value not in ("NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"):
            raise ValueError("use NoClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TlsServer:
        if (self.client_auth_type == "NoClientCert") != (self.client_ca_file is None):
            raise ValueError("client_ca_file and a client_auth_type other than NoClientCert belong together")
        return self


class WebConfig(Strict):
    """The whole ``web.yml``."""

    tls_server_config: TlsServer | None = Field(None, description="TLS.")
    basic_auth_users: dict[Annotated[str, Field(min_length=1, max_length=128)], str] = Field(
        default_factory=dict, description="User name and bcrypt hash of the password."
    )
    bearer_token_files: tuple[Path, ...] = Field((), description="Files that each hold one accepted bearer token.")
    allowed_hosts: tuple[str, ...] = Field((), description="Host names under which browsers may open the page.")

    @field_validator("basic_auth_users")
    @classmethod
    def _hashed(cls, users: dict[str, str]) -> dict[str, str]:
        for user, text in users.items():
            if ":" in user:
                raise ValueError("a user name must not hold a colon")
            found = _HASH.fullmatch(text)
            if found is None:
                raise ValueError(f"{user}: no bcrypt hash; make one with `htpasswd -nBC 10 {user}`")
            if not 4 <= int(found[1]) <= _DEAREST:
                raise ValueError(f"{user}: the bcrypt cost must be from 4 to {_DEAREST}")
        return users

    @field_validator("allowed_hosts")
    @classmethod
    def _names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
                raise ValueError("give host names without scheme and port")
        return tuple(host.lower() for host in hosts)


@dataclass(frozen=True, slots=True)
class WebSecurity:
    """A checked ``web.yml`` with everything that its files hold.  Never printed: it holds secrets."""

    users: dict[str, bytes]
    tokens: tuple[bytes, ...]
    decoy: bytes
    """hash that an unknown user is compared with, as dear as the dearest of the others"""
    allowed_hosts: tuple[str, ...]
    tls: TlsServer | None

    def __repr__(self) -> str:
        return f"WebSecurity(users={len(self.users)}, tokens={len(self.tokens)}, tls={self.tls is not None})"

    @property
    def authenticates(self) -> bool:
        """Whether every request needs a credential."""
        return bool(self.users or self.tokens)


OPEN = WebSecurity({}, (), b"", (), None)
"""Without a ``web.yml``."""


def load_web_config(path: Path) -> WebSecurity:
    """Reads ``web.yml`` and its files; relative paths start at its folder.

    :raises ConfigError: with every mistake; values that were given are never part of the message.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "correct `web_config`, or take it out to serve without TLS and authentication"
        raise ConfigError([f"{path}: cannot be read ({_why(error)}): {remedy}"]) from error
    config = parse_model(text, str(path), WebConfig, show=False)
    tls = config.tls_server_config
    if tls is not None:
        files = {name: _beside(path, getattr(tls, name)) for name in ("cert_file", "key_file", "client_ca_file")}
        tls = tls.model_copy(update=files)
        tls_context(tls, str(path))
    tokens = tuple(_token(_beside(path, file) or file, str(path)) for file in config.bearer_token_files)
    users = {user: text.encode("ascii") for user, text in config.basic_auth_users.items()}
    cost = max((int(text.split(b"$")[2]) for text in users.values()), default=0)
    decoy = bcrypt.hashpw(b"", bcrypt.gensalt(cost)) if users else b""
    return WebSecurity(users, tokens, decoy, config.allowed_hosts, tls)


def tls_context(tls: TlsServer, name: str) -> ssl.SSLContext:
    """The context of our endpoint; ConfigError (naming ``name``) when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    for key in ("cert_file", "key_file", "client_ca_file"):
        file = getattr(tls, key)
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as error:  # OpenSSL would not say which
            remedy = "check the path and its permissions"
            message = f"{name}:1: tls_server_config.{key}: {file} cannot be read ({_why(error)}): {remedy}"
            raise ConfigError([message]) from error
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
        if tls.client_ca_file is not None:
            context.load_verify_locations(cafile=str(tls.client_ca_file))
            required = tls.client_auth_type == "RequireAndVerifyClientCert"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        raise ConfigError([f"{name}:1: tls_server_config: a certificate file cannot be used: {error}"]) from error
    return context


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or "no UTF-8 text"


def _beside(path: Path, file: Path | None) -> Path | None:
    return None if file is None else path.parent / file


def _token(file: Path, name: str) -> bytes:
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        message = f"{name}:1: bearer_token_files: {file} cannot be read ({_why(error)}): check the path"
        raise ConfigError([message]) from error
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigError([f"{name}:1: bearer_token_files: {file} holds fewer than {_SHORTEST_TOKEN} characters"])
    return token
