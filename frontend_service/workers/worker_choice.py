"""The choice of a worker: which would end a job first, and whether that is soon enough. Knows no models and no gRPC.

Other frontends hear the same reports of load. If all sent their jobs where the last reports show the shortest wait,
these would stand in line there beside idle workers. So each frontend draws, for each worker, the work that others may
have sent there since its report, by what they lately sent: the more that is and the older reports are, the more evenly
workers are chosen. Where others send little, next to nothing is drawn, and a fast worker is chosen before slow ones.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf

from frontend_service.workers.link import WorkerLink
from shared.errors import Overloaded
from shared.estimate import UNREAD_MARGIN
from shared.jobs import Job
from shared.terms import RequestTerms


def _kept_waiting(others: float) -> float:
    """How much of a second's work waits that others send in a second, where they send the busiest worker `others`
    seconds of it. What they sent one worker they may send another one next, so the busiest counts for all.

    Others send `others`, of which as large a share comes while the worker computes; the rest is done before anybody
    asks. It counts twice, since all go where the last report was good.
    """
    return min(1.0, 2 * others**2)


class WorkerChoice:
    """Chooses among workers by estimates, and refuses what none could answer in time.

    `refused`: requests and jobs so far that no worker could answer in time, by the limit that they would exceed.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        """`draw`: draws a number from 0 to 1, evenly."""
        self._draw = draw
        self.refused = Counter(deadline=0, queue_seconds=0)

    def best(self, candidates: Sequence[WorkerLink], job: Job) -> tuple[WorkerLink, Mapping[WorkerLink, float]]:
        """Returns the worker that is likely to end a job first, and the job's wait at each candidate in seconds.

        Raises Overloaded where every worker would end it too late, by what they reported.
        """
        tokens = job.tokens.total
        estimates = {link: link.estimate(tokens, job.priority, job.key) for link in candidates}
        in_time = [link for link, estimate in estimates.items() if estimate.in_time(job.remaining)]
        if not in_time:
            self._refuse(min(estimates.values(), key=lambda estimate: estimate.seconds).refusal(job.remaining))
        drawn = 2 * _kept_waiting(max(link.others for link in candidates))
        best = min(in_time, key=lambda link: estimates[link].seconds + drawn * self._draw() * link.unheard_seconds)
        return best, {link: estimate.wait for link, estimate in estimates.items()}

    def check_terms(self, serving: Sequence[WorkerLink], terms: RequestTerms) -> None:
        """Raises Overloaded for a request that no worker could answer in time, however small it is, or that would wait
        for longer than the best worker lets jobs wait, whatever its deadline.

        This holds requests to the worker's limit itself; the worker refuses jobs only above LENIENCE times the limit.
        """
        # A request of one token has the shortest wait; the margin leaves room for the wait of what it turns out to be:
        # test_what_is_let_in_unread_is_hardly_ever_refused_once_it_is_read (test_fleet.py).
        estimates = {link: link.estimate(1, terms.priority, terms.key) for link in serving}
        if estimates:
            best = min(estimates, key=lambda link: estimates[link].wait)
            limit = best.models[0].queue_seconds if best.models else inf
            self._refuse(estimates[best].refusal(terms.deadline.remaining(), margin=UNREAD_MARGIN, limit=limit))

    def _refuse(self, refusal: tuple[str, Overloaded] | None) -> None:
        """Counts and raises a refusal, if it is one."""
        if refusal is not None:
            reason, error = refusal
            self.refused[reason] += 1
            raise error
