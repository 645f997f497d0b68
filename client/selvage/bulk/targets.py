"""All targets that share the work: the card of their model, and a thread for each."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from selvage.bulk.batch_queue import FIRST, LONGEST, BatchQueue
from selvage.bulk.failures import Failed
from selvage.bulk.service import CARD_SECONDS, BulkService
from selvage.bulk.target_thread import PASSING, TargetThread
from selvage.errors import SelvageError
from selvage.messages.embedding import Template
from selvage.model_card import ModelCard

FIRST_SECONDS = 2.0
"""Deadline of the first request for a card: where nothing answers at all, this is told after so long."""


def card_of(services: Sequence[BulkService], patience: float, tell: Callable[[str], None]) -> ModelCard:
    """The card of the model, from the first service that sends it. Raises Failed after `patience` seconds.

    `tell`: takes a line for people, for whom it waits and why, as soon as it has to wait.
    """
    waited = threading.Event()
    pause, left, seconds = FIRST, patience, FIRST_SECONDS
    while True:
        for service in services:
            try:
                return service.card(seconds)
            except PASSING as passing:
                error: SelvageError = passing
            except SelvageError as refused:
                raise Failed(f"{service.name}: {refused}") from refused
        if left <= 0:
            raise Failed(f"no target answers; {service.name} says: {error}")
        if seconds == FIRST_SECONDS:
            names = ", ".join(service.name for service in services)
            tell(f"waiting up to {patience:g} s for {names}: {error}")
        seconds = CARD_SECONDS
        waited.wait(min(pause, left))
        pause, left = min(pause * 2, LONGEST), left - pause


@contextmanager
def running_targets(
    services: Sequence[BulkService],
    template: Template,
    fingerprint: str,
    queue: BatchQueue,
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Runs a thread for each service; closes the queue and the services at the end.

    `tell`: takes a line for people, as soon as a service has no stream left for this command.
    """
    threads = [TargetThread(service, queue, template, fingerprint, tell) for service in services]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        queue.close()
        for thread, service in zip(threads, services, strict=True):
            service.close()
            thread.join(LONGEST)
