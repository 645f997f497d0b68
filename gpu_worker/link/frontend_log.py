"""What the log says of frontends: a line for each change, and none for what one repeats. Knows no transport."""

import re
from collections import OrderedDict
from dataclasses import dataclass, field

import structlog

from shared.errors import InvalidInput

REMEMBERED = 1000
"""Most frontends that are remembered after they went; of others a repetition is logged again."""

log = structlog.get_logger("link")


@dataclass(slots=True)
class _Frontend:
    """`attached`: whether the log says that it is. `expelled`: whether its last link was ended because of what it sent.
    `wrongs`: what was wrong so far.
    """

    attached: bool = False
    expelled: bool = False
    wrongs: set[tuple[str, str]] = field(default_factory=set)


class FrontendLog:
    """The lines about all frontends, by their names."""

    def __init__(self) -> None:
        self._frontends: OrderedDict[str, _Frontend] = OrderedDict()

    def attached(self, name: str) -> None:
        """A frontend attached. One that was expelled, and comes again, is no news."""
        frontend = self._of(name)
        if not frontend.expelled:
            frontend.attached = True
            log.info("frontend attached", name=name)

    def detached(self, name: str) -> None:
        """A frontend went, be it before it attached. What was wrong is remembered: its name has its process id."""
        self._gone(name).expelled = False

    def expelled(self, name: str, error: InvalidInput) -> None:
        """The link to a frontend was ended because of what it sent."""
        self.wrong(name, error)
        self._gone(name).expelled = True

    def wrong(self, name: str, error: InvalidInput) -> None:
        """A frontend sent what makes no sense; it is logged once for each kind of error and field."""
        wrongs, kind = self._of(name).wrongs, (error.reason, re.sub(r"\d+", "", error.field))
        if kind not in wrongs:
            wrongs.add(kind)
            log.warning("a frontend's message makes no sense", name=name, why=error.message, field=error.field)

    def _gone(self, name: str) -> _Frontend:
        frontend = self._of(name)
        if frontend.attached:
            log.info("frontend detached", name=name)
            frontend.attached = False
        return frontend

    def _of(self, name: str) -> _Frontend:
        frontend = self._frontends.setdefault(name, _Frontend())
        self._frontends.move_to_end(name)
        if len(self._frontends) > REMEMBERED:
            self._frontends.popitem(last=False)
        return frontend
