"""HTTP to a running exporter: the one way in which our own commands ask one, with TLS and credentials.

Secrets come from files or from the environment, never from an address or an option: command lines are readable by every
process of the host and are kept by shells.  No message holds one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3

from vllmeter import __version__
from vllmeter.config.addresses import is_loopback

TIMEOUT_SECONDS: Final = 5.0
MOST_BYTES: Final = 256 << 20
"""Of an answer: 15 minutes of history of 200 servers are a tenth of it."""
PASSWORD_VARIABLE: Final = "VLLMETER_PASSWORD"  # noqa: S105 - a name
TOKEN_VARIABLE: Final = "VLLMETER_TOKEN"  # noqa: S105 - a name
GRAFANA_TOKEN_VARIABLE: Final = "VLLMETER_GRAFANA_TOKEN"  # noqa: S105 - a name
SECRET_VARIABLES: Final = (PASSWORD_VARIABLE, TOKEN_VARIABLE, GRAFANA_TOKEN_VARIABLE)
"""Every variable that holds one of our own secrets itself."""

_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})
_NOT_YET, _EXPIRED = 9, 10
_OTHER_NAME: Final = frozenset({62, 64})
"""X509_V_ERR_* of OpenSSL."""


class RemoteError(Exception):
    """The exporter cannot be asked: place, cause and remedy in one line.

    ``kind``: ``absent`` (nothing answers there), ``tls``, ``credentials``, ``refused`` (it answers, but not with what
    was asked for).
    """

    def __init__(self, kind: str, place: str, cause: str, remedy: str) -> None:
        self.kind, self.place, self.cause, self.remedy = kind, place, cause, remedy
        super().__init__(f"{place}: {cause}. {remedy}" if remedy else f"{place}: {cause}")


class AccessError(ValueError):
    """An option or a file that it names cannot be used; the text says which, why and what to do."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where an exporter is and how to get in.  Made by :func:`make_access`."""

    url: str
    """scheme, host, port and path, without credentials and without a slash at the end"""
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    username: str | None = None
    password_file: Path | None = None
    token_file: Path | None = None
    password: str = field(default="", repr=False)
    """from the environment"""
    token: str = field(default="", repr=False)
    """from the environment"""

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.url.startswith("https://")

    @property
    def authenticates(self) -> bool:
        """Whether credentials are sent."""
        return self.username is not None or self.token_file is not None or bool(self.token)

    @property
    def exposed(self) -> bool:
        """Whether credentials cross a network unencrypted."""
        return self.authenticates and not self.secure and not is_loopback(urlsplit(self.url).hostname or "")

    def described(self) -> str:
        """The credentials in words, without their values."""
        if self.username is not None:
            return f"user {self.username!r} with the password of {self.password_file or PASSWORD_VARIABLE}"
        return f"the token of {self.token_file or TOKEN_VARIABLE}"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command of the user's: our own secrets are none of its business."""
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}


def make_access(
    url: str,
    *,
    ca_file: Path | None = None,
    cert_file: Path | None = None,
    key_file: Path | None = None,
    server_name: str | None = None,
    username: str | None = None,
    password_file: Path | None = None,
    token_file: Path | None = None,
    environment: Mapping[str, str],
) -> Access:
    """Checks an address and everything that goes with it, the files included.

    Without a scheme the address is https when a TLS option is given, else http.

    :raises AccessError: something is missing, contradictory or cannot be read
    """
    password, token = environment.get(PASSWORD_VARIABLE, ""), environment.get(TOKEN_VARIABLE, "")
    tls = bool(ca_file or cert_file or server_name)
    access = Access(
        _address(url, tls=tls), ca_file, cert_file, key_file, server_name, username, password_file, token_file,
        password, token,
    )  # fmt: skip
    if key_file is not None and cert_file is None:
        raise AccessError(f"--key-file {key_file}: belongs to a certificate: give it with --cert-file")
    basic = [
        name
        for name, there in (
            ("--username", username is not None),
            ("--password-file", password_file is not None),
            (PASSWORD_VARIABLE, bool(password)),
        )
        if there
    ]
    tokens = (("--token-file", token_file is not None), (TOKEN_VARIABLE, bool(token)))
    bearer = [name for name, there in tokens if there]
    if basic and bearer:
        raise AccessError(
            f"{basic[0]} and {bearer[0]} are both given: use a user with a password, or a token "
            "(variables of the environment count too)"
        )
    if len(bearer) > 1 or len(basic) > 2:
        raise AccessError(f"{' and '.join((bearer or basic)[-2:])} are both given: use one of them")
    if basic == ["--username"]:
        raise AccessError(f"--username {username}: no password: give --password-file FILE, or set {PASSWORD_VARIABLE}")
    if basic and username is None:
        raise AccessError(f"{basic[0]}: no user: give --username, or set VLLMETER_USERNAME")
    if username is not None and ":" in username:
        raise AccessError("--username: a user name holds no colon; the password goes into --password-file")
    authorization(access)
    if access.secure:
        tls_context(access)
    return access


def _address(url: str, *, tls: bool) -> str:
    text = url.strip()
    if "://" not in text:
        text = f"{'https' if tls else 'http'}://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if "@" in parts.netloc or (host is None and "@" in text):
        # what was given is not repeated: it holds a password
        raise AccessError(
            "the exporter's address holds credentials, which every process of this host can read: write "
            "https://HOST:9877 and give --username with --password-file, or --token-file"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise AccessError(f"{url}: no address of an exporter; write for example http://gpu-host:9877")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port is not None else ''}{parts.path}".rstrip("/")


def authorization(access: Access) -> str | None:
    """Value of the Authorization header, files read now; None without credentials.

    :raises AccessError: a file cannot be used
    """
    if access.username is not None:
        password = access.password or _secret(access.password_file, "--password-file")
        pair = f"{access.username}:{password}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")
    if access.token_file is not None or access.token:
        token = access.token.strip() or _secret(access.token_file, "--token-file")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise AccessError(f"{access.token_file or TOKEN_VARIABLE}: holds more than a token: one line, no spaces")
        return f"Bearer {token}"
    return None


def _secret(path: Path | None, option: str) -> str:
    assert path is not None
    try:
        value = path.read_text(encoding="utf-8").strip("\r\n")
    except OSError as error:
        raise AccessError(
            f"{option} {path}: cannot be read ({error.strerror}): check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise AccessError(f"{option} {path}: is no text: write the secret itself into it, as UTF-8") from error
    if option == "--token-file":
        value = value.strip()
    if not value:
        raise AccessError(f"{option} {path}: is empty: write the secret into it")
    if "\n" in value:
        raise AccessError(f"{option} {path}: holds several lines: it must hold the secret alone")
    return value


def tls_context(access: Access) -> ssl.SSLContext:
    """TLS towards the exporter: the given CA, else those of the system; the files are read now.

    :raises AccessError: a file cannot be used
    """
    context = trusting(access.ca_file, "--ca-file")
    _readable(access.cert_file, "--cert-file")
    _readable(access.key_file, "--key-file")
    if access.cert_file is not None:
        try:
            # an encrypted key must not stop and ask
            context.load_cert_chain(access.cert_file, access.key_file, password=lambda: "")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", "") or ""
            if reason == "KEY_VALUES_MISMATCH":
                cause = "certificate and key do not belong together"
            else:
                cause = "no certificate with an unencrypted key in PEM form"
            files = f"--cert-file {access.cert_file}"
            files += f", --key-file {access.key_file}" if access.key_file is not None else " (without --key-file)"
            raise AccessError(f"{files}: {cause}") from error
    return context


def trusting(ca_file: Path | None, option: str) -> ssl.SSLContext:
    """TLS that takes what this CA has signed, else what those of the system have; the file is read now.

    :raises AccessError: it cannot be used; the text names it as ``option``
    """
    _readable(ca_file, option)
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as error:
        raise AccessError(f"{option} {ca_file}: holds no certificate in PEM form") from error
    # Python 3.13 refuses what curl, Prometheus and older Python take: a CA of one's own without every extension
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _readable(path: Path | None, option: str) -> None:
    if path is not None:
        try:
            path.read_bytes()
        except OSError as error:
            raise AccessError(
                f"{option} {path}: cannot be read ({error.strerror}): check the path and its permissions"
            ) from error


def certificate_problem(error: BaseException, trusted: str, name: str | None, option: str) -> tuple[str, str] | None:
    """(cause, remedy) when ``error`` or one of its causes says that the other side's certificate does not hold.

    ``trusted``: the CA in words; ``name``: the host that was asked for; ``option`` gives another CA.
    """
    found = next((each for each in _chain(error) if isinstance(each, ssl.SSLCertVerificationError)), None)
    if found is None:
        return None
    if found.verify_code in _UNKNOWN_CA:
        return f"its certificate is not signed by {trusted}", f"Give the CA that signed it with {option}"
    if found.verify_code == _EXPIRED:
        return "its certificate (or that of its CA) has expired", "Renew it, or set this machine's clock right"
    if found.verify_code == _NOT_YET:
        return "its certificate is not valid yet", "Compare the clocks of both machines"
    if found.verify_code in _OTHER_NAME:
        return f"its certificate is not for {name!r}", "Use the name that the certificate holds"
    return f"its certificate does not hold ({found.verify_message})", f"Renew it, or compare it with {trusted}"


class RemoteExporter:
    """A running exporter.  Any thread may ask."""

    def __init__(self, access: Access) -> None:
        """:raises AccessError: a file cannot be used"""
        self.access = access
        self.url = access.url
        """without credentials, fit for messages and files"""
        self._header = authorization(access)
        self._pool: urllib3.PoolManager | None = None

    def get(self, path: str, timeout: float = TIMEOUT_SECONDS) -> Any:
        """The JSON document at ``path``.  Raises :class:`RemoteError`."""
        body = self._ask("GET", path, None, timeout)
        try:
            return json.loads(body)
        except ValueError as error:
            raise self._refused("its answer is no JSON", _NOT_OURS) from error

    def healthy(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Asks ``/-/healthy``.  Raises :class:`RemoteError` unless it answers 200."""
        self._ask("GET", "/-/healthy", None, timeout)

    def post(self, path: str, document: Mapping[str, Any], timeout: float = TIMEOUT_SECONDS) -> None:
        """Sends a JSON document.  Raises :class:`RemoteError`."""
        self._ask("POST", path, json.dumps(document).encode(), timeout)

    # ------------------------------------------------------------------ one exchange

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        status, headers, data = self._exchange(method, path, body, timeout)
        if status == 401 and self._renewed():
            status, headers, data = self._exchange(method, path, body, timeout)
        if 200 <= status < 300:
            return data
        text = _shown(data)
        if status in (401, 403):
            raise self._denied(status, headers.get("www-authenticate", ""), text)
        if status == 429:
            raise self._refused(f"it refuses for now: {text or 'too many requests'}", "Wait some seconds and try again")
        if status == 421:
            raise self._refused(text or "it is not asked under this name", "Use a name of that list, or the IP address")
        if 300 <= status < 400:
            place = _shown(headers.get("location", "").encode())
            raise self._refused(f"it redirects to {place}, which is not followed", "Give the final address")
        where = path.partition("?")[0]
        remedy = _NOT_OURS if status == 404 else "The exporter's log may say more"
        raise self._refused(f"{where} answers {status}{f': {text}' if text else ''}", remedy)

    def _renewed(self) -> bool:
        """Whether the file of the secret holds another one by now (rotated during a long run)."""
        try:
            header = authorization(self.access)
        except AccessError:
            return False
        changed = header != self._header
        self._header = header
        return changed

    def _exchange(
        self, method: str, path: str, body: bytes | None, timeout: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"User-Agent": f"vllmeter/{__version__}", "Accept": "*/*"}
        if self._header is not None:
            headers["Authorization"] = self._header
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            pool = self._pool
            if pool is None:
                pool = self._pool = self._opened()
            end = time.monotonic() + 4 * timeout
            response = pool.request(
                method,
                self.url + path,
                body=body,
                headers=headers,
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            with contextlib.closing(response):
                pieces: list[bytes] = []
                size = 0
                for piece in response.stream(65536):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MOST_BYTES or time.monotonic() > end:
                        raise self._refused("its answer does not end", _NOT_OURS)
            return response.status, response.headers, b"".join(pieces)
        except AccessError as error:
            raise RemoteError("tls", self.url, str(error), "") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._pool = None  # files may be renewed: they are read again
            raise self._failed(error, timeout) from error

    def _opened(self) -> urllib3.PoolManager:
        if not self.access.secure:
            return urllib3.PoolManager(num_pools=1, maxsize=2)
        name = self.access.server_name
        more: dict[str, Any] = {} if name is None else {"server_hostname": name, "assert_hostname": name}
        return urllib3.PoolManager(num_pools=1, maxsize=2, ssl_context=tls_context(self.access), **more)

    # ------------------------------------------------------------------ what went wrong

    def _refused(self, cause: str, remedy: str) -> RemoteError:
        return RemoteError("refused", self.url, cause, remedy)

    def _absent(self, cause: str) -> RemoteError:
        remedy = "Start one with `vllmeter serve`, or check host and port"
        return RemoteError("absent", self.url, f"no exporter answers ({cause})", remedy)

    def _denied(self, status: int, challenge: str, text: str) -> RemoteError:
        access = self.access
        basic, bearer = "basic" in challenge.lower(), "bearer" in challenge.lower()
        ways = [
            way
            for way, there in (("--username with --password-file", basic), ("--token-file", bearer))
            if there or not challenge
        ]
        if not access.authenticates:
            cause, remedy = "it wants credentials", f"Give {' or '.join(ways)} (docs/security.md)"
        elif basic not in (bearer, access.username is not None):
            cause = f"it does not take {'a user and password' if access.username is not None else 'tokens'}"
            remedy = f"Give {' or '.join(ways)} instead"
        else:
            cause = f"it refuses {access.described()}"
            key = "basic_auth_users" if access.username is not None else "bearer_token_files"
            remedy = f"Compare with {key} of its web.yml"
        if status == 403:
            cause, remedy = f"it refuses with 403{f': {text}' if text else ''}", "Check the address"
        return RemoteError("credentials", self.url, cause, remedy)

    def _failed(self, error: Exception, timeout: float) -> RemoteError:
        chain = _chain(error)
        for item in chain:
            if isinstance(item, ssl.SSLError):
                return self._tls(item)
        for item in chain:
            if isinstance(item, ConnectionRefusedError):
                return self._absent("connection refused")
            if isinstance(item, socket.gaierror | urllib3.exceptions.NameResolutionError):
                return self._absent("no such host")
        for item in chain:
            if isinstance(item, urllib3.exceptions.TimeoutError | TimeoutError):
                return self._absent(f"no answer within {timeout:g} s")
        spoken, found = self._handshake(timeout)
        if not self.access.secure:
            if spoken:
                return RemoteError(
                    "tls",
                    self.url,
                    "this port speaks TLS",
                    f"Write https://{self.url.partition('://')[2]}, with --ca-file when its CA is your own",
                )
        elif isinstance(found, ssl.SSLError):
            return self._tls(found)
        elif _closed(chain):
            return self._unwelcome()
        cause = next((item.strerror for item in chain if isinstance(item, OSError) and item.strerror), None)
        return self._absent((cause or "the connection was closed without an answer").lower())

    def _tls(self, error: ssl.SSLError) -> RemoteError:
        access = self.access

        def made(cause: str, remedy: str) -> RemoteError:
            return RemoteError("tls", self.url, cause, remedy)

        if isinstance(error, ssl.SSLCertVerificationError):
            trusted = f"the CA in {access.ca_file}" if access.ca_file is not None else "the CAs of this system"
            name = access.server_name or urlsplit(self.url).hostname
            problem = certificate_problem(error, trusted, name, "--ca-file")
            assert problem is not None
            cause, remedy = problem
            if error.verify_code == _EXPIRED:
                remedy = "Renew the cert_file of its web.yml, or set this machine's clock right"
            if error.verify_code in _OTHER_NAME:
                remedy += ", or give that name with --server-name"
            return made(cause, remedy)
        reason = error.reason or ""
        if _plain(error):
            return made("this port speaks no TLS", f"Write http://{self.url.partition('://')[2]}")
        if "CERTIFICATE_REQUIRED" in reason:
            return made("it wants a client certificate", "Give --cert-file and --key-file")
        if "UNKNOWN_CA" in reason:
            return self._unwelcome()
        if "CERTIFICATE_EXPIRED" in reason:
            return made(f"the client certificate {access.cert_file} has expired", "Renew it")
        if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
            return made("it wants another version of TLS than this Python offers", "See min_version of its web.yml")
        if "HANDSHAKE_FAILURE" in reason or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return self._unwelcome()
        return made(f"TLS failed ({(reason or 'no reason given').lower().replace('_', ' ')})", "See the exporter's log")

    def _unwelcome(self) -> RemoteError:
        """It ended the handshake when it saw our client certificate, or that there is none."""
        file = self.access.cert_file
        if file is None:
            return RemoteError(
                "tls",
                self.url,
                "it ends the TLS handshake: it wants a client certificate",
                "Give --cert-file and --key-file",
            )
        return RemoteError(
            "tls",
            self.url,
            f"it ends the TLS handshake at the client certificate {file}: it has expired, or another CA signed it",
            "Renew it, or compare it with client_ca_file of the exporter's web.yml",
        )

    def _handshake(self, timeout: float) -> tuple[bool, Exception | None]:
        """What a TLS handshake without any request gives: (whether TLS is spoken there, what went wrong).

        Nothing secret is sent.
        """
        parts = urlsplit(self.url)
        spoken = False
        try:
            if self.access.secure:
                context = tls_context(self.access)
            else:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            address = (parts.hostname or "", parts.port or (443 if self.access.secure else 80))
            with socket.create_connection(address, timeout) as sock:
                sock.settimeout(min(timeout, 1.0))
                name = self.access.server_name or parts.hostname
                with context.wrap_socket(sock, server_hostname=name) as tls, contextlib.suppress(TimeoutError):
                    spoken = True
                    tls.recv(1)  # TLS 1.3 refuses a client certificate after the handshake
        except (OSError, AccessError) as error:
            return spoken or "ALERT" in (getattr(error, "reason", "") or ""), error
        return spoken, None


_NOT_OURS: Final = "Check the port: it must be that of a vllmeter exporter of this release, not of a vLLM server"


def _plain(error: ssl.SSLError) -> bool:
    """Whether the other side answered a TLS greeting with something else."""
    return any(word in (error.reason or "") for word in ("WRONG_VERSION_NUMBER", "RECORD_LAYER", "HTTP_REQUEST"))


def _closed(chain: list[BaseException]) -> bool:
    return any(
        isinstance(item, ConnectionResetError | BrokenPipeError | ConnectionAbortedError)
        or "Remote end closed" in str(item)
        for item in chain
    )


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes, outermost first."""
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < 12:
        found.append(seen)
        inner = next((each for each in seen.args if isinstance(each, BaseException)), None)
        reason = getattr(seen, "reason", None)
        seen = inner or (reason if isinstance(reason, BaseException) else None) or seen.__cause__ or seen.__context__
    return found


def _shown(data: bytes) -> str:
    """The beginning of an answer for a terminal: one line, nothing that controls it."""
    text = " ".join(data[:1000].decode("utf-8", "replace").split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]
