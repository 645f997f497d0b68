"""Metrics of a frontend. Labels are few and bounded; see `shared.metrics`."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from frontend_service.services.pipeline import Timing
from frontend_service.workers.fleet import Fleet
from shared.metrics import SECONDS, StateCollector, gauge_of, gauges_of, refusals_of
from shared.server.admission import Admission


class FrontendMetrics:
    """Metrics of a frontend: times, requests and bytes in progress, refusals, and its workers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, of: str) -> Histogram:
            return Histogram(f"selvage_{name}_seconds", of, registry=registry, buckets=SECONDS)

        self._tokenize = seconds("tokenize", "Tokenising a request.")
        self._transfer = seconds("transfer", "The way to the worker and back, without its queue and compute.")
        self._postprocess = seconds("postprocess", "From the worker's answer to the reply.")
        labels = ("route", "status")
        self._http = Counter("selvage_http_requests", "Requests over HTTP that ended.", labels, registry=registry)
        self._http_seconds = Histogram(
            "selvage_http_request_seconds",
            "From a request's head to its reply.",
            labels[:1],
            registry=registry,
            buckets=SECONDS,
        )
        self._http_of: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._registry = registry

    def times(self, times: Timing) -> None:
        """Records the times of a request that was answered."""
        self._tokenize.observe(times.tokenize)
        self._transfer.observe(times.transfer)
        self._postprocess.observe(times.postprocess)

    def http(self, route: str, status: int, seconds: float) -> None:
        """Counts a request over HTTP; `route`: the method and path of an existing route."""
        metrics = self._http_of.get((route, status))
        if metrics is None:
            metrics = self._http.labels(route, str(status)), self._http_seconds.labels(route)
            self._http_of[route, status] = metrics
        metrics[0].inc()
        metrics[1].observe(seconds)

    def read(self, admission: Admission, fleet: Fleet) -> None:
        """Adds the state of admission and of the workers to the page, whose thread reads it."""

        def metrics() -> Iterator[Metric]:
            yield gauge_of("selvage_requests_in_flight", "Requests that are being answered.", admission.requests)
            of = "Bytes of requests, of their results, and of replies that callers have not read."
            yield gauge_of("selvage_bytes_in_flight", of, admission.size)
            yield refusals_of({**admission.refused, **fleet.refused})
            yield gauges_of("selvage_workers_serving", "Workers that take jobs.", "model", fleet.workers)
            of = "Workers of these that get no jobs for a while: others answer what they fail."
            yield gauges_of("selvage_workers_set_aside", of, "model", fleet.aside)
            wait = "Seconds, at most, until the turn of a small new job."
            yield gauges_of("selvage_worker_wait_seconds", wait, "model", fleet.waits)
            yield _fingerprints(fleet.fingerprints)

        self._registry.register(StateCollector(metrics))


def _fingerprints(fingerprints: Mapping[str, str]) -> Metric:
    """The usual form of a metric that tells a text: a label of a series that is always 1."""
    served = "1 for the fingerprint that a model's name stands for in this frontend."
    family = GaugeMetricFamily("selvage_served_model_info", served, labels=["model", "fingerprint"])
    for model, fingerprint in fingerprints.items():
        family.add_metric([model, fingerprint], 1.0)
    return family
