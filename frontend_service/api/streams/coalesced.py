"""A stream whose messages are small: those that wait together are answered together. Knows no messages and no gRPC.

A group is computed as one request, so whoever sends one text a message is as fast as who sends lists. While groups are
under way more messages gather: a fast caller gets large groups, a slow one is answered at once.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from frontend_service.api.streams.two_way_stream import REQUEST_BYTES, Replies, RequestStream, TwoWayStream
from shared.errors import InputTooLarge, Internal, InvalidInput, Overloaded, SelvageError
from shared.server.admission import Admission
from shared.server.admission.holding import Holding
from shared.server.admission.streams import OpenStream

GROUPS = 3
"""Under way at once: one is computed, one waits at the worker, and one is made ready or written."""
GROUP_MESSAGES, GROUP_BYTES = 256, 64 * 1024
"""Of a group: a step or two. One message always may be."""
MESSAGES = 2 * GROUPS * GROUP_MESSAGES
"""Of a stream that are answered or wait: enough that the next groups are full."""
CALM = 8
"""Groups that are answered without a refusal until another one may be under way again."""
LEAST_WAIT = 0.1
"""Seconds before what was refused is tried again."""
PLACE = re.compile(r"(?:texts|text_pairs|tokenized)\[(\d+)\]")
"""The field of an error that one input of a request is to blame for."""
OF_INPUTS = (InvalidInput, InputTooLarge, Internal)
"""Errors for which some inputs may be to blame, and not others."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class _Message(Generic[M]):
    """One that waits."""

    message: M
    size: int
    options: Hashable


@dataclass(slots=True, eq=False)
class _Group(Generic[M]):
    """Messages that are answered together. `turn`: set once all before them are answered; `waited`: seconds, because
    there was too much of others."""

    messages: Sequence[_Message[M]]
    waited: float = 0.0
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class CoalescedStream(TwoWayStream[M]):
    """One stream. Replies leave in order; the first error ends it, once the messages before have been answered."""

    def __init__(
        self,
        admission: Admission,
        stream: OpenStream,
        replies: Replies,
        options: Callable[[M], Hashable],
        answer: Callable[[Sequence[M]], Awaitable[Sequence[bytes]]],
    ) -> None:
        """Only messages of equal `options` come together. `answer` gives a reply to each of some.

        Where one message is to blame for an error of `answer`, its field tells which (`texts[3]`).
        """
        super().__init__(admission, stream, replies, MESSAGES)
        self._options, self._answer = options, answer
        self._waiting = deque[_Message[M]]()
        self._groups = deque[_Group[M]]()
        self._at_once, self._calm = GROUPS, 0
        self._failed: SelvageError | None = None
        self._held: Holding
        self._tasks: asyncio.TaskGroup

    async def run(self, requests: RequestStream[M]) -> None:
        """Until all messages are answered. Raises the error of the first that has one."""
        try:
            with self._admission.holding() as self._held:
                await super().run(requests)
        except SelvageError:
            if self._failed is None:
                raise
        if self._failed is not None:
            raise self._failed

    def _begin(self, request: M, size: int, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        try:
            (self._held.add if size > REQUEST_BYTES else self._held.force)(size)
        except Overloaded as error:
            self._stream.end(error)
            return
        self._holds(size)
        self._waiting.append(_Message(request, size, self._options(request)))
        self._launch()

    def _launch(self) -> None:
        """Makes groups of what waits."""
        while self._waiting and len(self._groups) < self._at_once:
            group = self._gathered()
            self._groups.append(group)
            group.task = self._started(self._run(group), self._tasks)
        if self._groups:
            self._groups[0].turn.set()

    def _gathered(self) -> _Group[M]:
        messages, size, options = list[_Message[M]](), 0, self._waiting[0].options
        while self._waiting and len(messages) < GROUP_MESSAGES and self._waiting[0].options == options:
            size += self._waiting[0].size
            if messages and size > GROUP_BYTES:
                break
            messages.append(self._waiting.popleft())
        return _Group(messages)

    async def _run(self, group: _Group[M]) -> None:
        """Answers all messages of a group, in parts where one of them spoils it for the others."""
        parts = deque([group.messages])
        while parts:
            part = parts.popleft()
            try:
                async with self._admission.stream_requests:
                    replies = await self._answer([each.message for each in part])
            except SelvageError as error:
                smaller = await self._smaller(group, part, error)
                if not smaller:
                    await self._fail(group, error)
                    return
                parts.extendleft(reversed(smaller))
            else:
                await self.send(*replies, turn=group.turn)
        self._groups.popleft()
        self._recover()
        self._let_go(group.messages)
        self._launch()

    async def _smaller(
        self, group: _Group[M], part: Sequence[_Message[M]], error: SelvageError
    ) -> list[Sequence[_Message[M]]]:
        """Parts of a part to try instead of it, in order; none where that does not help.

        What others leave no room for may find some later, or if it is less. A large one does not wait in memory.
        """
        smaller = apart(part, error)
        if len(smaller) > 1:
            return smaller
        if not isinstance(error, Overloaded):
            return []
        self._calm = 0
        if await self._alone(group):
            return [part]
        seconds = max(error.retry_after or 0.0, LEAST_WAIT)
        group.waited += seconds
        if group.waited > self._admission.bounds.read_seconds or sum(each.size for each in part) > REQUEST_BYTES:
            return []
        await asyncio.sleep(seconds)
        return halves(part)

    def _recover(self) -> None:
        """After a group that was answered."""
        self._calm += 1
        if self._calm >= CALM:
            self._at_once, self._calm = min(self._at_once + 1, GROUPS), 0

    def _let_go(self, messages: Sequence[_Message[M]]) -> None:
        size = sum(each.size for each in messages)
        self._held.let_go(size)
        self._answered(len(messages), size)

    async def _alone(self, group: _Group[M]) -> bool:
        """Waits until no other group of this stream is under way; False where none was.

        For one that was refused because there is too much: a stream is not to refuse itself. Those behind it cannot end
        before it does, so they begin anew, and from now on one at a time.
        """
        if not group.turn.is_set():
            await group.turn.wait()
            return True
        behind = self._drop_behind()
        for each in reversed(behind):
            self._waiting.extendleft(reversed(each.messages))
        self._at_once = 1
        await _ended(behind)
        return bool(behind)

    async def _fail(self, group: _Group[M], error: SelvageError) -> None:
        """Ends the stream with the error of a group."""
        await group.turn.wait()
        self._waiting.clear()
        self._failed = error
        self._stream.end(error)
        await _ended(self._drop_behind())

    def _drop_behind(self) -> list[_Group[M]]:
        """All groups but the first one, which are under way no more."""
        first, *behind = self._groups
        self._groups = deque([first])
        for each in behind:
            assert each.task is not None
            each.task.cancel()
        return behind


async def _ended(groups: Sequence[_Group[Any]]) -> None:
    """Returns when nothing of them runs any more."""
    tasks = [each.task for each in groups if each.task is not None]
    if tasks:
        await asyncio.wait(tasks)


def halves(part: Sequence[M]) -> list[Sequence[M]]:
    """Both, or a single message alone."""
    middle = len(part) // 2
    return [each for each in (part[:middle], part[middle:]) if each]


def apart(part: Sequence[M], error: SelvageError) -> list[Sequence[M]]:
    """Smaller parts, of which those without the message that is to blame have no such error; or the same one."""
    place = PLACE.fullmatch(error.field)
    if place is not None:
        at = int(place[1])
        found = [part[:at], part[at : at + 1], part[at + 1 :]]
    elif isinstance(error, OF_INPUTS):
        found = halves(part)
    else:
        found = [part]
    return [each for each in found if each]
