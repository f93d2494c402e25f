"""Options of every command that asks a running exporter: address, TLS, credentials.

Secrets come from files or from the environment: there is no option for a password or a token itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from vllmeter.config.settings import Settings

if TYPE_CHECKING:
    from vllmeter.remote import Access

PANEL = "Exporter behind TLS or a password (docs/security.md)"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--exporter", "--url", "-u", envvar="VLLMETER_URL", help="Address of the exporter, such as https://gpu1:9877."
    ),
]
CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="VLLMETER_CA_FILE",
        rich_help_panel=PANEL,
        help="CA that signed its certificate; default: those of the system.",
    ),
]
CertFileOption = Annotated[
    Path | None,
    typer.Option(
        "--cert-file",
        envvar="VLLMETER_CERT_FILE",
        rich_help_panel=PANEL,
        help="Client certificate, if it wants one.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file", envvar="VLLMETER_KEY_FILE", rich_help_panel=PANEL, help="Key of the client certificate."
    ),
]
ServerNameOption = Annotated[
    str | None,
    typer.Option(
        "--server-name",
        envvar="VLLMETER_SERVER_NAME",
        rich_help_panel=PANEL,
        help="Name in its certificate, when it is reached by another one (a tunnel).",
    ),
]
UsernameOption = Annotated[
    str | None,
    typer.Option("--username", envvar="VLLMETER_USERNAME", rich_help_panel=PANEL, help="User of basic authentication."),
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        envvar="VLLMETER_PASSWORD_FILE",
        rich_help_panel=PANEL,
        help="File with the password; or the password itself in VLLMETER_PASSWORD.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="VLLMETER_TOKEN_FILE",
        rich_help_panel=PANEL,
        help="File with a bearer token; or the token itself in VLLMETER_TOKEN.",
    ),
]


def access_from(
    url: str,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    server_name: str | None,
    username: str | None,
    password_file: Path | None,
    token_file: Path | None,
) -> Access:
    """What the options say together, files checked; a mistake is one line on standard error and exit code 2."""
    from vllmeter.remote import AccessError, make_access

    try:
        access = make_access(
            url,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            server_name=server_name,
            username=username,
            password_file=password_file,
            token_file=token_file,
            environment=os.environ,
        )
    except AccessError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    if access.exposed:
        typer.echo(f"note: {access.url}: the credentials cross the network unencrypted; use https", err=True)
    return access


def own_address(settings: Settings) -> str:
    """Where the exporter of this configuration listens, seen from this host; https when its ``web.yml`` says TLS."""
    host = "127.0.0.1" if settings.listen_host in ("", "0.0.0.0", "::") else settings.listen_host  # noqa: S104
    place = f"{f'[{host}]' if ':' in host else host}:{settings.listen_port}"
    known = speaks_tls(settings)
    return place if known is None else f"{'https' if known else 'http'}://{place}"


def speaks_tls(settings: Settings) -> bool | None:
    """Whether the ``web_config`` of these settings switches TLS on; None when this user cannot read it."""
    found = _web_config(settings)
    return None if found is None else found.get("tls_server_config") is not None


def _web_config(settings: Settings) -> dict[str, object] | None:
    """Only looked at, not checked: the files that it names may be readable for the exporter alone."""
    if settings.web_config is None:
        return {}
    try:
        data = yaml.safe_load(settings.web_config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return data if isinstance(data, dict) else {}
