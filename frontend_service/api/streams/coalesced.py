"""A stream of small messages: messages that wait together are answered together. Knows no messages and no gRPC.

A group is computed as one request, so a caller that sends one text a message is as fast as one that sends lists. While
groups are in progress more messages gather: a fast caller gets large groups, a slow one is answered at once.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from frontend_service.api.streams.two_way_stream import REQUEST_BYTES, Replies, RequestStream, TwoWayStream
from shared.errors import InputTooLarge, Internal, InvalidInput, Overloaded, SelvageError
from shared.server.admission import Admission, Holding, OpenStream

GROUPS = 3
"""Most groups in progress at once: one is computed, one waits at the worker, one is prepared or written."""
GROUP_MESSAGES, GROUP_BYTES = 256, 64 * 1024
"""Limits of a group: the work of a step or two. A single message may exceed them."""
MESSAGES = 2 * GROUPS * GROUP_MESSAGES
"""Most messages of a stream that wait or are in progress: enough that the next groups are full."""
CALM_GROUPS = 8
"""Groups to be answered without a refusal before one more group may be in progress again."""
LEAST_PAUSE = 0.1
"""Shortest pause before refused messages are tried again, in seconds."""
PLACE = re.compile(r"(?:texts|text_pairs|tokenized)\[(\d+)\]")
"""The field of an error that names the message to blame by its place in the group."""
OF_INPUTS = (InvalidInput, InputTooLarge, Internal)
"""Errors that some inputs of a group may cause, and others not."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class _Message(Generic[M]):
    """A message that waits, its size in bytes, and the options that its group must share."""

    message: M
    size: int
    options: Hashable


@dataclass(slots=True, eq=False)
class _Group(Generic[M]):
    """Messages that are answered together.

    `paused`: seconds of pauses so far, after refusals because the service was overloaded; `is_first`: set once all
    groups before it are answered.
    """

    messages: Sequence[_Message[M]]
    paused: float = 0.0
    is_first: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class CoalescedStream(TwoWayStream[M]):
    """A stream that answers messages in groups.

    Replies are sent in the order of the messages. The first error ends the stream once all earlier messages are
    answered.
    """

    def __init__(
        self,
        admission: Admission,
        stream: OpenStream,
        replies: Replies,
        options: Callable[[M], Hashable],
        answer: Callable[[Sequence[M]], Awaitable[Sequence[bytes]]],
    ) -> None:
        """Only messages of equal `options` share a group. `answer` gives one reply for each message of a group.

        Where one message is to blame for an error of `answer`, the error's field names its place (`texts[3]`).
        """
        super().__init__(admission, stream, replies, MESSAGES)
        self._options, self._answer = options, answer
        self._waiting = deque[_Message[M]]()
        self._groups = deque[_Group[M]]()
        self._max_groups, self._calm_groups = GROUPS, 0
        self._failed: SelvageError | None = None
        self._held: Holding
        self._tasks: asyncio.TaskGroup

    async def run(self, requests: RequestStream[M]) -> None:
        """Reads and answers all messages. Raises the error of the first message that has one."""
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
        self._count_begun(size)
        self._waiting.append(_Message(request, size, self._options(request)))
        self._start_groups()

    def _start_groups(self) -> None:
        """Starts groups of the waiting messages, as many as may be in progress."""
        while self._waiting and len(self._groups) < self._max_groups:
            group = self._next_group()
            self._groups.append(group)
            group.task = self._start_task(self._run(group), self._tasks)
        if self._groups:
            self._groups[0].is_first.set()

    def _next_group(self) -> _Group[M]:
        messages, size, options = list[_Message[M]](), 0, self._waiting[0].options
        while self._waiting and len(messages) < GROUP_MESSAGES and self._waiting[0].options == options:
            size += self._waiting[0].size
            if messages and size > GROUP_BYTES:
                break
            messages.append(self._waiting.popleft())
        return _Group(messages)

    async def _run(self, group: _Group[M]) -> None:
        """Answers all messages of a group; in smaller parts where one message causes an error for all."""
        parts = deque([group.messages])
        while parts:
            part = parts.popleft()
            try:
                async with self._admission.stream_requests:
                    replies = await self._answer([message.message for message in part])
            except SelvageError as error:
                smaller_parts = await self._parts_to_retry(group, part, error)
                if not smaller_parts:
                    await self._fail(group, error)
                    return
                parts.extendleft(reversed(smaller_parts))
            else:
                await self.send(*replies, may_begin=group.is_first)
        self._groups.popleft()
        self._recover()
        self._release(group.messages)
        self._start_groups()

    async def _parts_to_retry(
        self, group: _Group[M], part: Sequence[_Message[M]], error: SelvageError
    ) -> list[Sequence[_Message[M]]]:
        """Parts to try instead of one that failed, in order; none where a retry does not help.

        After an Overloaded a retry may help later, or with fewer messages. A large message does not wait in memory for
        that.
        """
        smaller_parts = split_around(part, error)
        if len(smaller_parts) > 1:
            return smaller_parts
        if not isinstance(error, Overloaded):
            return []
        self._calm_groups = 0
        if await self._wait_until_alone(group):
            return [part]
        seconds = max(error.retry_after or 0.0, LEAST_PAUSE)
        group.paused += seconds
        size = sum(message.size for message in part)
        if group.paused > self._admission.bounds.read_seconds or size > REQUEST_BYTES:
            return []
        await asyncio.sleep(seconds)
        return halves(part)

    def _recover(self) -> None:
        """Counts an answered group; after enough of them one more group may be in progress."""
        self._calm_groups += 1
        if self._calm_groups >= CALM_GROUPS:
            self._max_groups, self._calm_groups = min(self._max_groups + 1, GROUPS), 0

    def _release(self, messages: Sequence[_Message[M]]) -> None:
        """Counts answered messages as no longer held."""
        size = sum(message.size for message in messages)
        self._held.let_go(size)
        self._count_answered(len(messages), size)

    async def _wait_until_alone(self, group: _Group[M]) -> bool:
        """Waits until no other group of this stream is in progress; False where none was.

        For a group that was refused as too much: the room may be taken by its own stream. Later groups cannot end
        before this one, so their messages wait again, and from now on there is one group at a time.

        The order matters. A later group waits for those before it, which may have the room, and cancels nobody: two
        groups that cancelled each other would never be answered. The first group cancels those behind it, and returns
        only when their tasks have ended, because until then they hold their room. Their messages are put back before
        that, in front of those that are read meanwhile. test_a_stream_does_not_refuse_itself holds both cases,
        test_groups_are_under_way_together_again_after_a_refusal that several groups are in progress again later (both
        in test_coalescing_room.py).
        """
        if not group.is_first.is_set():
            await group.is_first.wait()
            return True
        later_groups = self._cancel_later_groups()
        for later_group in reversed(later_groups):
            self._waiting.extendleft(reversed(later_group.messages))
        self._max_groups = 1
        await _wait_for_end(later_groups)
        return bool(later_groups)

    async def _fail(self, group: _Group[M], error: SelvageError) -> None:
        """Ends the stream with the error of a group, once the groups before it are answered."""
        await group.is_first.wait()
        self._waiting.clear()
        self._failed = error
        self._stream.end(error)
        await _wait_for_end(self._cancel_later_groups())

    def _cancel_later_groups(self) -> list[_Group[M]]:
        """Cancels all groups but the first one, and returns them."""
        first_group, *later_groups = self._groups
        self._groups = deque([first_group])
        for group in later_groups:
            assert group.task is not None
            group.task.cancel()
        return later_groups


async def _wait_for_end(groups: Sequence[_Group[Any]]) -> None:
    """Returns when the tasks of all groups have ended."""
    tasks = [group.task for group in groups if group.task is not None]
    if tasks:
        await asyncio.wait(tasks)


def halves(part: Sequence[M]) -> list[Sequence[M]]:
    """Both halves of a part; a single message is one half."""
    middle = len(part) // 2
    return [half for half in (part[:middle], part[middle:]) if half]


def split_around(part: Sequence[M], error: SelvageError) -> list[Sequence[M]]:
    """Splits a part so that the message to blame for an error stands alone: where the error does not name it, in
    halves; where no single message is to blame, not at all."""
    place = PLACE.fullmatch(error.field)
    if place is not None:
        index = int(place[1])
        parts = [part[:index], part[index : index + 1], part[index + 1 :]]
    elif isinstance(error, OF_INPUTS):
        parts = halves(part)
    else:
        parts = [part]
    return [smaller for smaller in parts if smaller]
