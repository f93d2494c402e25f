"""A CA of the test with a server and a client certificate, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make(folder: Path, name: str = "127.0.0.1", *, plain: bool = False) -> None:
    """ca.pem, server.{pem,key}, client.{pem,key} and stranger.{pem,key} (signed by nobody) in ``folder``.

    ``plain``: as people make them at home, without the extensions that Python 3.13 wants to see.
    """
    own = "" if plain else "authorityKeyIdentifier=keyid\n"
    (folder / "san.txt").write_text(f"subjectAltName=IP:{name}\n{own}")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    usage = () if plain else ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", *usage)
    _openssl(folder, "req", "-x509", *key, "-keyout", "stranger.key", "-out", "stranger.pem", "-subj", "/CN=stranger")
    for role in ("server", "client"):
        signed(folder, role)


def signed(folder: Path, role: str, days: int = 2) -> None:
    """A new certificate for ``role``, signed by the CA; with negative ``days`` it has expired."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, "req", *key, "-keyout", f"{role}.key", "-out", f"{role}.csr", "-subj", f"/CN={role}")
    _openssl(
        folder,
        *("x509", "-req", "-in", f"{role}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-days", str(days), "-extfile", "san.txt", "-out", f"{role}.pem"),
    )


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
