"""Parsed bodies of a vLLM server -> readings under our names, whatever version and spelling the server has.

What a body shape means is worked out once (:class:`_Plan`) and kept as long as the parser hands out the same shape;
after that a reading is a few picks from the list of values and the checks that need values.

Absent is not zero.  These families are left out although the body has samples for them, each with a note:

* names for which a newer name with the same content is there too (both together would double rates);
* names whose condition does not hold (:data:`vllmeter.upstream.vllm.Needs`);
* histograms that contradict themselves: buckets that fall, a total other than the +Inf bucket, twice the same bound,
  different bounds in series that belong together, a negative sum (vLLM can record negative intervals, #49135);
* counters and gauges that are negative or not finite, and ratios above 1;
* prefill and decode times of 0.6.4, which swaps them, when the version is not known for sure.

A server counts as pooling (embedding, reranking, classifying) when requests have finished and no token was ever
generated, or when its KV cache has a single block, the dummy of encoder-only models.  What belongs to generation is
absent then.  TTFT stays: there it is the time to the pooled result, as vLLM records it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from operator import itemgetter, le
from typing import Final

from vllmeter.catalogue import BY_NAME as FAMILIES
from vllmeter.exposition.model import Exposition, Series, Shape
from vllmeter.snapshot import HistogramRef, Labels, Layout, ScalarRef, ServerReading
from vllmeter.upstream.vllm import BY_NAME, KNOWN_STEMS, PLAIN_BY_NAME, PREFIXES, Row, parse_version, split_prefix

_HISTOGRAM_SUFFIXES: Final = ("_bucket", "_sum", "_count")

# `_created` of these says when the server's counters began.  Label children of other families are made on first use
# (a new HTTP handler, a new tool parser), so their times say nothing.
_BIRTH: Final = frozenset(
    f"{name}_created" for name in ("prompt_tokens", "generation_tokens", "time_to_first_token_seconds")
)

_LARGEST_RATIO: Final = 1.0 + 1e-6
"""Ratios are computed in floating point by vLLM; anything further above 1 is no ratio."""

_MAX_VARIANTS: Final = 16

_GENERATES: Final = "this server generates no tokens"
_POOLING_TTFT: Final = "ttft_seconds is the time to the pooled result: this server generates no tokens"
_ESTIMATES_OFF: Final = "estimated_*: all 0, so --enable-mfu-metrics is off or nothing was computed yet"
_NO_ENGINE: Final = (
    "no engine metrics in the body: --disable-log-stats, a lost multiprocess directory, or vLLM 0.5.2/0.5.4"
)
_NO_SAMPLES: Final = "engine metrics are declared but have no sample yet: V0 creates them with the first request"


@dataclass(frozen=True, slots=True)
class _Scalar:
    ref: ScalarRef
    indices: tuple[int, ...]
    largest: bool
    """merge several indices by their largest, else by their sum"""
    ratio: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """One upstream histogram series: indices of its buckets in the order of the bounds, of its sum and its count."""

    buckets: tuple[int, ...]
    total: int
    count: int


@dataclass(frozen=True, slots=True)
class _Histogram:
    ref: HistogramRef
    parts: tuple[_Part, ...]


@dataclass(slots=True)
class _Plan:
    """What one body shape means.  ``layout`` holds all that can be said without values."""

    shape: Shape
    version: str | None
    scalars: list[_Scalar] = field(default_factory=list)
    histograms: list[_Histogram] = field(default_factory=list)
    layout: Layout = field(default_factory=lambda: Layout((), ()))
    needs: dict[str, frozenset[str]] = field(default_factory=dict)
    """family -> needs that only values can tell (generates, estimates)"""
    encoder_only: bool = False
    finished: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()
    estimates: tuple[int, ...] = ()
    start: int | None = None
    births: tuple[int, ...] = ()
    variants: dict[tuple[bool, bool, frozenset[int], frozenset[int]], _Variant] = field(default_factory=dict)


Pick = Callable[[Sequence[float]], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class _Variant:
    """A plan under what the values say (pooling, estimates off, broken series left out)."""

    layout: Layout
    scalars: tuple[_Scalar, ...]
    scalar_numbers: tuple[int, ...]
    """positions of ``scalars`` in the plan's list"""
    pick: Pick
    """first index of each scalar"""
    merged: tuple[int, ...]
    """positions in ``scalars`` that have several indices"""
    ratios: Pick
    """picks the ratios out of the scalar values"""
    histograms: tuple[_Histogram, ...]
    histogram_numbers: tuple[int, ...]
    buckets: tuple[Pick | None, ...]
    """None for histograms made of several series"""
    sums: Pick
    counts: Pick


class Normaliser:
    """Normalises the bodies of one server.  Not for use by several threads at once."""

    __slots__ = ("_plan",)

    def __init__(self) -> None:
        self._plan: _Plan | None = None

    def normalise(self, exposition: Exposition, version: str | None = None) -> ServerReading:
        """Make the reading of one body.

        Args:
            exposition: the parsed body; plans are kept by the identity of its shape.
            version: the server's version where known (``/version``); it decides about 0.6.4's swapped histograms
                and about units that changed under one name.
        """
        plan = self._plan
        if plan is None or plan.shape is not exposition.shape or plan.version != version:
            plan = self._plan = _make_plan(exposition.shape, version)
        return _read(plan, exposition.values)


# --------------------------------------------------------------------------- values


def _read(plan: _Plan, raw: Sequence[float]) -> ServerReading:
    pooling = plan.encoder_only or _is_pooling(plan, raw)
    estimates_off = bool(plan.estimates) and _total(raw, plan.estimates) == 0
    no_scalars: frozenset[int] = frozenset()
    no_histograms: frozenset[int] = frozenset()
    variant = _variant(plan, pooling, estimates_off, no_scalars, no_histograms)
    values = _scalars(variant, raw)
    bad_scalars = _bad_scalars(variant, values)
    buckets, sums, bad_histograms = _histograms(variant, raw)
    if bad_scalars or bad_histograms:
        no_scalars = frozenset(variant.scalar_numbers[i] for i in bad_scalars)
        no_histograms = frozenset(variant.histogram_numbers[i] for i in bad_histograms)
        variant = _variant(plan, pooling, estimates_off, no_scalars, no_histograms)
        values = _scalars(variant, raw)
        buckets, sums, _ = _histograms(variant, raw)
    start = raw[plan.start] if plan.start is not None else None
    births = [raw[i] for i in plan.births if 0 < raw[i] < inf]
    return ServerReading(
        layout=variant.layout,
        values=values,
        buckets=buckets,
        sums=sums,
        process_start=start if start is not None and 0 < start < inf else None,
        created=max(births) if births else None,
    )


def _total(raw: Sequence[float], indices: tuple[int, ...]) -> float:
    return sum([raw[i] for i in indices])


def _is_pooling(plan: _Plan, raw: Sequence[float]) -> bool:
    # Only "stop" and "length" count as finished: an aborted or failed request may well have no token yet.
    return bool(plan.generated) and _total(raw, plan.generated) == 0 and _total(raw, plan.finished) > 0


def _scalars(variant: _Variant, raw: Sequence[float]) -> Sequence[float]:
    values = variant.pick(raw)
    if not variant.merged:
        return values
    out = list(values)
    for position in variant.merged:
        scalar = variant.scalars[position]
        parts = [raw[i] for i in scalar.indices]
        total = sum(parts)
        # A NaN or infinity in one part must not vanish behind a maximum.
        out[position] = max(parts) if scalar.largest and total - total == 0 else total
        if min(parts) < 0:
            out[position] = -inf
    return tuple(out)


def _bad_scalars(variant: _Variant, values: Sequence[float]) -> list[int]:
    if not values:
        return []
    total = sum(values)
    ratios = variant.ratios(values)
    if total - total == 0 and min(values) >= 0 and (not ratios or max(ratios) <= _LARGEST_RATIO):
        return []
    return [
        position
        for position, (scalar, value) in enumerate(zip(variant.scalars, values, strict=True))
        if not 0 <= value <= (_LARGEST_RATIO if scalar.ratio else inf) or value == inf
    ]


def _histograms(
    variant: _Variant, raw: Sequence[float]
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...], list[int]]:
    sums = variant.sums(raw)
    counts = variant.counts(raw)
    out: list[tuple[float, ...]] = []
    bad: list[int] = []
    for position, pick in enumerate(variant.buckets):
        if pick is not None:
            buckets = pick(raw)
            if (
                buckets[-1] != counts[position]
                or not buckets[0] >= 0
                or not 0 <= sums[position] < inf
                or not all(map(le, buckets, buckets[1:]))
                or not buckets[-1] < inf
            ):
                bad.append(position)
        else:
            added = _add_parts(variant.histograms[position], raw)
            if added is None:
                bad.append(position)
                buckets = ()
            else:
                buckets, total = added
                sums = (*sums[:position], total, *sums[position + 1 :])
        out.append(buckets)
    return tuple(out), sums, bad


def _add_parts(histogram: _Histogram, raw: Sequence[float]) -> tuple[tuple[float, ...], float] | None:
    """Sum the series of one histogram; None when one of them contradicts itself."""
    columns = []
    total = 0.0
    for part in histogram.parts:
        buckets = [raw[i] for i in part.buckets]
        if not all(map(le, buckets, buckets[1:])) or not buckets[0] >= 0 or not buckets[-1] < inf:
            return None
        if buckets[-1] != raw[part.count] or not 0 <= raw[part.total] < inf:
            return None
        columns.append(buckets)
        total += raw[part.total]
    return tuple(map(sum, zip(*columns, strict=True))), total


def _variant(
    plan: _Plan, pooling: bool, estimates_off: bool, no_scalars: frozenset[int], no_histograms: frozenset[int]
) -> _Variant:
    key = (pooling, estimates_off, no_scalars, no_histograms)
    found = plan.variants.get(key)
    if found is not None:
        return found
    notes = list(plan.layout.notes)
    absent: dict[str, str] = {}
    for family, needs in plan.needs.items():
        if "generates" in needs and pooling:
            absent[family] = f"{family}: {_GENERATES}"
        elif "estimates" in needs and estimates_off:
            absent[family] = _ESTIMATES_OFF
    notes.extend(dict.fromkeys(absent.values()))
    if pooling and any(histogram.ref.family == "ttft_seconds" for histogram in plan.histograms):
        notes.append(_POOLING_TTFT)
    scalars = [(i, s) for i, s in enumerate(plan.scalars) if s.ref.family not in absent and i not in no_scalars]
    histograms = [
        (i, h) for i, h in enumerate(plan.histograms) if h.ref.family not in absent and i not in no_histograms
    ]
    notes.extend(
        f"{_title(plan.scalars[i].ref)}: the value of {plan.scalars[i].ref.source} is impossible"
        f" ({'not in 0-1' if plan.scalars[i].ratio else 'negative or not finite'})"
        for i in sorted(no_scalars)
    )
    notes.extend(
        f"{_title(plan.histograms[i].ref)}: {plan.histograms[i].ref.source} contradicts itself (buckets, count or sum)"
        for i in sorted(no_histograms)
    )
    refs = tuple([s.ref for _, s in scalars])
    histogram_refs = tuple([h.ref for _, h in histograms])
    kept = {ref.family for ref in refs} | {ref.family for ref in histogram_refs}
    layout = replace(
        plan.layout,
        scalars=refs,
        histograms=histogram_refs,
        sources={family: source for family, source in plan.layout.sources.items() if family in kept},
        notes=tuple(notes),
    )
    variant = _Variant(
        layout=layout,
        scalars=tuple([s for _, s in scalars]),
        scalar_numbers=tuple([i for i, _ in scalars]),
        pick=_picker([s.indices[0] for _, s in scalars]),
        merged=tuple([i for i, (_, s) in enumerate(scalars) if len(s.indices) > 1]),
        ratios=_picker([i for i, (_, s) in enumerate(scalars) if s.ratio]),
        histograms=tuple([h for _, h in histograms]),
        histogram_numbers=tuple([i for i, _ in histograms]),
        buckets=tuple([_picker(h.parts[0].buckets) if len(h.parts) == 1 else None for _, h in histograms]),
        sums=_picker([h.parts[0].total for _, h in histograms]),
        counts=_picker([h.parts[0].count for _, h in histograms]),
    )
    if len(plan.variants) >= _MAX_VARIANTS:
        plan.variants.clear()
    plan.variants[key] = variant
    return variant


def _title(ref: ScalarRef | HistogramRef) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in ref.labels)
    return f"{ref.family}{{{labels}}}" if labels else ref.family


def _picker(indices: Sequence[int]) -> Pick:
    """A function that picks these positions of a sequence as a tuple (``itemgetter`` gives no tuple for one)."""
    if not indices:
        return lambda _: ()
    if len(indices) == 1:
        only = indices[0]
        return lambda values: (values[only],)
    return itemgetter(*indices)


# --------------------------------------------------------------------------- plans


@dataclass(slots=True)
class _Sample:
    """One series of a known engine or HTTP name: a counter or gauge line, or all lines of one histogram."""

    index: int
    labels: dict[str, str]
    """without ``le``"""
    kind: str
    buckets: list[tuple[str, int]] = field(default_factory=list)
    """``le`` and index of each bucket line"""
    total: int | None = None
    count: int | None = None


@dataclass(slots=True)
class _Body:
    """Samples of a body sorted by the table's names."""

    samples: dict[tuple[str, str], list[_Sample]] = field(default_factory=dict)
    """(prefix, name without prefix) -> samples"""
    names: set[str] = field(default_factory=set)
    """names without prefix that have samples or declarations and that the table knows"""
    unmapped: set[str] = field(default_factory=set)
    start: int | None = None
    births: list[int] = field(default_factory=list)
    python: bool = False
    """``python_info`` or ``process_*`` is there: metrics are not collected from several processes"""


@dataclass(frozen=True, slots=True)
class _Name:
    """What a sample name is, by itself.

    ``what``: ``row`` (``base`` is in the table), ``bare`` (a counter's name without its suffix), ``birth``, ``known``
    (no row takes it and it is not unknown either), ``unknown``, ``plain`` (a row without prefix), ``process``,
    ``foreign``.
    """

    what: str
    prefix: str = ""
    base: str = ""
    suffix: str = ""


@lru_cache(maxsize=4096)
def _classify(sample_name: str) -> _Name:
    split = split_prefix(sample_name)
    if split is None:
        if sample_name in ("process_start_time_seconds", "python_info"):
            return _Name("process", base=sample_name)
        rows = PLAIN_BY_NAME.get(sample_name)
        return _Name("plain" if rows and rows[0].family is not None else "foreign", base=sample_name)
    prefix, name = split
    found = _known(name)
    if found is not None:
        return _Name("row", prefix, *found)
    if name + "_total" in BY_NAME and BY_NAME[name + "_total"][0].kind == "counter":
        return _Name("bare", prefix, name + "_total")
    if name in _BIRTH:
        return _Name("birth", prefix, name)
    return _Name("known" if _is_known_family(name) else "unknown", prefix, name)


def _known(name: str) -> tuple[str, str] | None:
    """Table name and histogram suffix of a sample name without prefix; None when no row knows it."""
    if name in BY_NAME:
        # `iteration_tokens_total` alone is the name of a histogram: its samples have suffixes.
        return (name, "") if BY_NAME[name][0].kind != "histogram" else None
    for suffix in _HISTOGRAM_SUFFIXES:
        if name.endswith(suffix):
            base = name[: -len(suffix)]
            if base in BY_NAME and BY_NAME[base][0].kind == "histogram":
                return base, suffix
    return None


def _is_known_family(name: str) -> bool:
    """Whether a declared family (or a ``_created`` sample) without prefix belongs to a row, in either format."""
    base = name.removesuffix("_created")
    return (
        base in BY_NAME
        or base + "_total" in BY_NAME
        or base + "_info" in BY_NAME
        or _known(name) is not None
        or any(name.startswith(stem) for stem in KNOWN_STEMS)
    )


def _sort(shape: Shape) -> _Body:
    body = _Body()
    histograms: dict[tuple[str, str, Labels], _Sample] = {}
    for index, series in enumerate(shape.series):
        name = _classify(series.name)
        what = name.what
        if what in ("row", "plain") or (what == "bare" and not _has_full_name(shape, name)):
            _take(body, histograms, index, series, name, shape)
        elif what == "process":
            body.python = True
            if name.base == "process_start_time_seconds":
                body.start = index
        elif what == "birth":
            body.births.append(index)
        elif what == "unknown":
            body.unmapped.add(_unmapped_family(shape, series, name.prefix, name.base))
    for family in shape.families:
        split = split_prefix(family)
        if split is None:
            continue
        if _is_known_family(split[1]):
            body.names.add(split[1])
        else:
            body.unmapped.add(_fold_created(shape, family))
    return body


def _take(
    body: _Body,
    histograms: dict[tuple[str, str, Labels], _Sample],
    index: int,
    series: Series,
    name: _Name,
    shape: Shape,
) -> None:
    """Put a series of a known name where the rows find it."""
    prefix, base = name.prefix, name.base
    if not name.suffix:
        sample = _Sample(index, dict(series.labels), _declared_kind(shape, series))
        body.samples.setdefault((prefix, base), []).append(sample)
        if prefix:
            body.names.add(base)
        return
    key = (prefix, base, tuple([pair for pair in series.labels if pair[0] != "le"]))
    found = histograms.get(key)
    if found is None:
        found = histograms[key] = _Sample(index, dict(key[2]), _declared_kind(shape, series))
        body.samples.setdefault((prefix, base), []).append(found)
        body.names.add(base)
    if name.suffix == "_sum":
        found.total = index
    elif name.suffix == "_count":
        found.count = index
    else:
        found.buckets.append((dict(series.labels).get("le", ""), index))


def _has_full_name(shape: Shape, name: _Name) -> bool:
    """Some exporters between vLLM and us drop the suffix of counters; with it wins if both are there."""
    full = name.prefix + name.base
    return any(series.name == full for series in shape.series)


def _scope(name: str) -> str:
    """Who makes a known name, as a sample or as a declared family of either format has it."""
    base = name.removesuffix("_created")
    for candidate in (base, base + "_total", base + "_info"):
        if candidate in BY_NAME:
            return BY_NAME[candidate][0].scope
    return "engine"


def _declared_kind(shape: Shape, series: Series) -> str:
    """Type of a sample; when its own name has none, that of the same family under another spelling of the prefix."""
    if series.kind != "unknown":
        return series.kind
    split = split_prefix(series.name)
    if split is None:
        return "unknown"
    name = split[1]
    stems = [name, *[name.removesuffix(suffix) for suffix in ("_bucket", "_sum", "_count", "_total")]]
    for prefix in PREFIXES:
        for stem in stems:
            meta = shape.families.get(prefix + stem)
            if meta is not None:
                return meta.kind
    return "unknown"


def _unmapped_family(shape: Shape, series: Series, prefix: str, name: str) -> str:
    """The family that an unknown sample belongs to, in the spelling of the body."""
    if series.family in shape.families:
        return _fold_created(shape, series.family)
    for suffix in ("_bucket", "_sum", "_count", "_total", "_created"):
        stem = name.removesuffix(suffix)
        if stem != name:
            for other in PREFIXES:
                if other + stem in shape.families:
                    return other + stem
    return prefix + name


def _fold_created(shape: Shape, family: str) -> str:
    """Text format declares ``x_created`` as a gauge of its own: it belongs to ``x`` or ``x_total``."""
    stem = family.removesuffix("_created")
    if stem != family:
        for owner in (stem, stem + "_total"):
            if owner in shape.families:
                return owner
    return family


@dataclass(slots=True)
class _Facts:
    """What a body says about its server without values."""

    cache_config: dict[str, dict[str, str]]
    v1: bool
    tokens: bool | None
    """prefix counters of the old name count tokens (None: not known)"""
    several_api_servers: bool
    no_kv_cache: bool
    no_prefix_caching: bool


def _make_plan(shape: Shape, version: str | None) -> _Plan:
    body = _sort(shape)
    notes: list[str] = []
    facts = _facts(shape, body, version, notes)
    plan = _Plan(shape, version, start=body.start, births=tuple(body.births), encoder_only=facts.no_kv_cache)
    sources: dict[str, str] = {}
    for family, rows in _chains().items():
        chosen = _choose(family, rows, body, facts, version, notes)
        if chosen is None:
            continue
        row, prefix = chosen
        samples = body.samples[prefix, row.name]
        if row.kind == "histogram":
            added = _add_histograms(plan, family, row, prefix, samples, notes)
        else:
            added = _add_scalars(plan, family, row, prefix, samples, notes)
        if added:
            sources[family] = prefix + row.name
            late = frozenset(need for need in row.needs if need in ("generates", "estimates"))
            if late:
                plan.needs[family] = late
    plan.finished = _indices(plan, "requests_finished_total", reason=("stop", "length"))
    plan.generated = _indices(plan, "generation_tokens_total")
    plan.estimates = tuple(
        i for family in plan.needs if "estimates" in plan.needs[family] for i in _indices(plan, family)
    )
    engine_metrics = bool(body.unmapped) or any(_scope(name) == "engine" for name in body.names)
    if not engine_metrics:
        notes.insert(0, _NO_ENGINE)
    elif not plan.scalars and not plan.histograms:
        notes.insert(0, _NO_SAMPLES)
    all_labels = [scalar.ref.labels for scalar in plan.scalars] + [one.ref.labels for one in plan.histograms]
    engines = {value for labels in all_labels for name, value in labels if name == "engine"}
    plan.layout = Layout(
        scalars=(),
        histograms=(),
        model_names=_model_names(body),
        engines=tuple(sorted(engines, key=lambda engine: (not engine.isdecimal(), len(engine), engine))),
        cache_config=facts.cache_config,
        unmapped=tuple(sorted(body.unmapped)),
        engine_metrics=engine_metrics,
        sources=sources,
        notes=tuple(dict.fromkeys(notes)),
    )
    return plan


_CHAINS: dict[str, tuple[Row, ...]] = {}


def _chains() -> Mapping[str, tuple[Row, ...]]:
    """Rows of each family in the order of the catalogue, the preferred name first."""
    if not _CHAINS:
        rows: dict[str, list[Row]] = {}
        for table in (BY_NAME, PLAIN_BY_NAME):
            for group in table.values():
                for row in group:
                    if row.family is not None:
                        rows.setdefault(row.family, []).append(row)
        for family in FAMILIES:
            if family in rows:
                _CHAINS[family] = tuple(sorted(rows[family], key=lambda row: row.rank))
    return _CHAINS


def _release(version: str | None) -> tuple[int, int, int] | None:
    """A version that says something about the code: builds from a shallow clone call themselves 0.1.dev1."""
    release = parse_version(version) if version else None
    return release if release is not None and release >= (0, 4, 0) else None


def _facts(shape: Shape, body: _Body, version: str | None, notes: list[str]) -> _Facts:
    config = _cache_config(body, notes)
    known_version = _release(version)
    v1 = any("engine" in sample.labels for samples in body.samples.values() for sample in samples)
    tokens: bool | None = None
    if known_version is not None:
        tokens = known_version >= (0, 9, 0)
    elif config:
        # The engine label of cache_config_info came with 0.9.0, as the change of units did (vllm-metrics, section 5).
        tokens = any(engine for engine in config)
    engine_prefixes = {prefix for prefix, _ in body.samples if prefix}
    return _Facts(
        cache_config=config,
        v1=v1,
        tokens=tokens,
        # Metrics collected from several processes have no process_* and no python_*; neither have the Rust frontend
        # (always OpenMetrics) and Ray.
        several_api_servers=v1 and not body.python and not shape.openmetrics and "ray_vllm_" not in engine_prefixes,
        no_kv_cache=bool(config) and all(c.get("num_gpu_blocks") in ("0", "1") for c in config.values()),
        no_prefix_caching=bool(config) and all(c.get("enable_prefix_caching") == "False" for c in config.values()),
    )


def _cache_config(body: _Body, notes: list[str]) -> dict[str, dict[str, str]]:
    out: dict[str, dict[str, str]] = {}
    for prefix in PREFIXES:
        samples = body.samples.get((prefix, "cache_config_info"), [])
        for sample in samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("engine", "pid")}
            engine = sample.labels.get("engine", "")
            earlier = out.setdefault(engine, labels)
            differing = sorted(name for name in labels if name in earlier and labels[name] != earlier[name])
            if differing:
                notes.append(f"cache_config_info says two things about {', '.join(differing)}: not used")
                for name in differing:
                    del earlier[name]
        if samples:
            break
    return out


def _model_names(body: _Body) -> tuple[str, ...]:
    names = {
        sample.labels["model_name"]: None
        for samples in body.samples.values()
        for sample in samples
        if "model_name" in sample.labels
    }
    return tuple(names)


def _choose(
    family: str, rows: tuple[Row, ...], body: _Body, facts: _Facts, version: str | None, notes: list[str]
) -> tuple[Row, str] | None:
    """The row and spelling that a family is taken from; None when the body has none or it may not be used."""
    if family in ("prefill_time_seconds", "decode_time_seconds") and any(row.name in body.names for row in rows):
        swapped = _swapped(body, facts, version)
        if swapped is None:
            notes.append(
                f"{family}: vLLM 0.6.4 swaps prefill and decode times, and the version of this server is not known"
            )
            return None
        if swapped:
            notes.append(f"{family}: taken from the other name, vLLM 0.6.4 swaps prefill and decode times")
            other = "decode_time_seconds" if family == "prefill_time_seconds" else "prefill_time_seconds"
            rows = tuple(replace(row, needs=own.needs) for row, own in zip(_chains()[other], rows, strict=True))
    chosen: tuple[Row, str] | None = None
    for row in rows:
        for prefix in PREFIXES if row.prefixed else ("",):
            if (prefix, row.name) not in body.samples:
                continue
            if row.where and not any(_fits(row, sample) for sample in body.samples[prefix, row.name]):
                continue
            if chosen is not None:
                notes.append(f"{prefix}{row.name}: not used, {chosen[1]}{chosen[0].name} says the same")
                continue
            kinds = {sample.kind for sample in body.samples[prefix, row.name]}
            if not kinds <= _accepted_kinds(row, prefix):
                notes.append(f"{family}: {prefix}{row.name} is declared as {', '.join(sorted(kinds))}, not {row.kind}")
                continue
            chosen = (row, prefix)
    if chosen is None:
        return None
    refused = _refused(chosen[0], facts)
    if refused is not None:
        notes.append(f"{family}: {refused}")
        return None
    return chosen


def _accepted_kinds(row: Row, prefix: str) -> frozenset[str]:
    kinds = {row.kind, "unknown"}
    if row.kind in ("gauge", "info"):
        kinds |= {"gauge", "info", "stateset"}
    if row.kind == "counter" and prefix == "ray_vllm_":
        kinds.add("gauge")  # older Ray exports counters as gauges
    return frozenset(kinds)


def _swapped(body: _Body, facts: _Facts, version: str | None) -> bool | None:
    """Whether prefill and decode times are swapped (only 0.6.4); None when that cannot be told."""
    known = _release(version)
    if known is not None:
        # 0.6.5 lies between the release that was read with the fault and the one without.
        return None if known == (0, 6, 5) else known == (0, 6, 4)
    # 0.7.0 dropped the throughput averages; the histograms came with 0.6.4.
    if not facts.v1 and "avg_prompt_throughput_toks_per_s" in body.names:
        return None
    return False


def _refused(row: Row, facts: _Facts) -> str | None:
    for need in row.needs:
        if need == "kv_cache" and facts.no_kv_cache:
            return "the engine has no KV cache (one dummy block)"
        if need == "prefix_caching" and facts.no_prefix_caching:
            return "prefix caching is off"
        if need == "token_units" and not facts.tokens:
            return f"{row.name} counts blocks before vLLM 0.9.0, not tokens"
        if need == "one_api_server" and facts.several_api_servers:
            return "with several API servers each counts its share of a step as a step"
    return None


def _fits(row: Row, sample: _Sample) -> bool:
    return all(sample.labels.get(name) == value for name, value in row.where.items())


def _groups(family: str, row: Row, samples: list[_Sample]) -> dict[Labels, list[_Sample]]:
    """Samples by the labels that their family has here, in catalogue order."""
    wanted = [
        (name, row.rename.get(name, name), "0" if name == "engine" else "")
        for name in FAMILIES[family].labels
        if name != "server"
    ]
    groups: dict[Labels, list[_Sample]] = {}
    for sample in samples:
        if row.where and not _fits(row, sample):
            continue
        labels = sample.labels
        key = tuple([(ours, labels.get(theirs, default)) for ours, theirs, default in wanted])
        groups.setdefault(key, []).append(sample)
    return groups


def _only_pid_differs(samples: list[_Sample]) -> bool:
    rest = [{name: value for name, value in sample.labels.items() if name != "pid"} for sample in samples]
    return all("pid" in sample.labels for sample in samples) and all(labels == rest[0] for labels in rest)


def _add_scalars(plan: _Plan, family: str, row: Row, prefix: str, samples: list[_Sample], notes: list[str]) -> bool:
    groups = _groups(family, row, samples)
    for labels, group in groups.items():
        by_pid = len(group) > 1 and _only_pid_differs(group)
        largest = FAMILIES[family].kind != "counter" and (row.merge == "max" or by_pid)
        if len(group) > 1:
            how = "the largest" if largest else "the sum"
            why = "per process (pid)" if by_pid else "with labels that are not kept"
            notes.append(f"{family}: {how} of {len(group)} series of {prefix}{row.name} {why}")
        plan.scalars.append(
            _Scalar(
                ScalarRef(family, labels, prefix + row.name),
                tuple(sample.index for sample in group),
                largest,
                family.endswith("_ratio"),
            )
        )
    return bool(groups)


def _add_histograms(plan: _Plan, family: str, row: Row, prefix: str, samples: list[_Sample], notes: list[str]) -> bool:
    added = False
    for labels, group in _groups(family, row, samples).items():
        source = prefix + row.name
        built = [_part(sample) for sample in group]
        first = built[0]
        if any(isinstance(one, str) for one in built) or isinstance(first, str):
            reasons = sorted({one for one in built if isinstance(one, str)})
            notes.append(f"{family}: {source} {'; '.join(reasons)}")
            continue
        good = [one for one in built if not isinstance(one, str)]
        if any(bounds != first[0] for bounds, _ in good):
            notes.append(f"{family}: series of {source} that belong together have different bounds")
            continue
        if len(good) > 1:
            notes.append(f"{family}: the sum of {len(good)} series of {source} with labels that are not kept")
        ref = HistogramRef(family, labels, source, first[0])
        plan.histograms.append(_Histogram(ref, tuple(part for _, part in good)))
        added = True
    return added


def _part(sample: _Sample) -> tuple[tuple[float, ...], _Part] | str:
    """Finite bounds and indices of one histogram series, or what is wrong with it."""
    try:
        buckets = [(float(bound), index) for bound, index in sample.buckets]
    except ValueError:
        return "has a bucket without a bound"
    if sample.total is None or sample.count is None:
        return "has no sum or no count"
    buckets.sort()
    bounds = tuple([bound for bound, _ in buckets])
    if not bounds or bounds[-1] != inf or any(bound != bound for bound in bounds):  # noqa: PLR0124 - NaN
        return "has no +Inf bucket"
    if len(set(bounds)) != len(bounds):
        return "has two buckets for one bound"
    return bounds[:-1], _Part(tuple([index for _, index in buckets]), sample.total, sample.count)


def _indices(plan: _Plan, family: str, **labels: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(
        index
        for scalar in plan.scalars
        if scalar.ref.family == family
        and all(dict(scalar.ref.labels).get(name) in wanted for name, wanted in labels.items())
        for index in scalar.indices
    )
