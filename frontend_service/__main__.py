"""Composition root of the frontend: settings -> objects -> serve until SIGTERM."""

from shared.command import begin

if __name__ == "__main__":
    begin("frontend")

import asyncio
import ctypes
import gc
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog

from frontend_service.access.api_keys import ApiKeys
from frontend_service.api.http.app import App
from frontend_service.api.http.pages import all_routes
from frontend_service.api.http.port import HttpServer
from frontend_service.api.selvage_v1 import servicers
from frontend_service.api.tei_v1 import tei_servicers
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Pipeline
from frontend_service.settings import FrontendSettings
from frontend_service.workers.fleet import Fleet
from frontend_service.workers.transport import WorkerTransport, received_bytes
from shared import reporting, security, tasks
from shared.security import Fresh, Identity, LinkSecret, is_loopback
from shared.server.calls import Calls
from shared.server.grpc_server import Server, until_told_to_stop
from shared.server.options import CONNECTIONS, PUBLIC_SERVICES, REQUEST_BYTES, TEI_SERVICES

if TYPE_CHECKING:  # their libraries are imported only where metrics or traces are asked for
    from frontend_service.metrics import FrontendMetrics
    from shared.metrics import Page
    from shared.spans import Spans

ARENA_MAX, MMAP_THRESHOLD = -8, -3
"""Parameters of `mallopt`; malloc.h."""
LARGE_BYTES = 1024 * 1024
OTHER_FILES = 512
"""Files that a process needs beside its connections: libraries, a link to each worker, pipes."""
log = structlog.get_logger("frontend")


async def main(settings: FrontendSettings) -> None:
    text_threads = ThreadPoolExecutor(settings.thread_count, "text")
    message_threads = ThreadPoolExecutor(2, "message")
    page = reporting.page(settings, shown=bool(settings.http_listen))
    spans = reporting.spans("selvage-frontend")
    metrics = _metrics(page) if page else None
    keys, tls = api_keys_of(settings), security.tls_of(settings, settings.tls_ca)
    guards = {"--tls-certificate": tls, "--api-keys or --tls-ca": keys or settings.tls_ca}
    calls = _calls(settings, keys, spans)
    server = _server(calls, message_threads, tls, page)
    transport = worker_transport(settings, security.link_secret_of(settings))
    fleet = Fleet(settings.worker, message_threads, server.set_ready, transport, settings.fingerprint)
    tell_times = [observer.times for observer in (metrics, spans) if observer]
    reserve = calls.admission.reserve
    pipeline = Pipeline(fleet, settings.limits, text_threads, message_threads, reserve=reserve, tell_times=tell_times)
    frontend = Frontend(pipeline, calls, settings.thread_count)
    servicers.register(frontend, server.grpc)
    tei_servicers.register(frontend, server.grpc)
    http = _http(settings, frontend, keys, tls, page, metrics) if page and metrics else None
    calls.check = fleet.check_terms
    calls.local_services = (*servicers.LOCAL, *tei_servicers.LOCAL)
    calls.local_methods = http.local_routes if http else frozenset()
    if metrics:
        metrics.read(calls.admission, fleet)
    gc.collect()
    gc.freeze()  # these objects stay; each full collection would look at all of them, and stop every request
    security.warn_if_open(settings.listen, guards)
    await server.start(settings.listen)
    if http:
        security.warn_if_open(settings.http_listen, guards)
        await http.start(settings.http_listen)
    supervising = asyncio.create_task(fleet.supervise())
    await _until_stopped(supervising)
    await _drain(server, http, settings)
    calls.refuse()  # the links to the workers end next: calls that still come are refused by name, not lost with them
    supervising.cancel()
    await asyncio.wait([supervising])
    for observer in (page, spans):
        if observer:
            observer.stop()
    log.info("stopped")


def _metrics(page: "Page") -> "FrontendMetrics":
    from frontend_service.metrics import FrontendMetrics

    return FrontendMetrics(page.registry)


def _calls(settings: FrontendSettings, keys: ApiKeys | None, spans: "Spans | None") -> Calls:
    return Calls(
        timeout=settings.default_timeout,
        bounds=settings.bounds,
        identify=keys.identify if keys else None,
        accepts=keys.accepts if keys else None,
        begin_span=spans.begin if spans else None,
    )


def _server(
    calls: Calls,
    message_threads: ThreadPoolExecutor,
    tls: Fresh[Identity] | None,
    page: "Page | None",
) -> Server:
    return Server(
        (*PUBLIC_SERVICES, *TEI_SERVICES),
        calls,
        threads=message_threads,
        connection_age=True,
        rpcs=page.rpcs if page else None,
        tell=tei_servicers.tei_error,
        tls=tls,
        received=REQUEST_BYTES,
    )


def _http(
    settings: FrontendSettings,
    frontend: Frontend,
    keys: ApiKeys | None,
    tls: Fresh[Identity] | None,
    page: "Page",
    metrics: "FrontendMetrics",
) -> HttpServer | None:
    """The HTTP API, None where it is not enabled. It shows the metrics even without --metrics."""
    if not settings.http_listen:
        return None
    routes = all_routes(keys=keys is not None, is_draining=lambda: server.draining, metrics=page.text)
    loopback = is_loopback(settings.http_listen)
    app = App(frontend, routes, metrics.http, loopback=loopback, origins=settings.http_cors_origin)
    server = HttpServer(app, tls, settings.drain_seconds)
    return server


async def _until_stopped(supervising: asyncio.Task[None]) -> None:
    """Returns when a signal asks the process to stop."""
    stopping = asyncio.create_task(until_told_to_stop())
    await asyncio.wait([stopping, supervising], return_when=asyncio.FIRST_COMPLETED)
    if supervising.done():
        supervising.result()  # a bug of ours: supervision never ends by itself


async def _drain(server: Server, http: HttpServer | None, settings: FrontendSettings) -> None:
    """Announces over gRPC and HTTP that this replica drains, then answers the calls in progress."""
    await server.announce_drain()
    if http:
        http.announce_drain()
    await tasks.sleep(settings.drain_delay)
    await asyncio.gather(server.stop(settings.drain_seconds), *([http.stop()] if http else []))


def api_keys_of(settings: FrontendSettings) -> ApiKeys | None:
    """The API keys; None where calls need none."""
    path = settings.api_keys
    return security.read_or_exit("api-keys", path, lambda: ApiKeys(path)) if path else None


def worker_transport(settings: FrontendSettings, secret: LinkSecret | None) -> WorkerTransport:
    """The transport to the workers. Ends the process with status 2 and a line where a file cannot be read."""
    transport = WorkerTransport(
        ca=settings.worker_ca,
        secret=secret,
        received=received_bytes(settings.limits.texts),
    )
    security.read_or_exit("worker-ca", transport.ca, transport.credentials)
    if secret and not transport.ca and not all(is_loopback(target) for target in settings.worker):
        log.warning("the link's secret leaves in plain text", without=["--worker-ca"])
    return transport


def raise_file_limit() -> None:
    """Raises the limit of open files to what the connections of both ports need, or as far as it may be raised."""
    needed = 2 * CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def give_back_large_blocks() -> None:
    """From now on blocks of a mebibyte and more go back to the system as soon as they are freed; with glibc only.

    By default glibc learns to keep blocks of up to 32 MiB, in as many arenas as threads: a frontend that once read
    some large requests would keep hundreds of megabytes for ever.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ARENA_MAX, 2)
        mallopt(MMAP_THRESHOLD, LARGE_BYTES)


if __name__ == "__main__":
    frontend_settings = FrontendSettings.read(sys.argv[1:])
    raise_file_limit()
    give_back_large_blocks()
    reporting.configure(frontend_settings.log_level, console=sys.stderr.isatty())
    asyncio.run(main(frontend_settings))
