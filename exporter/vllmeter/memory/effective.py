"""Effective settings of a server, with the source of each: labels of ``/metrics`` first, then the command line.  Pure.

Labels say what is in force, a command line only what was asked for (a ``--config`` file, defaults and environment
change it).  What neither says is left out: a default that depends on the card would be a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from vllmeter.memory.flags import ServeCommand, human_readable_int

_LABELS: Final = {
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "block_size": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "kv_offloading_size": "kv_offloading_size",
    "sliding_window": "sliding_window",
    "cpu_offload_gb": "cpu_offload_gb",
}
"""label of vllm:cache_config_info -> vLLM flag (the label set changes with every release: matched by name)"""

_LEFT_OUT: Final = frozenset(
    {
        # Where it listens and who may use it: no setting that changes how it performs, and some are secrets.
        "host",
        "port",
        "uds",
        "api_key",
        "hf_token",
        "config",
        "root_path",
        "allowed_origins",
        "allowed_methods",
        "allowed_headers",
        "served_model_name",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "middleware",
        "chat_template",
        "tool_parser_plugin",
        "otlp_traces_endpoint",
        "download_dir",
        "tokenizer",
        "uvicorn_log_level",
        "log_config_file",
        "model",
    }
)
_LIMIT = 40
"""Most settings shown per server: a command line must not make labels without limit."""


def effective_settings(
    cache_config: Mapping[str, Mapping[str, str]], command: ServeCommand | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Settings and their sources (``label`` or ``command``), by vLLM flag name with underscores.

    ``cache_config`` is :attr:`Layout.cache_config`; engines of one server share their settings, the first counts.
    """
    settings: dict[str, str] = {}
    sources: dict[str, str] = {}
    for labels in list(cache_config.values())[:1]:
        for label, flag in _LABELS.items():
            value = labels.get(label, "None")
            if value != "None":
                settings[flag], sources[flag] = value, "label"
    if command is not None:
        for flag, given in sorted(command.options.items()):
            if flag in _LEFT_OUT or flag in settings or len(settings) >= _LIMIT:
                continue
            settings[flag] = " ".join(given) if isinstance(given, tuple) else str(given)
            sources[flag] = "command"
    return settings, sources


_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SIZE: Final = re.compile(r"\d+(\.\d+)?[kKmMgGtT]", re.ASCII)
_SWITCHES: Final[Mapping[str, float]] = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0}


@lru_cache(maxsize=4096)
def setting_number(value: str) -> float | None:
    """A setting as a number in vLLM's own unit; None for words, lists, JSON, and codes (``auto``, anything below 0).

    Switches are 1 and 0.  Sizes are read as vLLM reads them (``4k`` = 4,000, ``4K`` = 4,096); what vLLM would refuse
    is None.  Below 0 stands for "work it out" or "no limit" (``--max-model-len -1``): a line at -1 would be a number
    that nobody set.
    """
    value = value.strip()
    if value in _SWITCHES:
        return _SWITCHES[value]
    if _NUMBER.fullmatch(value):
        number = float(value)
    elif _SIZE.fullmatch(value):
        try:
            number = float(human_readable_int(value))
        except ValueError:
            return None
    else:
        return None
    return number if 0 <= number < math.inf else None
