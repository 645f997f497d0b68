"""The choice of a worker: which would end a job first, and whether that is soon enough. Knows no models and no gRPC."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from frontend_service.workers.link import WorkerLink
from shared.errors import Overloaded
from shared.estimate import MARGIN, UNREAD_MARGIN, Estimate, queue_refusal, retry_after
from shared.jobs import Job
from shared.terms import RequestTerms


class WorkerChoice:
    """Chooses among workers by estimates, and refuses what none could answer in time.

    `refused`: requests and jobs so far that no worker could answer in time, by the limit that they would exceed.
    """

    def __init__(self) -> None:
        self.refused = Counter(deadline=0, queue_seconds=0)

    def best(self, candidates: Sequence[WorkerLink], job: Job) -> tuple[WorkerLink, Mapping[WorkerLink, float]]:
        """Returns the worker that would end a job first, and the job's wait at each candidate in seconds.

        Raises Overloaded where even that one would end it too late.
        """
        tokens = job.tokens.total
        waits = {link: link.wait(tokens, job.priority, job.key) for link in candidates}
        estimates = {
            link: Estimate(wait=wait, takes=link.compute_seconds(tokens), slowdown=link.slowdown(tokens, job.priority))
            for link, wait in waits.items()
        }
        best = min(candidates, key=lambda link: estimates[link].slowed)
        self._check_deadline(estimates[best], job.remaining, MARGIN)
        return best, waits

    def check_terms(self, serving: Sequence[WorkerLink], terms: RequestTerms) -> None:
        """Raises Overloaded for a request that no worker could answer in time, however small it is."""
        # A request of one token has the shortest wait; the margin leaves room for the wait of what it turns out to be:
        # test_what_is_let_in_unread_is_hardly_ever_refused_once_it_is_read (test_fleet.py).
        waits = {link: link.wait(1, terms.priority, terms.key) for link in serving}
        if waits:
            best = min(waits, key=waits.__getitem__)
            self._check_deadline(Estimate(wait=waits[best]), terms.deadline.remaining(), UNREAD_MARGIN)
            self._check_queue(best, waits[best], terms)

    def _check_deadline(self, estimate: Estimate, remaining: float | None, margin: float) -> None:
        """Raises Overloaded as `Estimate.check` does, and counts it."""
        try:
            estimate.check(remaining, margin)
        except Overloaded:
            self.refused["deadline"] += 1
            raise

    def _check_queue(self, link: WorkerLink, wait: float, terms: RequestTerms) -> None:
        """Raises Overloaded for a request that would stand in a worker's queue for too long, whatever its deadline.

        This holds requests to the worker's limit itself; the worker refuses jobs only above LENIENCE times the limit.
        `wait`: that of the request, which is never shorter than its time in the queue.
        """
        longest = link.models[0].queue_seconds if link.models else inf
        if wait > longest and (queue := link.queue_seconds(1, terms.priority, terms.key)) > longest:
            self.refused["queue_seconds"] += 1
            raise Overloaded(queue_refusal(queue, longest), retry_after=retry_after(queue - longest))
