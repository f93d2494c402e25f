"""What a process's command line says, and what of it may be kept.  Pure.

vLLM >= 0.10.1 renames its children (``VLLM::EngineCore``, ``VLLM::Worker_TP0``; the prefix is configurable), which
replaces command line and environment; only the server's own process keeps its real arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

MASK: Final = "***"

_SECRET_WORDS: Final = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth"}
)
_COUNTED: Final = frozenset({"threshold", "id", "ids", "limit", "budget"})
"""After ``token``: it is one of a text, as in ``--long-prefill-token-threshold``."""
_INLINE: Final = (
    # NAME=value and --name=value inside `sh -c "…"`
    re.compile(r"(?i)\b([A-Z0-9_]*(?:API_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)[A-Z0-9_]*=)[^\s\"']+"),
    # … but max_num_batched_tokens=2048 and tokenizer=… are no secrets
    re.compile(
        r"(?i)\b([A-Z0-9_]*TOKEN=|[A-Z0-9_]*TOKEN(?!IZ)[A-Z0-9_]+=(?!\d{1,9}[km]?(?:[\s\"',;)\]}]|$)))[^\s\"']+"
    ),
    re.compile(r"(?i)(--?(?:[a-z0-9]+[-_])*(?:api[-_]?k(?:ey?)?|token|secret|password|passwd)[ =])[^\s\"']+"),
    # JSON: "api_key": "value"
    re.compile(r"(?i)([\"'](?:[a-z0-9]+[-_])*(?:key|token|secret|password)[\"']\s*:\s*[\"'])[^\"']+"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]+"),
    # an error text: "Incorrect API key provided: value", "X-Api-Key: value"
    re.compile(r"(?i)(\bapi[-_ ]?key\b(?: [a-z]+){0,2}\s*[:=]\s*[\"']?)[^\s\"',;]+"),
    # keys that tell what they are: OpenAI and its likes, Hugging Face, Grafana
    re.compile(r"((?<![\w/.-])(?:sk-|hf_|glsa_))[A-Za-z0-9_-]{20,}"),
    # scheme://user:password@host
    re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@"),
)

_INTERPRETER: Final = re.compile(r"^(?:python|pypy)[\d.]*$")
_TITLE: Final = re.compile(r"^[^\s:]*::(EngineCore|Worker|APIServer|DPCoordinator)")
_OLD_WORKER: Final = re.compile(r"^(?:VllmWorkerProcess|ray::RayWorker)")

ENVIRONMENT: Final = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_VISIBLE_DEVICES",
        "HOSTNAME",
        "NVIDIA_VISIBLE_DEVICES",
        "PROMETHEUS_MULTIPROC_DIR",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "SPT_NOENV",
    }
)
"""Variables that are kept beside ``VLLM_*``; everything else is dropped unread."""


def _secret_name(name: str) -> bool:
    """``--api-key``, ``HF_TOKEN``: a whole word of the name says so; ``--max-num-batched-tokens`` does not."""
    words = re.split(r"[-_.]", name.lower().lstrip("-"))
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(word in _SECRET_WORDS and not (word == "token" and after in _COUNTED) for word, after in pairs)


def _secret_option(word: str) -> bool:
    """Also the abbreviations that argparse accepts: ``--api-k``, ``--api_ke``."""
    name = word.partition("=")[0].lower().replace("_", "-")
    return word.startswith("-") and (_secret_name(name) or name in ("--api-k", "--api-ke"))


def mask_text(text: str) -> str:
    """The text with every key, token, password and URL credential replaced by ``***``."""
    for pattern in _INLINE:
        text = pattern.sub(lambda match: match[1] + MASK + ("@" if match[0].endswith("@") else ""), text)
    return text


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line without secrets.

    After ``--api-key`` (which takes several values) everything up to the next option is masked.
    """
    out: list[str] = []
    hiding = False
    for word in argv:
        if word.startswith("-") and len(word) > 1:
            hiding = False
            if _secret_option(word):
                name, equals, _ = word.partition("=")
                out.append(name + equals + MASK if equals else word)
                hiding = True
                continue
        elif hiding:
            out.append(MASK)
            continue
        out.append(mask_text(word))
    return tuple(out)


def kept_environment(pairs: Mapping[str, str]) -> dict[str, str]:
    """Of an environment only what we use, and never a secret."""
    kept = {}
    for name, value in pairs.items():
        if (name in ENVIRONMENT or name.startswith("VLLM_")) and not _secret_name(name):
            kept[name] = mask_text(value[:300])
    return kept


def base_name(word: str) -> str:
    """``/usr/bin/python3`` -> ``python3``."""
    return word.rsplit("/", 1)[-1]


def _script(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """What an interpreter runs: ("-m", [module, …]), ("-c", [text, …]), ("", [script, …]); options skipped."""
    place = 1
    while place < len(argv):
        word = argv[place]
        if word in ("-m", "-c"):
            return word, argv[place + 1 :]
        if word in ("-W", "-X"):
            place += 2
        elif word.startswith("-"):
            place += 1
        else:
            return "", argv[place:]
    return "", ()


def is_interpreter(argv: Sequence[str] | None) -> bool:
    """True for Python: a server, or something that embeds vLLM."""
    return bool(argv) and argv is not None and _INTERPRETER.match(base_name(argv[0])) is not None


def is_server(argv: Sequence[str] | None) -> bool:
    """True for the process that is a vLLM API server itself: Python or ``vllm`` with ``serve`` or the module.

    Shells, ``docker exec``, ``timeout`` and other wrappers that only have it in their arguments are not.
    """
    if not argv:
        return False
    first = base_name(argv[0])
    if first == "vllm":
        return tuple(argv[1:2]) == ("serve",)
    if not _INTERPRETER.match(first):
        return False
    how, rest = _script(argv)
    if not rest:
        return False
    if how == "-m":
        return rest[0] == "vllm.entrypoints.openai.api_server" or (
            rest[0] in ("vllm.entrypoints.cli.main", "vllm") and tuple(rest[1:2]) == ("serve",)
        )
    if how == "-c":
        return False
    return (base_name(rest[0]) == "vllm" and tuple(rest[1:2]) == ("serve",)) or rest[0].endswith(
        "vllm/entrypoints/openai/api_server.py"
    )


def title_role(argv: Sequence[str] | None, comm: str) -> str | None:
    """Role from the title that vLLM (or Ray) gave the process; None when it has none.

    ``comm`` is cut to 15 characters (``VLLM::EngineCor``) and helps where the command line may not be read.
    """
    title = argv[0] if argv else comm
    match = _TITLE.match(title)
    word = match[1] if match else ""
    if not word and "::" in title and not argv:
        tail = title.partition("::")[2]
        for known in ("EngineCore", "Worker", "APIServer", "DPCoordinator"):
            if len(tail) >= 3 and (known.startswith(tail) or tail.startswith(known)):
                word = known
    if word == "EngineCore":
        return "engine_core"
    if word == "Worker" or _OLD_WORKER.match(title):
        return "worker"
    if word == "APIServer":
        return "api_server"
    if word == "DPCoordinator":
        return "other"
    return None


def program_name(argv: Sequence[str] | None, comm: str) -> str:
    """A short, stable name of a program for a label: ``jupyter-lab``, ``python train.py``, ``Xorg``; never a pid.

    Only the executable and, for interpreters, the script or module; no arguments.
    """
    if not argv or not argv[0]:
        return comm or "unknown"
    first = argv[0]
    if "::" in first or (len(argv) == 1 and " " in first):
        return first.split()[0][:60]
    name = base_name(first)
    if _INTERPRETER.match(name):
        how, rest = _script(argv)
        if not rest or how == "-c":
            return f"python {how}".strip()
        return f"python {how} {base_name(rest[0])}".replace("  ", " ")[:60]
    return name[:60] or comm or "unknown"
