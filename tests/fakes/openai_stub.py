"""A small OpenAI-compatible server with fixed delays and vLLM's metric names.

For load-test tools (guidellm, aiperf, locust, k6, ``vllm bench serve``) in tests and fixtures: ``/v1/models``,
``/v1/completions`` and ``/v1/chat/completions`` with and without SSE streaming, ``/health`` and ``/metrics``.
Every request waits ``ttft`` seconds, then gives one token each ``itl`` seconds; nothing is random.

Run it alone with ``python tests/fakes/openai_stub.py --port 8099``.
"""

from __future__ import annotations

import argparse
import bisect
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
E2E_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)


@dataclass
class Histogram:
    """A cumulative Prometheus histogram."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        running = 0
        yield f"# TYPE {name} histogram"
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(running)}'
        yield f"{name}_count{{{labels}}} {float(running)}"
        yield f"{name}_sum{{{labels}}} {self.total}"


class OpenAiStub:
    """The server; use as a context manager, ``url`` is its base address on loopback."""

    def __init__(
        self,
        *,
        ttft: float = 0.02,
        itl: float = 0.002,
        port: int = 0,
        model: str = "stub",
        max_tokens: int = 16,
        fail_every: int = 0,
    ) -> None:
        self.ttft = ttft
        self.itl = itl
        self.model = model
        self.default_tokens = max_tokens
        self.fail_every = fail_every
        self.asked = 0
        self.lock = threading.Lock()
        self.running = 0
        self.finished = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.started = time.time()
        self.histograms = {
            "vllm:time_to_first_token_seconds": Histogram(TTFT_BOUNDS),
            "vllm:inter_token_latency_seconds": Histogram(ITL_BOUNDS),
            "vllm:e2e_request_latency_seconds": Histogram(E2E_BOUNDS),
        }
        stub = self

        class Handler(_Handler):
            owner = stub

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def restart(self) -> None:
        """Looks like a new process from now on: counters at 0, another start time."""
        with self.lock:
            self.finished = self.prompt_tokens = self.generation_tokens = 0
            self.started = time.time()
            for histogram in self.histograms.values():
                histogram.__post_init__()
                histogram.total = 0.0

    def __enter__(self) -> OpenAiStub:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def metrics(self) -> str:
        labels = f'engine="0",model_name="{self.model}"'
        with self.lock:
            lines = [
                "# TYPE process_start_time_seconds gauge",
                f"process_start_time_seconds {self.started}",
                "# TYPE vllm:num_requests_running gauge",
                f"vllm:num_requests_running{{{labels}}} {float(self.running)}",
                "# TYPE vllm:num_requests_waiting gauge",
                f"vllm:num_requests_waiting{{{labels}}} 0.0",
                "# TYPE vllm:kv_cache_usage_perc gauge",
                f"vllm:kv_cache_usage_perc{{{labels}}} {min(1.0, self.running / 64)}",
                "# TYPE vllm:num_preemptions_total counter",
                f"vllm:num_preemptions_total{{{labels}}} 0.0",
                "# TYPE vllm:prompt_tokens_total counter",
                f"vllm:prompt_tokens_total{{{labels}}} {float(self.prompt_tokens)}",
                "# TYPE vllm:generation_tokens_total counter",
                f"vllm:generation_tokens_total{{{labels}}} {float(self.generation_tokens)}",
                "# TYPE vllm:request_success_total counter",
                f'vllm:request_success_total{{{labels},finished_reason="length"}} {float(self.finished)}',
            ]
            for name, histogram in self.histograms.items():
                lines.extend(histogram.lines(name, labels))
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    owner: OpenAiStub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Stays silent."""

    def _send(self, body: bytes, content_type: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/v1/models":
            model = {"id": self.owner.model, "object": "model", "created": 0, "owned_by": "stub"}
            self._send(json.dumps({"object": "list", "data": [model]}).encode())
        elif path == "/metrics":
            self._send(self.owner.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path in ("/health", "/ping"):
            self._send(b"")
        elif path == "/version":
            self._send(b'{"version":"0.0.stub"}')
        else:
            self._send(b'{"error":"not found"}', status=404)

    def do_POST(self) -> None:
        stub = self.owner
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self._send(b'{"error":"not found"}', status=404)
            return
        try:
            body = json.loads(raw)
        except ValueError:
            self._send(b'{"error":{"message":"not JSON"}}', status=400)
            return
        chat = self.path.endswith("chat/completions")
        text = json.dumps(body.get("messages")) if chat else str(body.get("prompt", ""))
        with stub.lock:
            stub.asked += 1
            fails = stub.fail_every > 0 and stub.asked % stub.fail_every == 0
        if fails or "FAIL" in text:
            self._send(b'{"error":{"message":"asked to fail"}}', status=500)
            return
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or stub.default_tokens
        usage = {"prompt_tokens": len(text.split()), "completion_tokens": wanted}
        usage["total_tokens"] = usage["prompt_tokens"] + wanted
        begun = time.perf_counter()
        with stub.lock:
            stub.running += 1
            stub.prompt_tokens += usage["prompt_tokens"]
        try:
            if body.get("stream"):
                self._stream(body, chat, wanted, usage, begun)
            else:
                time.sleep(stub.ttft + stub.itl * (wanted - 1))
                self._observe_first(begun)
                self._send(json.dumps(self._answer(chat, "tok " * wanted, "length", usage)).encode())
        finally:
            with stub.lock:
                stub.running -= 1
        with stub.lock:
            stub.finished += 1
            stub.generation_tokens += wanted
            stub.histograms["vllm:e2e_request_latency_seconds"].observe(time.perf_counter() - begun)

    def _observe_first(self, begun: float) -> None:
        with self.owner.lock:
            self.owner.histograms["vllm:time_to_first_token_seconds"].observe(time.perf_counter() - begun)

    def _answer(self, chat: bool, text: str, finish: str | None, usage: dict[str, int] | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {
            "id": "stub-1",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": self.owner.model,
            "choices": [choice],
            "usage": usage,
        }

    def _stream(self, body: dict[str, Any], chat: bool, wanted: int, usage: dict[str, int], begun: float) -> None:
        stub = self.owner
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        previous = begun
        for index in range(wanted):
            due = begun + stub.ttft + stub.itl * index
            time.sleep(max(0.0, due - time.perf_counter()))
            event = self._answer(chat, "tok ", "length" if index == wanted - 1 else None, None)
            event["object"] = "chat.completion.chunk" if chat else "text_completion"
            if chat:
                event["choices"][0]["delta"] = event["choices"][0].pop("message")
            self._event(json.dumps(event))
            now = time.perf_counter()
            if index == 0:
                self._observe_first(begun)
            else:
                with stub.lock:
                    stub.histograms["vllm:inter_token_latency_seconds"].observe(now - previous)
            previous = now
        if (body.get("stream_options") or {}).get("include_usage"):
            event = self._answer(chat, "", None, usage)
            event["choices"] = []
            self._event(json.dumps(event))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--ttft", type=float, default=0.02, help="seconds to the first token")
    parser.add_argument("--itl", type=float, default=0.002, help="seconds between tokens")
    parser.add_argument("--model", default="stub")
    parser.add_argument("--fail-every", type=int, default=0, help="every n-th request answers 500; 0 = none")
    options = parser.parse_args()
    stub = OpenAiStub(
        ttft=options.ttft, itl=options.itl, port=options.port, model=options.model, fail_every=options.fail_every
    )
    print(stub.url, flush=True)
    stub.http.serve_forever()


if __name__ == "__main__":
    main()
