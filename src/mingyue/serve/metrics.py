"""What /metrics reports, in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mingyue import __version__

if TYPE_CHECKING:
    from mingyue.serve.catalog import Catalog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "mingyue_requests", "Requests by path and status.", ("path", "status"), registry=self.registry
        )
        self.in_progress = Gauge("mingyue_requests_in_progress", "Requests in progress.", registry=self.registry)
        self.seconds = Histogram(
            "mingyue_request_seconds", "Duration of requests.", buckets=_SECONDS, registry=self.registry
        )
        self.first_token = Histogram(
            "mingyue_first_token_seconds",
            "Time from a request to the first token of a text.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.prompt_tokens = Counter("mingyue_prompt_tokens", "Tokens of prompts.", ("model",), registry=self.registry)
        self.completion_tokens = Counter(
            "mingyue_completion_tokens", "Generated tokens.", ("model",), registry=self.registry
        )
        self.abandoned = Counter(
            "mingyue_abandoned", "Requests whose reader went away or stalled.", ("reason",), registry=self.registry
        )
        self._running = Gauge("mingyue_texts_running", "Texts in the batch.", ("model",), registry=self.registry)
        self._waiting = Gauge("mingyue_texts_waiting", "Texts waiting.", ("model",), registry=self.registry)
        self._cache_used = Gauge(
            "mingyue_cache_used_bytes", "Bytes of the cache in use.", ("model",), registry=self.registry
        )
        self._cache_limit = Gauge(
            "mingyue_cache_limit_bytes", "Largest size of the cache.", ("model",), registry=self.registry
        )
        Gauge("mingyue_version", "Version of Mingyue.", ("version",), registry=self.registry).labels(__version__).set(1)

    def text(self, catalog: Catalog) -> bytes:
        """The page, with the current numbers of each model."""
        for model in catalog.generators():
            service = model.service
            self._running.labels(model.name).set(service.running)
            self._waiting.labels(model.name).set(service.waiting)
            self._cache_used.labels(model.name).set(service.cache_bytes_used)
            self._cache_limit.labels(model.name).set(service.cache_bytes)
        return generate_latest(self.registry)
