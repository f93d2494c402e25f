"""vLLM pods of this node, from the Kubernetes API as a pod sees it (service account)."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vllmeter.config.settings import KubernetesDiscovery as KubernetesSettings
from vllmeter.config.settings import Match, Server
from vllmeter.discovery.fetch import JsonClient, StatusError
from vllmeter.discovery.source import DiscoveryError
from vllmeter.discovery.targets import MOST_SERVERS, Skips, refused, server_name

log = logging.getLogger("vllmeter.discovery")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PAGE: Final = 250
_MOST_PAGES: Final = 8
_MOST_BYTES: Final = 32 << 20
"""Of one page: 250 pods with long environments."""


class KubernetesDiscovery:
    """Lists running pods of one node by label.  Their processes are found by the pod's uid (``match.pod``).

    The list is asked anew every time: a node has few pods, and a watch that broke unseen would show what is gone.
    """

    name = "kubernetes"

    def __init__(
        self,
        settings: KubernetesSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        account: Path = SERVICE_ACCOUNT,
        api: str | None = None,
    ) -> None:
        self.every = settings.every
        self._settings = settings
        self._environ = environ
        self._account = account
        self._api = api
        self._client = JsonClient()
        self._skips = Skips()

    def find(self) -> Sequence[Server]:
        """A server per running vLLM pod of this node.

        :raises DiscoveryError: not in a pod, no node name, no right, no answer
        """
        servers: list[Server] = []
        skipped: list[str] = []
        for pod in self._pods():
            made = pod_server(pod, self._settings)
            if isinstance(made, str):
                skipped.append(made)
            else:
                servers.append(made)
        if len(servers) > MOST_SERVERS:
            skipped.append(f"more than {MOST_SERVERS} pods: the rest is left out")
        for sentence in self._skips.new(skipped):
            log.info("source=kubernetes skipped: %s", sentence)
        return sorted(servers[:MOST_SERVERS], key=lambda server: server.name)

    def _pods(self) -> list[Any]:
        api = self._address()
        node = self._environ.get(self._settings.node_env, "")
        if not node:
            raise DiscoveryError(
                f"environment variable {self._settings.node_env} is not set: give the container this node's name "
                "(valueFrom.fieldRef.fieldPath: spec.nodeName)"
            )
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise DiscoveryError(
                f"{self._account}/token: {error.strerror}: set automountServiceAccountToken: true"
            ) from None
        namespace = self._settings.namespace
        path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        params = {
            "labelSelector": self._settings.selector,
            "fieldSelector": f"spec.nodeName={node},status.phase=Running",
            "limit": str(_PAGE),
        }
        certificate = self._account / "ca.crt"
        pods: list[Any] = []
        for _ in range(_MOST_PAGES):
            try:
                document = self._client.get(
                    api + path,
                    most_bytes=_MOST_BYTES,
                    headers={"Authorization": f"Bearer {token}"},
                    params=params,
                    verify=str(certificate) if certificate.exists() else True,
                )
            except StatusError as error:
                if error.status in (401, 403):
                    what = f"in namespace {namespace}" if namespace else "in all namespaces (or set `namespace`)"
                    raise DiscoveryError(
                        f"{api}: HTTP {error.status}: the service account needs the right to `list` pods {what}"
                    ) from None
                raise
            if not isinstance(document, dict) or not isinstance(document.get("items"), list):
                raise DiscoveryError(f"{api}{path}: the answer is no list of pods")
            pods += document["items"]
            metadata = document.get("metadata")
            more = metadata.get("continue") if isinstance(metadata, dict) else None
            if not more:
                return pods
            params = {**params, "continue": str(more)}
        return pods

    def _address(self) -> str:
        if self._api is not None:
            return self._api.rstrip("/")
        host, port = self._environ.get("KUBERNETES_SERVICE_HOST"), self._environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise DiscoveryError("KUBERNETES_SERVICE_HOST is not set: discovery of pods works inside a pod only")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def pod_server(pod: Any, settings: KubernetesSettings) -> Server | str:
    """The server of a pod, or why it is none."""
    metadata = _mapping(_mapping(pod).get("metadata"))
    name, uid = str(metadata.get("name") or ""), str(metadata.get("uid") or "")
    place = f"{metadata.get('namespace', '?')}/{name or '?'}"
    address = str(_mapping(_mapping(pod).get("status")).get("podIP") or "")
    if not name or not uid:
        return f"{place}: no name or no uid"
    if not address:
        return f"{place}: has no address yet"
    shown = f"[{address}]" if ":" in address else address
    port = _port(_mapping(pod), settings)
    url = f"http://{shown}:{port}"
    why = refused(url)
    if why:
        return f"{place}: {address}: {why}"
    annotations = _mapping(metadata.get("annotations"))
    # A static pod is shown by the API under a uid of its own; its processes carry the hash.
    uid = str(annotations.get("kubernetes.io/config.hash") or uid)
    try:
        return Server(name=server_name(name), url=url, match=Match(pod=uid))
    except ValueError as error:
        return f"{place}: {' '.join(str(error).split())[:200]}"


def _port(pod: Mapping[str, Any], settings: KubernetesSettings) -> int:
    """The container port with the configured name; else the only one; else the configured number."""
    ports = [
        (str(_mapping(port).get("name") or ""), int(_mapping(port).get("containerPort") or 0))
        for container in _list(_mapping(pod.get("spec")).get("containers"))
        for port in _list(_mapping(container).get("ports"))
        if str(_mapping(port).get("containerPort", "")).isdigit() and _mapping(port).get("protocol", "TCP") == "TCP"
    ]
    named = [number for name, number in ports if name == settings.port_name]
    if named:
        return named[0]
    if settings.port in [number for _, number in ports]:
        return settings.port
    return ports[0][1] if len(ports) == 1 else settings.port


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
