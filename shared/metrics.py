"""The page that Prometheus reads, with the metrics of rpcs, and what the metrics of both processes are made of.

Labels are few and bounded: methods of the contracts, codes, reasons, kinds of jobs, priorities, models that are served.
Never a fairness key, a request id or a text. What is a state, not an event, is read when Prometheus asks.
"""

from collections.abc import Callable, Iterable, Mapping
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CODES = {"OK": "OK", "CANCELLED": "Canceled"}
"""Codes that go-grpc-prometheus, which set the convention, spells irregularly."""


class Page:
    """All metrics of one process, with its own CPU, memory and files; served over HTTP from a thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a further series for every counter, which nobody reads
        self.registry = CollectorRegistry()
        self.rpcs = RpcMetrics(self.registry)
        self._server: WSGIServer | None = None
        ProcessCollector(registry=self.registry)

    def start(self, address: str) -> str:
        """Serves on HOST:PORT from now on, under any path; returns the address with its port. Raises OSError."""
        host, _, port = address.rpartition(":")
        self._server, _ = start_http_server(int(port), host.strip("[]"), self.registry)
        return f"{host}:{self._server.server_port}"

    def text(self) -> tuple[bytes, str]:
        """The page as it is now, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def stop(self) -> None:
        """Stops serving the page."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class RpcMetrics:
    """Metrics of rpcs under the usual names of dashboards, grpc_server_*."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("grpc_type", "grpc_service", "grpc_method")
        self._started = Counter("grpc_server_started", "Calls that began.", labels, registry=registry)
        self._handled = Counter("grpc_server_handled", "Calls that ended.", (*labels, "grpc_code"), registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds",
            "From a call's start to its end.",
            labels,
            registry=registry,
            buckets=SECONDS,
        )
        self._started_of: dict[str, Counter] = {}
        self._ended_of: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def started(self, method: str, kind: str) -> None:
        """Counts the start of an rpc; `method`: `/package.Service/Method`."""
        metrics = self._started_of.get(method)
        if metrics is None:
            metrics = self._started_of[method] = self._started.labels(*_labels(method, kind))
        metrics.inc()

    def ended(self, method: str, kind: str, code: str, seconds: float) -> None:
        """Counts the end of an rpc; `code`: gRPC's name, RESOURCE_EXHAUSTED, reported as ResourceExhausted."""
        metrics = self._ended_of.get((method, code))
        if metrics is None:
            labels, written = _labels(method, kind), CODES.get(code, code.title().replace("_", ""))
            metrics = self._handled.labels(*labels, written), self._seconds.labels(*labels)
            self._ended_of[method, code] = metrics
        metrics[0].inc()
        metrics[1].observe(seconds)


class StateCollector(Collector):
    """Metrics that are made when Prometheus asks."""

    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics()


def _labels(method: str, kind: str) -> tuple[str, str, str]:
    service, _, name = method.lstrip("/").rpartition("/")
    return kind, service, name


def gauge_of(name: str, of: str, value: float) -> Metric:
    return GaugeMetricFamily(name, of, float(value))


def gauges_of(name: str, of: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, of, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def refusals_of(refused: Mapping[str, int], reasons: Iterable[str] = ()) -> Metric:
    """The counter of refusals; `reasons` without any are reported as 0, so that the first one shows as a rise."""
    family = CounterMetricFamily("selvage_refused", "What was refused as too much.", labels=["reason"])
    for reason, count in {**dict.fromkeys(reasons, 0), **refused}.items():
        family.add_metric([reason], count)
    return family
