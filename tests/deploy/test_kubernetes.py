"""The Kubernetes manifests: current, with few rights, and saying the same as the rest of the project.

They are built here with kustomize where it is on the PATH; schemas are checked in the leg `kubernetes`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllmeter.config.load import load_config, parse_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"


def read(name: str) -> list[Any]:
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")) if document]


@pytest.fixture(scope="module")
def pod() -> Any:
    """The pod template of the DaemonSet."""
    return read("base/daemonset.yaml")[0]["spec"]["template"]


def test_generated_files_are_current() -> None:
    """Rules, alerts and the list of dashboards in the manifests are those of this checkout."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "build.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_and_alert_is_there_as_it_is() -> None:
    """The PrometheusRules hold the groups of the files, word for word."""
    groups = {
        group["name"]: group
        for document in read("operator/prometheusrule.yaml")
        for group in document["spec"]["groups"]
    }
    files = [*(ROOT / "prometheus/rules").glob("*.rules.yaml"), *(ROOT / "alerts").glob("*.alerts.yaml")]
    wanted = {group["name"]: group for file in files for group in yaml.safe_load(file.read_text())["groups"]}
    assert groups == wanted
    # Client-side apply keeps a copy of an object in an annotation, of which 256 kB are allowed.
    assert (FOLDER / "operator/prometheusrule.yaml").stat().st_size < 250_000


def test_the_exporter_sees_every_process_and_claims_no_gpu(pod: Any) -> None:
    """hostPID and the GPU runtime, and no nvidia.com/gpu that the scheduler would take from a server."""
    spec = pod["spec"]
    assert spec["hostPID"] is True
    assert spec["runtimeClassName"] == "nvidia"
    (container,) = spec["containers"]
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert not any("gpu" in key for amounts in container["resources"].values() for key in amounts)


def test_rights_are_the_two_that_are_needed(pod: Any) -> None:
    """Everything else is dropped, the file system is read-only, no host folder is mounted."""
    (container,) = pod["spec"]["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert not any("hostPath" in volume for volume in pod["spec"]["volumes"])
    assert "hostNetwork" not in pod["spec"]
    (role,) = [document for document in read("base/rbac.yaml") if document["kind"] == "ClusterRole"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]


def test_the_configuration_loads_and_fits_the_pod(pod: Any) -> None:
    """It finds pods by the node's name that the pod is given, and listens on the port that is scraped."""
    settings = load_config(FOLDER / "base/vllmeter.yaml")
    kubernetes = settings.discovery.kubernetes
    assert kubernetes is not None
    (container,) = pod["spec"]["containers"]
    (node,) = [item for item in container["env"] if item["name"] == kubernetes.node_env]
    assert node["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert container["ports"] == [{"name": "metrics", "containerPort": settings.listen_port}]
    assert f"0.0.0.0:{settings.listen_port}" in container["args"]


def test_who_is_found_may_be_reached() -> None:
    """The network policy lets the exporter out to the pods that its configuration selects, and the scraper in."""
    (policy,) = read("base/networkpolicy.yaml")
    settings = load_config(FOLDER / "base/vllmeter.yaml")
    assert settings.discovery.kubernetes is not None
    key, _, value = settings.discovery.kubernetes.selector.partition("=")
    allowed = [
        peer.get("podSelector", {}).get("matchLabels")
        for rule in policy["spec"]["egress"]
        for peer in rule.get("to", ())
    ]
    assert {key: value} in allowed
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == [settings.listen_port]


def test_series_carry_the_labels_that_rules_need() -> None:
    """job is vllmeter, host is the node, and no label of the pod makes a new series of every restart."""
    (monitor,) = read("operator/podmonitor.yaml")
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    targets = {item.get("targetLabel"): item for item in endpoint["relabelings"]}
    assert targets["host"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    assert any(item.get("action") == "labeldrop" for item in endpoint["relabelings"])


def kustomize() -> list[str] | None:
    """The program that builds, if there is one."""
    if os.environ.get("KUSTOMIZE"):
        return [os.environ["KUSTOMIZE"], "build"]
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


@pytest.mark.skipif(
    kustomize() is None, reason="neither kustomize nor kubectl is installed; the leg `kubernetes` builds one"
)
def test_everything_together_builds() -> None:
    """Exporter, operator's resources and one ConfigMap per dashboard, all in one namespace."""
    program = kustomize()
    assert program is not None
    done = subprocess.run([*program, str(FOLDER / "complete")], capture_output=True, text=True, check=True)
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    kinds = [document["kind"] for document in documents]
    boards = sorted((ROOT / "grafana/dashboards").glob("*.json"))
    assert kinds.count("ConfigMap") == len(boards) + 1
    assert {"DaemonSet", "PodMonitor", "NetworkPolicy", "ClusterRole", "ServiceAccount"} <= set(kinds)
    assert kinds.count("PrometheusRule") == 2
    for document in documents:
        if document["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding"):
            assert document["metadata"]["namespace"] == "vllmeter", document["metadata"]["name"]
        if document["metadata"].get("labels", {}).get("grafana_dashboard"):
            (text,) = document["data"].values()
            assert json.loads(text)["title"]
            assert len(text) < 900_000
    (config,) = [d for d in documents if d["kind"] == "ConfigMap" and "vllmeter.yaml" in d["data"]]
    assert parse_config(config["data"]["vllmeter.yaml"], "vllmeter.yaml").discovery.kubernetes is not None
    (daemons,) = [d for d in documents if d["kind"] == "DaemonSet"]
    assert daemons["spec"]["template"]["spec"]["containers"][0]["image"].endswith("vllmeter:0.1.0")
