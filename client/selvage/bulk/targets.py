"""All services that share the work: the card of their model, and a thread each."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from selvage.bulk.batch_queue import FIRST, LONGEST, Board
from selvage.bulk.failures import Failed
from selvage.bulk.service import BulkService
from selvage.bulk.target_thread import PASSING, TargetThread
from selvage.errors import SelvageError
from selvage.messages.embedding import Template
from selvage.model_card import ModelCard


def card_of(services: Sequence[BulkService], patience: float) -> ModelCard:
    """Of the first that answers, within `patience` seconds. Raises Failed."""
    waited = threading.Event()
    rest, left = FIRST, patience
    while True:
        for each in services:
            try:
                return each.card()
            except PASSING as passing:
                error: SelvageError = passing
            except SelvageError as refused:
                raise Failed(f"{each.name}: {refused}") from refused
        if left <= 0:
            raise Failed(f"no target answers; {each.name} says: {error}")
        waited.wait(min(rest, left))
        rest, left = min(rest * 2, LONGEST), left - rest


@contextmanager
def targets(services: Sequence[BulkService], template: Template, fingerprint: str, board: Board) -> Iterator[None]:
    """Their threads run as long as this is open."""
    threads = [TargetThread(each, board, template, fingerprint) for each in services]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        board.close()
        for thread, service in zip(threads, services, strict=True):
            service.close()
            thread.join(LONGEST)
