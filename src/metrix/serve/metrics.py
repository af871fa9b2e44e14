"""What the service counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service, in a registry of its own, with memory and open files of the process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        ProcessCollector(registry=own)

        def seconds(name: str, about: str, *labels: str) -> Histogram:
            return Histogram(f"metrix_{name}_seconds", about, labels, buckets=_SECONDS, registry=own)

        self.requests = Counter("metrix_requests", "Requests answered", ["method", "route", "status"], registry=own)
        self.seconds = seconds("request", "From a request to its answer", "route")
        self.batch_size = Histogram("metrix_batch_size", "Queries per batch", buckets=_SIZES, registry=own)
        self.decoding = seconds("decoding", "Decoding and preprocessing of an image")
        self.waiting = seconds("queue_wait", "From a decoded query to the start of its batch")
        self.inference = seconds("inference", "Network, per batch of images")
        self.searching = seconds("search", "Search of the index, for queries with the same options")
        self.pending = Gauge("metrix_pending_queries", "Queries that wait or are worked on", registry=own)
        self.uploads = Gauge("metrix_pending_upload_bytes", "Uploads that wait or are worked on", registry=own)
        self.refused = Counter("metrix_refused_queries", "Queries refused because the queue was full", registry=own)
        self.items = Gauge("metrix_index_items", "Items in the index", registry=own)
        self.classes = Gauge(
            "metrix_index_classes", "Classes that /classify knows; 0 until they are read", registry=own
        )
        self.generation = Gauge("metrix_index_generation", "Generation of the index", registry=own)
        self.reloads = Counter("metrix_index_reloads", "Times the index was replaced", ["outcome"], registry=own)
        self.behind = Gauge("metrix_index_behind", "1 while a new state of the index cannot be opened", registry=own)
        self.missing = Gauge("metrix_images_missing", "Images of the index that are not where it says", registry=own)

    def render(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
