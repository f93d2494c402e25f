"""Runs once before Alertmanager and Grafana: writes what must not stand in a repository.

* ``/generated/grafana/grafana-password``: GRAFANA_ADMIN_PASSWORD, or one made up at the first start and kept;
* ``/generated/alertmanager/alertmanager.yml``: ``alerts/alertmanager.yml`` with its example address replaced by
  ALERT_WEBHOOK_URL.  Without one, alerts are shown in Alertmanager and Grafana and sent to nobody: a receiver that
  nobody runs would fail for ever.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

EXAMPLE = "http://127.0.0.1:9099"
"""What the webhook's address begins with in alerts/alertmanager.yml."""
WEAK = ("admin", "password", "grafana", "changeme", "secret")


def grafana_password(wanted: str, folder: Path) -> str:
    """Writes the password; the sentence to print."""
    file = folder / "grafana-password"
    if wanted:
        if wanted.lower() in WEAK or len(wanted) < 8:
            raise ValueError("GRAFANA_ADMIN_PASSWORD is a default or shorter than 8 characters: choose another one")
        text = wanted
    elif file.exists():
        return "Grafana's password was there already"
    else:
        text = secrets.token_urlsafe(18)
    file.write_text(text, encoding="utf-8")
    # Grafana has a user of its own (472); nothing else mounts this folder.
    file.chmod(0o444)
    told = "the one of .env" if wanted else "made up: docker compose exec grafana cat /run/vllmeter/grafana-password"
    return f"Grafana's password is {told}"


def alertmanager_config(source: str, webhook: str) -> str:
    """The configuration with the webhook in place of the example's address, or without any webhook."""
    data: dict[str, Any] = yaml.safe_load(source)
    # Files with secrets that are not mounted here; Alertmanager would complain about the first mail it has to send.
    used = _receivers(data["route"])
    data["receivers"] = [receiver for receiver in data["receivers"] if receiver["name"] in used]
    if not any("email_configs" in receiver for receiver in data["receivers"]):
        for key in [key for key in data.get("global", {}) if key.startswith("smtp_")]:
            del data["global"][key]
    for receiver in data["receivers"]:
        kept = []
        for hook in receiver.pop("webhook_configs", []):
            if str(hook.get("url", "")).startswith(EXAMPLE):
                if not webhook:
                    continue
                hook["url"] = webhook.rstrip("/") + hook["url"][len(EXAMPLE) :]
            kept.append(hook)
        if kept:
            receiver["webhook_configs"] = kept
    return "# Written at the start from alerts/alertmanager.yml.\n" + yaml.safe_dump(data, sort_keys=False)


def _receivers(route: Mapping[str, Any]) -> set[str]:
    names = {str(route["receiver"])} if "receiver" in route else set()
    for below in route.get("routes", ()):
        names |= _receivers(below)
    return names


def main(environ: Mapping[str, str], source: Path, target: Path) -> int:
    """0, or 1 with one sentence about what is wrong."""
    webhook = environ.get("ALERT_WEBHOOK_URL", "").strip()
    if webhook and (urlsplit(webhook).scheme not in ("http", "https") or not urlsplit(webhook).hostname):
        sys.stderr.write(f"ALERT_WEBHOOK_URL={webhook!r} is no http:// or https:// address\n")
        return 1
    try:
        said = grafana_password(environ.get("GRAFANA_ADMIN_PASSWORD", ""), target / "grafana")
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    text = alertmanager_config(source.read_text(encoding="utf-8"), webhook)
    file = target / "alertmanager" / "alertmanager.yml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o444)
    sys.stdout.write(f"{said}\nalerts go to {webhook or 'nobody (set ALERT_WEBHOOK_URL)'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ, Path("/setup/alertmanager.yml"), Path("/generated")))
