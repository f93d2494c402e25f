"""Every form of a cgroup path that container runtimes, Kubernetes and systemd make."""

from __future__ import annotations

import pytest

from vllmeter.host.cgroup import CgroupFacts, parse_cgroup

A = "a" * 64
B = "b" * 64
UID = "12345678-90ab-cdef-1234-567890abcdef"
UID_ = UID.replace("-", "_")


def facts(text: str) -> tuple[str | None, str | None, str | None, str | None]:
    """(container, runtime, pod, unit)."""
    found = parse_cgroup(text)
    return found.container_id, found.runtime, found.pod_uid, found.unit


CASES = {
    "docker cgroupfs v2": (f"0::/docker/{A}\n", (A, "docker", None, None)),
    "docker systemd v2": (f"0::/system.slice/docker-{A}.scope\n", (A, "docker", None, None)),
    "docker v1": (
        f"12:pids:/docker/{A}\n11:memory:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/system.slice/containerd.service\n",
        (A, "docker", None, None),
    ),
    "docker rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{A}.scope\n",
        (A, "docker", None, None),
    ),
    "podman": (f"0::/machine.slice/libpod-{A}.scope\n", (A, "podman", None, None)),
    "podman below": (f"0::/machine.slice/libpod-{A}.scope/container\n", (A, "podman", None, None)),
    "podman cgroupfs": (f"2:cpu:/libpod_parent/libpod-{A}\n0::/\n", (A, "podman", None, None)),
    "podman rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container\n",
        (A, "podman", None, None),
    ),
    "podman quadlet": (
        f"0::/system.slice/vllm-chat.service/libpod-payload-{A}\n",
        (A, "podman", None, "vllm-chat.service"),
    ),
    "conmon itself": (f"0::/machine.slice/libpod-conmon-{A}.scope\n", (None, None, None, None)),
    "containerd systemd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{A}.scope\n",
        (A, "containerd", UID, None),
    ),
    "containerd guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope\n",
        (A, "containerd", UID, None),
    ),
    "containerd wrong driver": (
        f"0::/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{A}\n",
        (A, "containerd", UID, None),
    ),
    "cri-o": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{A}.scope\n",
        (A, "cri-o", UID, None),
    ),
    "cri-o conmon": (
        f"0::/kubepods.slice/kubepods-besteffort-pod{UID_}.slice/crio-conmon-{A}.scope\n",
        (None, None, UID, None),
    ),
    "kubernetes cgroupfs": (f"4:memory:/kubepods/burstable/pod{UID}/{A}\n", (A, "cri", UID, None)),
    "kubernetes cgroupfs guaranteed": (f"4:memory:/kubepods/pod{UID}/{A}\n", (A, "cri", UID, None)),
    "static pod": (f"0::/kubepods/besteffort/pod{'c' * 32}/{A}\n", (A, "cri", "c" * 32, None)),
    "kind": (
        f"0::/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}\n",
        (A, "cri", UID, None),
    ),
    "docker in docker": (f"0::/docker/{B}/docker/{A}\n", (A, "docker", None, None)),
    "private namespace": (f"0::/../docker-{A}.scope\n", (A, "docker", None, None)),
    "own private namespace": ("0::/\n", (None, None, None, None)),
    "unit": ("0::/system.slice/vllm-chat.service\n", (None, None, None, "vllm-chat.service")),
    "unit v1": (
        "3:cpu:/\n1:name=systemd:/system.slice/vllm-chat.service\n0::/system.slice/vllm-chat.service\n",
        (None, None, None, "vllm-chat.service"),
    ),
    "template unit": (
        "0::/system.slice/system-vllm.slice/vllm@a.service\n",
        (None, None, None, "vllm@a.service"),
    ),
    "user unit": (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n",
        (None, None, None, "vllm.service"),
    ),
    "login session": ("0::/user.slice/user-1000.slice/session-3.scope\n", (None, None, None, None)),
    "user manager": ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", (None, None, None, None)),
    "ray inside a unit": (
        "0::/system.slice/ray.service/ray_workers\n",
        (None, None, None, "ray.service"),
    ),
    "odd lines": (f"garbage\n\n5\n0::/docker/{A}", (A, "docker", None, None)),
    "short hex is no id": (f"0::/docker/{'a' * 63}\n", (None, None, None, None)),
    "empty": ("", (None, None, None, None)),
}


@pytest.mark.parametrize("name", CASES)
def test_cgroup_path_forms(name: str) -> None:
    """The container, its runtime, the pod and the unit come out of each form."""
    text, expected = CASES[name]
    assert facts(text) == expected


def test_the_path_itself_is_kept() -> None:
    """For the person who looks at /snapshot.json."""
    assert parse_cgroup("0::/system.slice/x.service\n").path == "/system.slice/x.service"
    assert parse_cgroup("nothing") == CgroupFacts()
