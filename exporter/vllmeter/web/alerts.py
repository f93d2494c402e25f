"""Firing alerts of a Prometheus, asked now and then in the background while somebody looks at the live page."""

from __future__ import annotations

import json
from typing import Any, Final

EVERY: Final = 15.0
TIMEOUT: Final = 3.0
MOST_BYTES: Final = 2 << 20
MOST_ALERTS: Final = 50
_LONGEST: Final = 400


class AlertSource:
    """The newest answer of ``/api/v1/alerts``.  :meth:`ask` blocks for some seconds at most; readers never wait."""

    def __init__(self) -> None:
        self._asked = float("-inf")
        self._url: str | None = None
        self._document: dict[str, Any] | None = None

    def due(self, url: str | None, now: float) -> bool:
        """Whether it is time to ask again (``now``: monotonic seconds)."""
        if url is None:
            self._document = None
            return False
        return url != self._url or now - self._asked >= EVERY

    def ask(self, url: str, now: float) -> None:
        """Asks Prometheus.  Never raises: what went wrong is part of the document."""
        import requests  # not before somebody looks: megabytes that a plain exporter does without

        self._url, self._asked = url, now
        try:
            self._document = {"reachable": True, "reason": None, **firing(_fetch(url))}
        except (requests.RequestException, ValueError) as error:
            reason = str(error) if isinstance(error, ValueError) else f"Prometheus does not answer: {_short(error)}"
            self._document = {"reachable": False, "reason": reason[:_LONGEST], "firing": [], "pending": 0, "more": 0}

    def document(self) -> dict[str, Any] | None:
        """For the page; None = no Prometheus is configured, or it was not asked yet."""
        return self._document


def _short(error: Exception) -> str:
    return type(error).__name__


def _fetch(url: str) -> Any:
    import requests

    with requests.Session() as session:
        session.trust_env = False  # the address is the user's own: no proxy in between
        with session.get(f"{url.rstrip('/')}/api/v1/alerts", timeout=TIMEOUT, stream=True) as answer:
            if answer.status_code != 200:
                raise ValueError(f"Prometheus answers {answer.status_code}")
            body = answer.raw.read(MOST_BYTES + 1, decode_content=True)
    if len(body) > MOST_BYTES:
        raise ValueError("Prometheus' list of alerts is larger than 2 MiB")
    try:
        return json.loads(body)
    except ValueError as error:
        raise ValueError("Prometheus' answer is no JSON") from error


def firing(document: Any) -> dict[str, Any]:
    """Firing alerts of an answer, the most severe and then the oldest first; ``pending`` counts those on their way.

    :raises ValueError: not an answer of ``/api/v1/alerts``
    """
    alerts = document.get("data", {}).get("alerts") if isinstance(document, dict) else None
    if not isinstance(alerts, list):
        raise ValueError("Prometheus' answer holds no list of alerts")
    found = []
    pending = 0
    for alert in alerts:
        if not isinstance(alert, dict):
            continue
        if alert.get("state") != "firing":
            pending += 1
            continue
        labels, notes = alert.get("labels") or {}, alert.get("annotations") or {}
        if str(labels.get("alertname")).endswith("Watchdog"):
            continue  # fires as long as all is well (VllmeterWatchdog, kube-prometheus' Watchdog)
        found.append(
            {
                "name": _text(labels.get("alertname")),
                "severity": _text(labels.get("severity")),
                "server": _text(labels.get("server")),
                "instance": _text(labels.get("instance")),
                "summary": _text(notes.get("summary")),
                "description": _text(notes.get("description")),
                "since": _text(alert.get("activeAt")),
                "runbook": _link(notes.get("runbook_url")),
            }
        )
    order = {"critical": 0, "error": 1, "warning": 2, "info": 3}
    found.sort(key=lambda alert: (order.get(alert["severity"], 2), alert["since"], alert["name"]))
    return {"firing": found[:MOST_ALERTS], "pending": pending, "more": max(0, len(found) - MOST_ALERTS)}


def _link(value: object) -> str:
    """The address of a runbook; nothing that a browser would run."""
    text = _text(value)
    return text if text.startswith(("https://", "http://")) else ""


def _text(value: object) -> str:
    return "" if value is None else str(value)[:_LONGEST]
