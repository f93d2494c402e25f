"""Serves the files of the live page: a fixed list, read once, with a strict Content-Security-Policy."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi import FastAPI, HTTPException, Request, Response

FOLDER: Final = Path(__file__).resolve().parent / "page"

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

SECURITY: Final = {
    # No inline script or style, nothing from elsewhere, in nobody's frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The file of the next release must be taken at once; unchanged ones cost a 304.
    "Cache-Control": "no-cache",
}


@lru_cache(maxsize=1)
def files() -> dict[str, tuple[bytes, str, str]]:
    """Path below ``page/`` -> (content, type, ETag)."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[path.relative_to(FOLDER).as_posix()] = (content, TYPES[path.suffix], tag)
    return found


def mount_pages(app: FastAPI) -> None:
    """Adds ``/`` and ``/page/…``."""

    def send(request: Request, name: str) -> Response:
        file = files().get(name)
        if file is None:
            raise HTTPException(404)
        content, kind, tag = file
        headers = {**SECURITY, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    @app.get("/", response_class=Response, include_in_schema=False)
    def index(request: Request) -> Response:
        """The live page."""
        return send(request, "index.html")

    @app.get("/page/{name:path}", response_class=Response, include_in_schema=False)
    def asset(request: Request, name: str) -> Response:
        """A file of the live page."""
        return send(request, name)
