"""What a vLLM server says about its memory while it starts, read line by line from its log.

vLLM exposes neither weights nor activation, graph or KV bytes as metrics; its start-up log is the only place.
The texts differ between releases; every variant below stands in a table of the tests with the releases that
print it.  The message is parsed, never ``file:line``, and whatever stands before it (process prefix, time stamp,
JSON) is ignored, because users configure logging.

A log may hold many starts: a new one resets the facts.  "GB" of the older texts always meant 2^30 bytes.
Figures have the precision that vLLM prints, mostly 0.01 GiB (10.7 MB).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

GIB: Final = 1 << 30
ROUNDING: Final = GIB // 100
"""Bytes that one step of a figure printed with two decimals stands for."""

_MAX_LINE: Final = 65_536
_SECRETS: Final = frozenset({"api_key", "hf_token"})


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What one process (engine core or worker) logged about its own GPU.  Bytes; None = not logged.

    ``pid`` is as logged: inside a container it is the container's own number.
    """

    name: str
    pid: int | None = None
    rank: int | None = None
    dp_rank: int | None = None
    weights: int | None = None
    consumed: int | None = None
    """weights and non-torch together, as 0.27 and later print them"""
    activation_peak: int | None = None
    non_torch: int | None = None
    kv_available: int | None = None
    """what profiling left for the KV cache, before any override of the number of blocks; may be negative"""
    kv_reserved: int | None = None
    """what --kv-cache-memory-bytes reserved"""
    graphs_estimated: int | None = None
    graphs_actual: int | None = None
    free_at_start: int | None = None
    cuda_total: int | None = None
    fraction: float | None = None
    requested: int | None = None
    sleep_freed: int | None = None
    held_outside: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a start failed or an engine died: a stable ``kind``, what was logged, and what helps."""

    kind: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """Everything read from one start.  ``number`` counts starts in this log, from 1; 0 = none seen yet."""

    number: int = 0
    version: str | None = None
    engine: str | None = None
    """``V0`` or ``V1``"""
    model: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's own "non-default args", as values"""
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    enforce_eager: bool | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    workers: tuple[WorkerFacts, ...] = ()
    kv_tokens: Mapping[str, int] = field(default_factory=dict)
    """engine -> tokens (the smallest where several workers logged one); "" = no engine name in the prefix"""
    kv_device: str | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens: int | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    blocks_override: tuple[int, int] | None = None
    """(blocks that fitted, blocks ordered)"""
    pooling: bool | None = None
    unknown_environment: tuple[str, ...] = ()
    sleep_still_in_use: int | None = None
    """device-wide, with neighbours: never this server's own"""
    startup_plan: bool = False
    """a remembered KV size was applied silently (VLLM_ENABLE_STARTUP_PLAN, 0.26 and later)"""
    engine_seconds: float | None = None
    ready: bool = False
    stopped: bool = False
    failure: Failure | None = None

    @property
    def kv_tokens_total(self) -> int | None:
        """KV capacity in tokens over all engines; None when no line gave it."""
        return sum(self.kv_tokens.values()) if self.kv_tokens else None

    def worker_for(self, pid: int | None = None) -> WorkerFacts | None:
        """The worker with that (container-local) pid; the only one when there is only one; else None."""
        for worker in self.workers:
            if pid is not None and worker.pid == pid:
                return worker
        return self.workers[0] if len(self.workers) == 1 else None


# --------------------------------------------------------------------------- texts

_N: Final = r"(-?\d[\d,]*(?:\.\d+)?)"
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX: Final = re.compile(r"\(([A-Za-z][\w-]*)(?: rank=(\d+))? pid=(\d+)(?:, ip=[^)]*)?\)")
_CONTENT: Final = re.compile(r"Received request|Generated response|prompt: '")
"""Lines that quote what clients sent (--enable-log-requests): never read as facts."""
_NEEDLE: Final = re.compile(
    r"GiB|GB\b|blocks|KV cache size|concurrency|LLM engine|API server version|  version \d|non-default args|"
    r"Namespace\(|init engine|startup complete|memory|unrecognized arguments|error: |EngineDead|\[shutdown\]|"
    r"Shutting down|environment variable|Supported[ _]tasks|startup plan|gpu-memory-utilization|max seq len|"
    r"initialization failed",
    re.IGNORECASE,
)


_DIGITS: Final = 18
"""Digits before the point that a figure can have; more are a damaged line, and the figure counts as not logged."""


def _number(text: str) -> float | None:
    plain = text.replace(",", "")
    return float(plain) if len(plain.split(".", 1)[0]) <= _DIGITS else None


def _gib(text: str) -> int | None:
    value = _number(text)
    return None if value is None else round(value * GIB)


def _total(text: str) -> int | None:
    """Bytes of a card; a card without memory is a damaged line."""
    return max(_gib(text) or 0, 0) or None


def _int(text: str) -> int | None:
    plain = text.replace(",", "").split(".", 1)[0]
    return int(plain) if len(plain) <= _DIGITS else None


_NOISE: Final = frozenset({"VLLM_BUILD_COMMIT", "VLLM_BUILD_PIPELINE", "VLLM_BUILD_URL", "VLLM_IMAGE_TAG"})
"""Set by the official image itself and reported by vLLM at every start: no finding."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One text: where it matches, ``worker`` fields are set on the logging process, the rest on the start."""

    pattern: re.Pattern[str]
    worker: tuple[tuple[str, Callable[[str], Any]], ...] = ()
    start: tuple[tuple[str, Callable[[str], Any]], ...] = ()


def _rule(pattern: str, **fields: Callable[[str], Any]) -> _Rule:
    names = tuple(fields.items())
    workers = {item.name for item in WorkerFacts.__dataclass_fields__.values()}
    if all(name in workers for name, _ in names):
        return _Rule(re.compile(pattern), worker=names)
    return _Rule(re.compile(pattern), start=names)


# A gap has a limit: without one, a hostile line of 64 KiB that only repeats the beginning takes seconds.
_RULES: Final[tuple[_Rule, ...]] = (
    # weights: 0.4-0.7, 0.8.0, 0.8.5-0.11 (and model runner V2 to 0.27), 0.12 and later
    _rule(rf"Loading model weights took {_N} ?(?:GB|GiB)", weights=_gib),
    _rule(rf"Model loading took {_N} (?:GB|GiB)(?: memory)? and", weights=_gib),
    # V0, 0.6.5-0.10
    _rule(
        rf"total_gpu_memory \({_N} ?GiB\) x gpu_memory_utilization \({_N}\) = {_N} ?GiB",
        cuda_total=_total,
        fraction=_number,
        requested=_gib,
    ),
    _rule(rf"model weights take {_N} ?GiB", weights=_gib),
    _rule(rf"non_torch_memory takes {_N} ?GiB", non_torch=_gib),
    _rule(rf"PyTorch activation peak memory takes {_N} ?GiB", activation_peak=_gib),
    _rule(rf"the rest of the memory reserved for KV Cache is {_N} ?GiB", kv_available=_gib),
    # V0, 0.6.4
    _rule(rf"Memory profiling results: .{{0,400}}?\btotal_gpu_memory={_N} ?GiB", cuda_total=_total),
    _rule(rf"Memory profiling results: .{{0,400}}?\bnon_torch_memory={_N} ?GiB", non_torch=_gib),
    _rule(rf"Memory profiling results: .{{0,400}}?\bkv_cache_size={_N} ?GiB", kv_available=_gib),
    _rule(rf"Memory profiling results: .{{0,400}}?\bgpu_memory_utilization={_N}", fraction=_number),
    # V1 at level DEBUG, 0.10-0.26
    _rule(rf"torch peak memory increase: {_N} ?GiB", activation_peak=_gib),
    _rule(rf"non-torch forward increase memory: {_N} ?GiB", non_torch=_gib),
    # V1
    _rule(rf"Available KV cache memory: {_N} GiB", kv_available=_gib),
    _rule(
        rf"Initial free memory:? {_N} GiB,? reserved {_N} GiB memory for KV Cache as specified by",
        free_at_start=_gib,
        kv_reserved=_gib,
    ),
    # CUDA graphs
    _rule(rf"Estimated CUDA graph memory: {_N} GiB", graphs_estimated=_gib),
    _rule(rf"Graph capturing finished in {_N.replace('(', '(?:', 1)} secs?, took {_N} GiB", graphs_actual=_gib),
    _rule(rf"CUDA graph pool memory: {_N} GiB \(actual\)", graphs_actual=_gib),
    _rule(rf"The current --gpu-memory-utilization={_N} is equivalent", fraction=_number),
    # the summary line, 0.10.2 and later (not with --kv-cache-memory-bytes)
    _rule(
        rf"Free memory on device(?: \S+)? \({_N}/{_N} GiB\) on startup\. ",
        free_at_start=_gib,
        cuda_total=_total,
    ),
    _rule(rf"on startup\. Desired GPU memory utilization is \({_N}, {_N} GiB\)", fraction=_number, requested=_gib),
    _rule(rf"Actual usage is {_N} GiB for weight", weights=_gib),
    _rule(rf"Actual usage is {_N} GiB for consumed memory", consumed=_gib),
    _rule(rf"Actual usage is .{{0,400}}?{_N} GiB for peak activation", activation_peak=_gib),
    _rule(rf"Actual usage is .{{0,400}}?{_N} GiB for non-torch memory", non_torch=_gib),
    _rule(rf"Actual usage is .{{0,400}}?{_N} GiB for CUDAGraph memory", graphs_actual=_gib),
    _rule(rf"Current kv cache memory in use is {_N} GiB", kv_available=_gib),
    # others
    _rule(rf"CuMemAllocator: sleep freed {_N} GiB", sleep_freed=_gib),
    _rule(rf"Weights are held outside this process: \D*{_N} GiB", held_outside=_gib),
    _rule(
        rf"Maximum concurrency for {_N} tokens per request: {_N}x", max_concurrency_tokens=_int, max_concurrency=_number
    ),
    _rule(r"# (?:GPU|cuda|hip|rocm|xpu) blocks: (\d+)", num_gpu_blocks=_int),
    _rule(r"# CPU blocks: (\d+)", num_cpu_blocks=_int),
    _rule(rf"init engine \([^)]*\) took {_N} s", engine_seconds=_number),
)

_SLEEP: Final = re.compile(rf"Sleep mode freed {_N} GiB memory, {_N} GiB memory is still in use")
_KV_TOKENS: Final = re.compile(rf"\b(GPU \+ host|[A-Z]+) KV cache size: {_N} tokens")
_OVERRIDE: Final = re.compile(r"Overriding num_gpu_blocks=(\d+) with num_gpu_blocks_override=(\d+)")
_ENVIRONMENT: Final = re.compile(r"Unknown vLLM environment variable detected: (\w+)")
_ENGINE: Final = re.compile(r"Initializing an? (V1 )?LLM engine \(v([^)\s]+)\) with config: ?(.*)")
_API_VERSION: Final = re.compile(r"vLLM API server version (\S+)|[█▀▄]\s+version (\d\S*)")
_ARGUMENTS: Final = re.compile(r"non-default args: (?=\{)")
_NAMESPACE: Final = re.compile(r"\bargs: Namespace\(")
_TASKS: Final = re.compile(r"Supported[ _]tasks: (\[[^\]]*\])")

_FAILURES: Final[tuple[tuple[re.Pattern[str], str, str, str], ...]] = (
    (
        re.compile(
            rf"Free memory on device(?: \S+)? \({_N}/{_N} GiB\) on startup is less than desired GPU memory "
            rf"utilization \({_N}, {_N} GiB\)"
        ),
        "free_memory",
        "only {0} of {1} GiB were free at the start, {3} GiB ({2} of the card) were asked for",
        (
            "lower --gpu-memory-utilization (also with --kv-cache-memory-bytes, the check runs there too) or free "
            "memory; neighbours that are still starting count as used"
        ),
    ),
    (
        re.compile(
            rf"Error in memory profiling\. Initial free memory {_N}(?: GiB)?, current free memory {_N}(?: GiB)?"
        ),
        "profiling_disturbed",
        "free memory grew from {0} to {1} while vLLM profiled: a neighbour on the card gave memory back",
        (
            "start the servers of one card one after the other (health-gate each on the one before), or set "
            "--kv-cache-memory-bytes, which skips profiling"
        ),
    ),
    (
        re.compile(r"No available memory for the cache blocks"),
        "no_kv_memory",
        "nothing was left for the KV cache after weights and activations",
        (
            "raise --gpu-memory-utilization, or lower --max-num-batched-tokens or --max-num-seqs; if a neighbour "
            "started at the same time, start them one after the other"
        ),
    ),
    (
        re.compile(
            rf"max(?:imum)? seq(?:uence)? len(?:gth)? \({_N}\),? \(?{_N} GiB KV cache is needed, which is larger "
            rf"than the available KV cache memory \({_N} GiB\)"
        ),
        "max_model_len",
        "one request of {0} tokens needs {1} GiB of KV cache, {2} GiB are available",
        "lower --max-model-len (or use auto), use --kv-cache-dtype fp8, or raise the budget",
    ),
    (
        re.compile(
            rf"max seq len \({_N}\) is larger than the maximum number of tokens that can be stored in KV cache "
            rf"\({_N}\)"
        ),
        "max_model_len",
        "one request of {0} tokens does not fit the KV cache of {1} tokens",
        "lower --max-model-len, use --kv-cache-dtype fp8, or raise the budget",
    ),
    (
        re.compile(r"OutOfMemoryError: CUDA out of memory|memory allocation failed with OOM on device"),
        "cuda_oom",
        "CUDA ran out of memory",
        (
            "the card was full: a neighbour grew, or graphs and late allocations came on top of the budget; leave "
            "head room for one context per server"
        ),
    ),
    (
        re.compile(r"error: unrecognized arguments: (.+)"),
        "arguments",
        "vLLM refused the arguments {0}",
        "`vllmeter check` names flags that do not exist and what to use instead",
    ),
)
_INIT_FAILED: Final = re.compile(r"Engine core initialization failed")
_DEAD: Final = re.compile(r"EngineDeadError: ")


class StartupLog:
    """Incremental reader: :meth:`feed` lines, read :attr:`facts`.

    :attr:`facts` is the newest start; :attr:`last_failure` is the newest reason of death seen in any start, so
    that a server that restarts in a loop still tells why.
    """

    def __init__(self) -> None:
        self.facts = StartupFacts()
        self.previous: StartupFacts | None = None
        self.last_failure: Failure | None = None
        self._api_marks: set[str] = set()

    def feed_all(self, lines: Iterable[str]) -> StartupFacts:
        """Feed many lines; the facts after the last."""
        for line in lines:
            self.feed(line)
        return self.facts

    def feed(self, line: str) -> bool:
        """Read one line; True when the facts changed."""
        line = line[:_MAX_LINE]
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if _NEEDLE.search(line) is None or _CONTENT.search(line) is not None:
            return False
        before = self.facts
        self._starts(line)
        if not self.facts.ready:
            self._facts(line)
        self._events(line)
        self._failures(line)
        return self.facts is not before

    # ------------------------------------------------------------------ new start

    def _reset(self) -> None:
        if self.facts.number:
            self.previous = self.facts
        self.facts = StartupFacts(number=self.facts.number + 1)
        self._api_marks = set()

    def _mark(self, kind: str) -> None:
        """An API-server line that comes once per start: the same again, or after any engine line, is a new start."""
        facts = self.facts
        under_way = facts.engine is not None or facts.failure is not None or facts.ready or facts.stopped
        if facts.number == 0 or kind in self._api_marks or under_way:
            self._reset()
        self._api_marks.add(kind)

    def _starts(self, line: str) -> None:
        if match := _API_VERSION.search(line):
            self._mark("version")
            self._set(version=match.group(1) or match.group(2))
        elif (match := _ARGUMENTS.search(line)) and (end := line.rfind("}")) > match.end():
            self._mark("arguments")
            try:
                arguments = ast.literal_eval(line[match.end() : end + 1])
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                arguments = {}
            if isinstance(arguments, dict):
                kept = {str(key): value for key, value in arguments.items() if key not in _SECRETS}
                self._set(arguments=MappingProxyType(kept))
                if arguments.get("runner") == "pooling":
                    self._set(pooling=True)
        elif line.rstrip().endswith(")") and _NAMESPACE.search(line):
            self._mark("arguments")
        elif match := _ENGINE.search(line):
            # data-parallel engines log one each before the server is ready
            if self.facts.number == 0 or self.facts.ready or self.facts.failure or self.facts.stopped:
                self._reset()
            v1, version, rest = match.groups()
            self._set(version=version, engine="V1" if v1 or not version.startswith("0.") else "V0")
            self._config(rest)

    def _config(self, text: str) -> None:
        def find(pattern: str) -> str | None:
            match = re.search(pattern, text)
            return match.group(1) if match else None

        def whole(pattern: str) -> int | None:
            value = find(pattern)
            return _int(value) if value else None

        quantization = find(r"\bquantization=(\w+)")
        eager = find(r"\benforce_eager=(True|False)")
        self._set(
            model=find(r"\bmodel='([^']*)'"),
            dtype=find(r"\bdtype=torch\.(\w+)"),
            quantization=None if quantization == "None" else quantization,
            kv_cache_dtype=find(r"\bkv_cache_dtype='?(\w+)"),
            enforce_eager=None if eager is None else eager == "True",
            max_model_len=whole(r"\bmax_seq_len=(\d+)"),
            tensor_parallel_size=whole(r"\btensor_parallel_size=(\d+)"),
            pipeline_parallel_size=whole(r"\bpipeline_parallel_size=(\d+)"),
            data_parallel_size=whole(r"\bdata_parallel_size=(\d+)"),
        )

    # ------------------------------------------------------------------ facts

    def _set(self, **values: Any) -> None:
        if self.facts.number == 0:
            self._reset()
        if any(getattr(self.facts, name) != value for name, value in values.items()):
            self.facts = replace(self.facts, **values)

    def _worker(self, line: str, values: Mapping[str, Any]) -> None:
        prefixes = _PREFIX.findall(line[:512])
        name, rank, pid = prefixes[-1] if prefixes else ("", "", "")
        if self.facts.number == 0:
            self._reset()
        key = (name, _int(pid) if pid else None)
        workers = list(self.facts.workers)
        for index, worker in enumerate(workers):
            if (worker.name, worker.pid) == key:
                workers[index] = replace(worker, **values)
                break
        else:
            dp = re.search(r"DP(\d+)", name)
            tp = re.search(r"TP(\d+)", name)
            workers.append(
                WorkerFacts(
                    name=name,
                    pid=key[1],
                    rank=_int(rank) if rank else _int(tp.group(1)) if tp else None,
                    dp_rank=_int(dp.group(1)) if dp else None,
                    **values,
                )
            )
        if tuple(workers) != self.facts.workers:
            self.facts = replace(self.facts, workers=tuple(workers))

    def _facts(self, line: str) -> None:
        for rule in _RULES:
            match = rule.pattern.search(line)
            if match is None:
                continue
            fields = rule.worker or rule.start
            values = {name: convert(text) for (name, convert), text in zip(fields, match.groups(), strict=True)}
            if rule.worker:
                self._worker(line, values)
            else:
                self._set(**values)
        if match := _KV_TOKENS.search(line):
            prefixes = _PREFIX.findall(line[:512])
            engine = next((name for name, _, _ in prefixes if name.startswith("EngineCore")), "")
            tokens = _int(match.group(2))
            if tokens is not None and tokens >= 0:
                known = dict(self.facts.kv_tokens)
                known[engine] = min(tokens, known.get(engine, tokens))
                self._set(kv_tokens=MappingProxyType(known), kv_device=match.group(1))
        if match := _OVERRIDE.search(line):
            fitted, ordered = _int(match.group(1)), _int(match.group(2))
            if fitted is not None and ordered is not None:
                self._set(blocks_override=(fitted, ordered))

    def _events(self, line: str) -> None:
        if match := _SLEEP.search(line):
            self._worker(line, {"sleep_freed": _gib(match.group(1))})
            self._set(sleep_still_in_use=_gib(match.group(2)))
        if match := _ENVIRONMENT.search(line):
            name = match.group(1)
            if name not in self.facts.unknown_environment and name not in _NOISE:
                self._set(unknown_environment=(*self.facts.unknown_environment, name))
        if not self.facts.ready and (match := _TASKS.search(line)):
            self._set(pooling="'generate'" not in match.group(1) and "'transcription'" not in match.group(1))
        if "Applying persisted startup plan" in line:
            self._set(startup_plan=True)
        if "Application startup complete" in line and self.facts.number:
            self._set(ready=True)
        if ("[shutdown]" in line or "Shutting down" in line) and self.facts.number:
            self._set(stopped=True)

    # ------------------------------------------------------------------ failures

    def _failures(self, line: str) -> None:
        for pattern, kind, message, remedy in _FAILURES:
            if match := pattern.search(line):
                self._fail(Failure(kind, message.format(*(group.strip() for group in match.groups())), remedy))
                return
        if self.facts.failure is None and not self.facts.stopped:
            if _INIT_FAILED.search(line):
                self._fail(
                    Failure("engine_init", "the engine failed to initialize", "the lines above it in the log say why")
                )
            elif _DEAD.search(line):
                self._fail(Failure("engine_dead", "the engine died while serving", "the lines above it say why"))

    def _fail(self, failure: Failure) -> None:
        # The first specific reason counts: what follows in a traceback is its consequence
        known = self.facts.failure
        if known is None or known.kind in ("engine_init", "engine_dead"):
            self._set(failure=failure)
            self.last_failure = failure


def logged_names(facts: StartupFacts) -> tuple[str, ...]:
    """Names under which the logged server answers: --served-model-name, else the model; () when not logged."""
    served = facts.arguments.get("served_model_name")
    if isinstance(served, str):
        return (served,)
    if isinstance(served, list | tuple) and served:
        return tuple(str(name) for name in served)
    model = facts.arguments.get("model") or facts.model
    return (str(model),) if model else ()


def foreign_log(facts: StartupFacts, model_names: Iterable[str]) -> str | None:
    """Why a log is not this server's: it names other models than ``/metrics`` does; None when it may be."""
    logged, answered = logged_names(facts), tuple(model_names)
    if not logged or not answered or set(logged) & set(answered):
        return None
    return f"the log is of a server for {', '.join(logged)}, /metrics says {', '.join(answered)}"


def other_start(facts: StartupFacts, pids: Iterable[int]) -> str | None:
    """Why a log tells of another start: none of the processes that logged runs on the GPU now; None when one does.

    ``pids``: processes of the server on its GPUs as its own container numbers them.  Only local engine and worker
    processes are compared (Ray's run elsewhere), and only when every one of them logged its pid.
    """
    running = set(pids)
    local = [w for w in facts.workers if w.name.startswith(("EngineCore", "Worker", "VllmWorker"))]
    logged = {worker.pid for worker in local if worker.pid is not None}
    if not running or not logged or len(local) != len(facts.workers) or any(w.pid is None for w in local):
        return None
    if logged & running:
        return None
    return (
        f"the log tells of another start: it was written by pid {', '.join(map(str, sorted(logged)))}, "
        f"the GPU is used by pid {', '.join(map(str, sorted(running)))}"
    )


def describe(facts: StartupFacts) -> dict[str, str]:
    """The facts of a start in words, for the live page and ``/snapshot.json``; only what was logged."""
    words: dict[str, str] = {}

    def put(name: str, value: object, text: str) -> None:
        if value is not None:
            words[name] = text

    put("version", facts.version, f"{facts.version}{f' ({facts.engine})' if facts.engine else ''}")
    put("model", facts.model, f"{facts.model}")
    put("dtype", facts.dtype, f"{facts.dtype}")
    for worker in facts.workers:
        place = f" {worker.name}" if len(facts.workers) > 1 else ""
        for name, value in (
            ("weights", worker.weights),
            ("consumed", worker.consumed),
            ("activation peak", worker.activation_peak),
            ("non-torch", worker.non_torch),
            ("KV available", worker.kv_available),
            ("KV reserved", worker.kv_reserved),
            ("CUDA graphs", worker.graphs_actual),
        ):
            if value is not None:
                words[f"{name}{place}"] = f"{value / GIB:.2f} GiB"
    put("KV tokens", facts.kv_tokens_total, f"{facts.kv_tokens_total or 0:,}")
    put("max concurrency", facts.max_concurrency, f"{facts.max_concurrency} × {facts.max_concurrency_tokens} tokens")
    put("engine start", facts.engine_seconds, f"{facts.engine_seconds} s")
    put("failure", facts.failure, facts.failure.message if facts.failure else "")
    if facts.unknown_environment:
        words["ignored environment"] = ", ".join(facts.unknown_environment)
    return words


def parse(text: str) -> StartupFacts:
    """Facts of the newest start in a whole log text."""
    return StartupLog().feed_all(text.splitlines())
