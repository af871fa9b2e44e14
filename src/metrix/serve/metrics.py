"""What the service counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one service; each service has its own registry."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter("metrix_requests", "Requests answered", ["method", "route", "status"], registry=own)
        self.seconds = Histogram(
            "metrix_request_seconds", "From a request to its answer", ["route"], buckets=_SECONDS, registry=own
        )
        self.batch_size = Histogram(
            "metrix_batch_size", "Queries per batch", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=own
        )
        self.decoding = Histogram(
            "metrix_decoding_seconds", "Decoding and preprocessing of an image", buckets=_SECONDS, registry=own
        )
        self.waiting = Histogram(
            "metrix_queue_wait_seconds",
            "From a decoded query to the start of its batch",
            buckets=_SECONDS,
            registry=own,
        )
        self.inference = Histogram(
            "metrix_inference_seconds", "Network, per batch of images", buckets=_SECONDS, registry=own
        )
        self.searching = Histogram(
            "metrix_search_seconds", "Search of the index, per batch", buckets=_SECONDS, registry=own
        )
        self.pending = Gauge("metrix_pending_queries", "Queries that wait or are worked on", registry=own)
        self.refused = Counter("metrix_refused_queries", "Queries refused because the queue was full", registry=own)
        self.items = Gauge("metrix_index_items", "Items in the index", registry=own)
        self.generation = Gauge("metrix_index_generation", "Generation of the index", registry=own)
        self.reloads = Counter("metrix_index_reloads", "Times the index was replaced", ["outcome"], registry=own)

    def render(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
