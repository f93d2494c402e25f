"""alertmanager.yml: accepted by amtool, free of secrets, and it routes and silences what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from rules.promtool_files import ROOT, load_rules

PATH = ROOT / "alerts/alertmanager.yml"
CONFIG: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
RULES = [rule for rule in load_rules() if "alert" in rule]
AMTOOL = shutil.which("amtool")
needs_amtool = pytest.mark.skipif(AMTOOL is None, reason="no amtool here (Debian package prometheus-alertmanager)")


def amtool(*arguments: str) -> str:
    done = subprocess.run([str(AMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_amtool
def test_amtool_accepts_it() -> None:
    """All receivers, also those that no route uses yet, are valid."""
    assert "6 receivers" in amtool("check-config", str(PATH))


@needs_amtool
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "VllmeterServerUnreachable", "severity": "critical"}, "webhook"),
        ({"alertname": "VllmeterCardNearlyFull", "severity": "warning"}, "webhook"),
        ({"alertname": "VllmeterPreemptionStorm", "severity": "info"}, "nobody"),
        ({"alertname": "VllmeterWatchdog", "severity": "info"}, "dead-mans-switch"),
        ({"alertname": "SomethingElse"}, "webhook"),
    ],
)
def test_routes(labels: Mapping[str, str], receiver: str) -> None:
    """Critical and warning reach somebody, notes nobody, the watchdog its switch."""
    pairs = [f"{key}={value}" for key, value in labels.items()]
    assert amtool("config", "routes", "test", f"--config.file={PATH}", *pairs).strip() == receiver


def keys(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield str(key)
            yield from keys(value)
    elif isinstance(node, list):
        for value in node:
            yield from keys(value)


def test_no_secret_in_the_file() -> None:
    """What is secret is named by a file that holds it."""
    inline = {
        "api_url",
        "routing_key",
        "service_key",
        "smtp_auth_password",
        "auth_password",
        "bearer_token",
        "password",
    }
    assert not inline & set(keys(CONFIG))
    assert {"api_url_file", "smtp_auth_password_file", "routing_key_file"} <= set(keys(CONFIG))


def test_receivers_for_mail_slack_and_webhook() -> None:
    """The examples that people look for are there."""
    kinds = set().union(*(set(receiver) - {"name"} for receiver in CONFIG["receivers"]))
    assert {"webhook_configs", "email_configs", "slack_configs"} <= kinds


def test_named_alerts_exist() -> None:
    """A renamed alert would make an inhibition silently useless."""
    names = set(re.findall(r"Vllmeter[A-Z]\w+", PATH.read_text(encoding="utf-8")))
    assert names <= {rule["alert"] for rule in RULES}


# --------------------------------------------------------------------------- inhibition, as Alertmanager defines it


def matches(matcher: str, labels: Mapping[str, str]) -> bool:
    name, operator, value = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
    have = labels.get(name, "")
    equal = have == value if operator in ("=", "!=") else re.fullmatch(value, have) is not None
    return equal is not operator.startswith("!")


def inhibited(target: Mapping[str, str], source: Mapping[str, str]) -> bool:
    """Whether ``source`` silences ``target``."""
    return any(
        all(matches(one, source) for one in rule["source_matchers"])
        and all(matches(one, target) for one in rule["target_matchers"])
        and all(source.get(label, "") == target.get(label, "") for label in rule["equal"])
        and not (
            # An alert that matches both sides does not silence itself or its like.
            all(matches(one, source) for one in rule["target_matchers"])
            and all(matches(one, target) for one in rule["source_matchers"])
        )
        for rule in CONFIG["inhibit_rules"]
    )


def alert(name: str, severity: str = "", **where: str) -> dict[str, str]:
    rule = next(rule for rule in RULES if rule["alert"] == name and severity in ("", rule["labels"]["severity"]))
    return {"alertname": name, **rule["labels"], **where}


A = {"job": "vllmeter", "instance": "a:9877"}
CHAT = {**A, "server": "chat"}


def test_a_page_silences_its_causes_and_nothing_else() -> None:
    """Causes of the same server are explained by the page; other servers, hosts and symptoms are not."""
    page = alert("VllmeterTtftObjectiveBurnFast", "critical", **CHAT)
    assert inhibited(alert("VllmeterKvCachePressure", "warning", **CHAT), page)
    assert not inhibited(alert("VllmeterKvCachePressure", "warning", **{**CHAT, "instance": "b:9877"}), page)
    assert not inhibited(alert("VllmeterKvCachePressure", "warning", **{**CHAT, "server": "embed"}), page)
    assert not inhibited(alert("VllmeterTtftJitterHigh", "warning", **CHAT), page)
    assert not inhibited(alert("VllmeterServerUnreachable", **CHAT), page)
    assert not inhibited(alert("VllmeterCardNearlyFull", **A), page)


def test_a_server_that_is_away_explains_the_rest_of_it() -> None:
    """Stuck, dead and unreachable stand for everything about that server, but not for each other."""
    for name in ("VllmeterServerUnreachable", "VllmeterEngineDead", "VllmeterServerStuck"):
        away = alert(name, **CHAT)
        assert inhibited(alert("VllmeterTtftObjectiveBurnFast", "critical", **CHAT), away)
        assert inhibited(alert("VllmeterRequestErrors", **CHAT), away)
        assert not inhibited(alert("VllmeterServerStuck", **CHAT), away)
        assert not inhibited(alert("VllmeterRequestErrors", **{**CHAT, "server": "embed"}), away)


def test_an_exporter_that_is_down_explains_its_host() -> None:
    """What was known last about a host is not sent while its exporter is away; other hosts are."""
    down = alert("VllmeterExporterDown", **A)
    assert inhibited(alert("VllmeterServerStuck", **CHAT), down)
    assert not inhibited(down, down)
    assert not inhibited(alert("VllmeterServerStuck", **{**CHAT, "instance": "b:9877"}), down)


def test_the_watchdog_is_never_silenced() -> None:
    """Whatever fires, the dead man's switch must get its message."""
    watchdog = alert("VllmeterWatchdog")
    for rule in RULES:
        for where in ({}, A, CHAT):
            assert not inhibited(watchdog, {"alertname": rule["alert"], **rule["labels"], **where})
