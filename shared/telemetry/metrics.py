"""Metrics of both processes, and the page that Prometheus reads. The only file that knows its library.

Labels are few and bounded: methods of the contracts, codes, reasons, kinds of jobs, priorities, models that are served.
Never a fairness key, a request id or a text. What is a state, not an event, is read when Prometheus asks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from shared.errors import SelvageError
from shared.jobs import Job, JobResult, MaxSim, Priority
from shared.telemetry.figures import FrontendFigures, RequestTimes, WorkerFigures

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144)
UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CODES = {"OK": "OK", "CANCELLED": "Canceled"}
"""Codes that go-grpc-prometheus, which set the convention, spells irregularly."""
FRONTEND_REASONS = (
    *("requests", "bytes", "streams", "health", "slow_reads", "read_seconds"),
    *("quota", "unauthenticated", "draining", "deadline", "queue_seconds"),
)
WORKER_REASONS = ("queued_tokens", "queue_seconds", "deadline")


class Page:
    """All metrics of one process, with its own CPU, memory and files; served over HTTP from a thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a further series for every counter, which nobody reads
        self.registry = CollectorRegistry()
        self.rpcs = RpcMetrics(self.registry)
        self._server: WSGIServer | None = None
        ProcessCollector(registry=self.registry)

    def frontend(self) -> "FrontendMetrics":
        """Creates the metrics of a frontend on this page."""
        return FrontendMetrics(self.registry)

    def worker(self) -> "WorkerMetrics":
        """Creates the metrics of a worker on this page."""
        return WorkerMetrics(self.registry)

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

    def times(self, times: RequestTimes) -> None:
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

    def read(self, figures: Callable[[], FrontendFigures]) -> None:
        """Adds figures to the page; `figures` is called in the page's thread."""

        def metrics() -> Iterator[Metric]:
            now = figures()
            yield _gauge("selvage_requests_in_flight", "Requests that are being answered.", now.requests)
            of = "Bytes of requests, of their results, and of replies that callers have not read."
            yield _gauge("selvage_bytes_in_flight", of, now.size)
            yield _refused(now.refused, FRONTEND_REASONS)
            yield _gauges("selvage_workers_serving", "Workers that take jobs.", "model", now.workers)
            of = "Workers of these that get no jobs for a while: others answer what they fail."
            yield _gauges("selvage_workers_set_aside", of, "model", now.aside)
            wait = "Seconds, at most, until the turn of a small new job."
            yield _gauges("selvage_worker_wait_seconds", wait, "model", now.waits)
            yield _fingerprints(now.fingerprints)

        self._registry.register(_Read(metrics))


class WorkerMetrics:
    """Metrics of a worker: steps, waiting jobs, refusals, and its device."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, of: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
            return Histogram(f"selvage_{name}", of, labels, registry=registry, buckets=buckets)

        queue = histogram("queue_seconds", "From a job's arrival to its first step.", SECONDS, ["priority"])
        self._queue = {priority: queue.labels(priority.name.lower()) for priority in Priority}
        self._compute = histogram("compute_seconds", "From a job's first step to the end of its last.", SECONDS)
        self._job_tokens = histogram("job_tokens", "Tokens of a job that was answered.", TOKENS)
        self._step_seconds = histogram("step_seconds", "How long a step was computed.", SECONDS)
        self._step_tokens = histogram("step_tokens", "Tokens of a step.", TOKENS)
        self._step_units = histogram("step_units", "Units of a step: sequences, pairs, documents.", UNITS)
        self._tokens = Counter("selvage_tokens", "Tokens of steps that ended.", registry=registry)
        self._jobs = Counter("selvage_jobs", "Jobs by their outcome.", ["kind", "outcome"], registry=registry)
        self._jobs_of: dict[tuple[str, str], Counter] = {}
        self._registry = registry

    def step(self, seconds: float, tokens: int, units: int) -> None:
        """Records a finished step."""
        self._step_seconds.observe(seconds)
        self._step_tokens.observe(tokens)
        self._step_units.observe(units)
        self._tokens.inc(tokens)

    def job(self, job: Job, outcome: JobResult | SelvageError) -> None:
        """Records an answered job: its result, or the reason why it was refused or failed."""
        if isinstance(outcome, SelvageError):
            self._outcome(job, outcome.reason).inc()
            return
        self._outcome(job, "OK").inc()
        self._queue[job.priority].observe(outcome.queue)
        self._compute.observe(outcome.compute)
        self._job_tokens.observe(job.tokens.total)

    def read(self, figures: Callable[[], WorkerFigures]) -> None:
        """Adds figures to the page; `figures` is called in the page's thread."""

        def metrics() -> Iterator[Metric]:
            now = figures()
            yield _gauge("selvage_queued_tokens", "Tokens that wait.", now.queued_tokens)
            yield _gauge("selvage_queued_jobs", "Jobs that wait or are being computed.", now.queued_jobs)
            yield _gauge("selvage_step_budget_tokens", "Most tokens that the next step may have.", now.budget)
            yield _refused(now.refused, WORKER_REASONS)
            of = "Jobs that were cancelled before anything of them was computed."
            yield CounterMetricFamily("selvage_cancelled_waiting", of, now.cancelled_waiting)
            yield _gauge("selvage_unsent_bytes", "Bytes of answers that frontends have not read.", now.unsent)
            yield _gauge("selvage_attached_frontends", "Frontends that have a link.", now.frontends)
            yield _gauge("selvage_stalled", "1 while a step takes far longer than it should.", now.stalled)
            yield _gauges("selvage_device_memory_bytes", "Memory of the accelerator.", "state", now.memory)
            of = "Tokens by which steps were filled up to the size of a captured graph."
            yield CounterMetricFamily("selvage_padding_tokens", of, now.padding)
            yield CounterMetricFamily("selvage_pieces", "Pieces of long texts that were computed.", now.pieces)
            of = "Tokens that were not computed, since a text of the same step begins with them as well."
            yield CounterMetricFamily("selvage_shared_tokens", of, now.shared_tokens)
            cache = {"kept": now.kept_bytes, "limit": now.cache_bytes}
            of = "Room for keys and values of texts in pieces: what those that began have taken, and the limit."
            yield _gauges("selvage_cache_bytes", of, "state", cache)
            of = "Jobs whose next text waits until its keys and values have room."
            yield _gauge("selvage_jobs_waiting_for_cache", of, now.waiting_for_cache)

        self._registry.register(_Read(metrics))

    def _outcome(self, job: Job, outcome: str) -> Counter:
        kind = "max_sim" if isinstance(job.work, MaxSim) else type(job.work).__name__.lower()
        metrics = self._jobs_of.get((kind, outcome))
        if metrics is None:
            metrics = self._jobs_of[kind, outcome] = self._jobs.labels(kind, outcome)
        return metrics


class _Read(Collector):
    """Metrics that are made when Prometheus asks."""

    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics()


def _labels(method: str, kind: str) -> tuple[str, str, str]:
    service, _, name = method.lstrip("/").rpartition("/")
    return kind, service, name


def _gauge(name: str, of: str, value: float) -> Metric:
    return GaugeMetricFamily(name, of, float(value))


def _gauges(name: str, of: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, of, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _fingerprints(fingerprints: Mapping[str, str]) -> Metric:
    """The usual form of a metric that tells a text: a label of a series that is always 1."""
    served = "1 for the fingerprint that a model's name stands for in this frontend."
    family = GaugeMetricFamily("selvage_served_model_info", served, labels=["model", "fingerprint"])
    for model, fingerprint in fingerprints.items():
        family.add_metric([model, fingerprint], 1.0)
    return family


def _refused(refused: Mapping[str, int], reasons: Iterable[str]) -> Metric:
    """The counter of refusals; reasons without any are reported as 0, so that the first one shows as a rise."""
    family = CounterMetricFamily("selvage_refused", "What was refused as too much.", labels=["reason"])
    for reason, count in {**dict.fromkeys(reasons, 0), **refused}.items():
        family.add_metric([reason], count)
    return family
