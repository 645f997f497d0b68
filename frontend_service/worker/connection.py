"""Jobs over gRPC: one Execute a job, its answer put together again. Knows nothing of models, texts and health."""

from concurrent.futures import Executor
from typing import Any

import grpc

from selvage.worker.v1 import worker_pb2 as pb
from shared import job_codec, result_codec
from shared.jobs import Job, JobResult
from shared.offload import offload
from shared.rpc import channel_options
from shared.rpc.metadata import call_metadata
from shared.rpc.status import to_domain_error
from shared.services import WORKER_SERVICES

DEADLINE_SLACK = 1.0
"""Seconds by which a call outlives its job's deadline, so that the worker's own word on it still arrives."""


def _serialise(job: Job) -> bytes:
    return job_codec.jobs_to_pb([job]).SerializeToString()


class Connection:
    """A channel to one worker. It connects by itself, and again after a failure."""

    def __init__(self, target: str, threads: Executor) -> None:
        """`target`: HOST:PORT or dns:///NAME:PORT. `threads`: where large messages are made and read."""
        self.target = target
        self.channel = grpc.aio.insecure_channel(target, options=channel_options())
        self._threads = threads
        self._execute: Any = self.channel.unary_stream(
            f"/{WORKER_SERVICES[0]}/Execute",  # takes bytes: large requests are serialised in a thread
            response_deserializer=pb.ExecuteResponse.FromString,
        )

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, WorkerUnavailable or DeadlineExceeded. Cancelling it cancels the job."""
        payload = await offload(self._threads, job_codec.job_bytes(job), _serialise, job)
        assembly = result_codec.ResultAssembly()
        timeout = None if job.remaining is None else job.remaining + DEADLINE_SLACK
        try:
            async for message in self._execute(payload, timeout=timeout, metadata=call_metadata()):
                assembly.add(message)
        except grpc.aio.AioRpcError as error:
            raise to_domain_error(error) from None
        return await offload(self._threads, assembly.size, result_codec.ResultAssembly.result, assembly)

    async def close(self) -> None:
        await self.channel.close()
