"""Metrics of a worker. Labels are few and bounded; see `shared.metrics`."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric

from gpu_worker.schedule.interface import WorkerFigures
from shared.errors import SelvageError
from shared.jobs import Job, JobResult, MaxSim, Priority
from shared.metrics import SECONDS, StateCollector, gauge_of, gauges_of, refusals_of

TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144)
UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REASONS = ("queued_tokens", "queue_seconds", "deadline")


class WorkerMetrics:
    """Metrics of a worker: steps, waiting jobs, refusals, and its device."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, description: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
            return Histogram(f"selvage_{name}", description, labels, registry=registry, buckets=buckets)

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
            yield gauge_of("selvage_queued_tokens", "Tokens that wait.", now.queued_tokens)
            yield gauge_of("selvage_queued_jobs", "Jobs that wait or are being computed.", now.queued_jobs)
            yield gauge_of("selvage_step_budget_tokens", "Most tokens that the next step may have.", now.budget)
            yield refusals_of(now.refused, REASONS)
            description = "Jobs that were cancelled before anything of them was computed."
            yield CounterMetricFamily("selvage_cancelled_waiting", description, now.cancelled_waiting)
            yield gauge_of("selvage_unsent_bytes", "Bytes of answers that frontends have not read.", now.unsent)
            yield gauge_of("selvage_attached_frontends", "Frontends that have a link.", now.frontends)
            yield gauge_of("selvage_stalled", "1 while a step takes far longer than it should.", now.stalled)
            yield gauges_of("selvage_device_memory_bytes", "Memory of the accelerator.", "state", now.memory)
            description = "Tokens by which steps were filled up to the size of a captured graph."
            yield CounterMetricFamily("selvage_padding_tokens", description, now.padding)
            yield CounterMetricFamily("selvage_pieces", "Pieces of long texts that were computed.", now.pieces)
            description = "Tokens that were not computed, since a text of the same step begins with them as well."
            yield CounterMetricFamily("selvage_shared_tokens", description, now.shared_tokens)
            cache = {"kept": now.kept_bytes, "limit": now.cache_bytes}
            description = (
                "Room for keys and values of texts in pieces: what those that began have taken, and the limit."
            )
            yield gauges_of("selvage_cache_bytes", description, "state", cache)
            description = "Jobs whose next text waits until its keys and values have room."
            yield gauge_of("selvage_jobs_waiting_for_cache", description, now.waiting_for_cache)

        self._registry.register(StateCollector(metrics))

    def _outcome(self, job: Job, outcome: str) -> Counter:
        kind = "max_sim" if isinstance(job.work, MaxSim) else type(job.work).__name__.lower()
        metrics = self._jobs_of.get((kind, outcome))
        if metrics is None:
            metrics = self._jobs_of[kind, outcome] = self._jobs.labels(kind, outcome)
        return metrics
