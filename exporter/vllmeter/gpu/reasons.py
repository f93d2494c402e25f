"""What NVML's return codes mean for an exporter: short reasons (label values) and their words.  Pure.

Codes and their recovery are those of ``nvml.h``; why 18 and 999 need a new process or container: the library stays
mapped after a driver upgrade, and a container whose device cgroup was reset never gets its devices back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
OPERATING_SYSTEM: Final = 17
LIB_RM_VERSION_MISMATCH: Final = 18
ARGUMENT_VERSION_MISMATCH: Final = 25
GPU_NOT_FOUND: Final = 28
UNKNOWN: Final = 999
BINDING_BUG: Final = -1
"""Our own code: the Python binding itself raised (old wrappers have such bugs)."""

SLUGS: Final[Mapping[int, str]] = MappingProxyType(
    {
        UNINITIALIZED: "uninitialized",
        INVALID_ARGUMENT: "stale_handle",
        NOT_SUPPORTED: "not_supported",
        NO_PERMISSION: "no_permission",
        NOT_FOUND: "not_found",
        INSUFFICIENT_SIZE: "list_changing",
        DRIVER_NOT_LOADED: "driver_not_loaded",
        TIMEOUT: "timeout",
        LIBRARY_NOT_FOUND: "library_not_found",
        FUNCTION_NOT_FOUND: "function_not_found",
        GPU_IS_LOST: "gpu_lost",
        RESET_REQUIRED: "reset_required",
        OPERATING_SYSTEM: "device_blocked",
        LIB_RM_VERSION_MISMATCH: "driver_upgraded",
        ARGUMENT_VERSION_MISMATCH: "version_mismatch",
        GPU_NOT_FOUND: "gpu_not_found",
        UNKNOWN: "unknown_error",
        BINDING_BUG: "binding_bug",
    }
)

WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "uninitialized": "NVML was shut down by something else in this process",
        "stale_handle": "the device is not there any more (MIG change or GPU removed); it is looked up again",
        "not_supported": "this GPU or driver does not give it",
        "no_permission": "the driver refuses it to this process "
        "(MIG: set NVIDIA_MIG_MONITOR_DEVICES=all, or run privileged)",
        "not_found": "the driver has nothing to say about it",
        "list_changing": "the list of processes changed while it was read",
        "driver_not_loaded": "the NVIDIA kernel module is not loaded; tried again with growing pauses",
        "timeout": "the driver was busy",
        "library_not_found": "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or the container lacks "
        "the `utility` driver capability (NVIDIA_DRIVER_CAPABILITIES)",
        "function_not_found": "the driver's NVML library is too old for it",
        "gpu_lost": "a GPU fell off the bus (XID 79); it needs a reset or a reboot, other GPUs still work",
        "reset_required": "a GPU needs a reset before it answers again",
        "device_blocked": "the operating system blocks the device (device cgroup); restart the container",
        "driver_upgraded": "the driver was upgraded under the loaded library; restart this exporter",
        "version_mismatch": "the library does not know this structure version",
        "gpu_not_found": "no GPU was found",
        "unknown_error": "NVML says Unknown Error; in a container its device cgroup was probably reset "
        "(systemctl daemon-reload): recreate the container",
        "no_gpu": "NVML works but lists no GPU",
        "binding_bug": "the Python binding of NVML failed; update nvidia-ml-py",
        "hung": "a driver call has not returned; readings are withheld until it does",
        "starting": "NVML is being initialised (seconds without persistence mode)",
        "closed": "this source was closed",
        "wrong_pynvml": "`import pynvml` gives an old fork, not NVIDIA's nvidia-ml-py: "
        "pip uninstall pynvml nvidia-ml-py3, then pip install --force-reinstall nvidia-ml-py",
        "no_pynvml": "the module pynvml is not installed: pip install nvidia-ml-py",
        "process_memory_unavailable": "the driver gives no memory per process (WSL2/WDDM)",
        "processes_unreadable": "the process list of a GPU could not be read",
        "internal_error": "reading NVML failed in an unexpected way; see the log",
    }
)

RESTART_NEEDED: Final = frozenset({"driver_upgraded", "unknown_error"})
"""Reasons that only a new process (or container) can end."""


def slug(code: int) -> str:
    """The short reason of a return code; unknown codes become ``error_N``."""
    return SLUGS.get(code, f"error_{code}")


def explain(reason: str | None) -> str:
    """A short reason in words, with the remedy; empty for None."""
    if reason is None:
        return ""
    return WORDS.get(reason, f"NVML error {reason.removeprefix('error_')}")
