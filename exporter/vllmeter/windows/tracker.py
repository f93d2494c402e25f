"""Per-server and per-host memory of the last 15 minutes: what happens between scrapes.

Interface (what :mod:`vllmeter.sampler` calls; all times are *monotonic* seconds, ``wall`` is Unix time)::

    tracker = ServerTracker("vllm-qwen3", interval=1.0, windows=(15.0, 60.0))
    tracker.observe(reading, now, wall=wall, healthy=True, evidence=Evidence(...), settings={...})
    tracker.fail("refused", now, wall=wall, healthy=None, evidence=...)      # a finished scrape without a usable body
    tracker.pending(now, in_flight=3.4, wall=wall, evidence=...)             # a scrape still waits for its answer
    tracker.windowed(60.0)            -> snapshot.Windowed   (contention and gpu_memory_peak filled by HostTracker)
    tracker.status()                  -> state.ServerStatus  (state, reason, since, restarts, changes, last events)
    tracker.history("requests_waiting", 900.0) -> list[(monotonic, value)]   (live page)

    host = HostTracker(windows=(15.0, 60.0))
    host.add(tracker) / host.remove("vllm-qwen3")
    host.observe(now, gpus={uuid: GpuSample(used_bytes, utilization_ratio)},
                 memory={"vllm-qwen3": {uuid: bytes}}, sm={"vllm-qwen3": {uuid: ratio}})    # one NVML tick
    host.windowed("vllm-qwen3", 60.0) -> snapshot.Windowed   (the server's, completed with contention and VRAM peaks)
    host.gpu_windowed(uuid, 60.0)     -> GpuWindowed(used_peak, utilization_peak)

``observe``/``fail``/``pending`` are calls of the sampling thread of that server; ``windowed``/``status`` only read, are
cached per tick, and give every reader of one tick the identical object.  Nothing here does I/O or reads a clock.
"""

from __future__ import annotations
