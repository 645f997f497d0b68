"""Conversion between a worker's load and messages, both directions side by side. Knows no gRPC."""

from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.fields import number
from shared.jobs import Priority
from shared.load import Backlog, Load


def load_to_pb(load: Load) -> pb.Load:
    message = pb.Load(
        queued_tokens=load.queued_tokens,
        queued_jobs=load.queued_jobs,
        tokens_per_second=load.tokens_per_second,
        draining=load.draining,
        stalled=load.stalled,
        turn=load.turn,
        busy_seconds=load.busy,
        express_tokens=load.express_tokens,
        step_tokens=load.step_tokens,
        coming=load.coming,
        others=load.others,
    )
    for priority, backlog in load.backlogs.items():
        message.backlogs.add(
            priority=number(priority),
            keys=backlog.keys,
            jobs=backlog.jobs,
            tokens=backlog.tokens,
            long_jobs=backlog.long_jobs,
            long_tokens=backlog.long_tokens,
        )
    return message


def load_from_pb(message: pb.Load) -> Load:
    """Reads a load; a priority that this version does not know is left out."""
    priorities = {int(priority) for priority in Priority}
    return Load(
        queued_tokens=message.queued_tokens,
        queued_jobs=message.queued_jobs,
        tokens_per_second=message.tokens_per_second,
        backlogs={
            Priority(backlog.priority): Backlog(
                keys=backlog.keys,
                jobs=backlog.jobs,
                tokens=backlog.tokens,
                long_jobs=backlog.long_jobs,
                long_tokens=backlog.long_tokens,
            )
            for backlog in message.backlogs
            if backlog.priority in priorities
        },
        draining=message.draining,
        stalled=message.stalled,
        turn=message.turn,
        busy=message.busy_seconds,
        express_tokens=message.express_tokens,
        step_tokens=message.step_tokens,
        coming=tuple(message.coming[: len(priorities)]),
        others=message.others,
    )
