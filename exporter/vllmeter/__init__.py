"""vllmeter: observability for vLLM instances that share a GPU."""

__version__ = "0.1.0"
