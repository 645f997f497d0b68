"""Composition root of the frontend: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from frontend_service.access.api_keys import ApiKeys
from frontend_service.api.enabled import EnabledApis
from frontend_service.api.http.api import http_server
from frontend_service.api.http.cors import Cors
from frontend_service.api.http.head import Hosts
from frontend_service.api.http.server import HttpServer
from frontend_service.application.frontend import Frontend
from frontend_service.services.pipeline import Pipeline
from frontend_service.settings import FrontendSettings
from frontend_service.workers.fleet import Fleet
from frontend_service.workers.transport import WorkerTransport
from shared.caller import Caller
from shared.memory import give_back_large_blocks
from shared.security import guards
from shared.security.link_secret import LinkSecret
from shared.security.reloaded_file import Fresh
from shared.security.tls import Identity, is_loopback
from shared.server.admission import Admission
from shared.server.calls import Calls
from shared.server.serving import Server, until_told_to_stop
from shared.telemetry import logs, observers
from shared.telemetry.figures import FrontendFigures

if TYPE_CHECKING:  # their libraries are imported only where metrics or traces are asked for
    from shared.telemetry.metrics import FrontendMetrics, Page
    from shared.telemetry.spans import Spans

log = structlog.get_logger("frontend")


async def main(settings: FrontendSettings) -> None:
    threads, messages = ThreadPoolExecutor(settings.thread_count, "text"), ThreadPoolExecutor(2, "message")
    page = observers.page(settings, shown="http" in settings.doors)
    spans = observers.spans(settings, "selvage-frontend")
    metrics = page.frontend() if page else None
    guarded = Guarded(keys=api_keys_of(settings), tls=guards.tls_of(settings))
    calls = _calls(settings, guarded, spans)
    doors = EnabledApis(settings.doors)
    server = _server(settings, calls, doors, messages, guarded, page)
    way = way_to_workers(settings, guards.link_secret_of(settings))
    fleet = Fleet(settings.worker, messages, server.set_ready, way)
    service = Pipeline(fleet, settings.limits, threads, messages, reserve=calls.admission.reserve)
    told_times = [each.times for each in (metrics, spans) if each]
    frontend = Frontend(service, calls, told_times, settings.thread_count)
    doors.register(frontend, server.grpc)
    http = _http(settings, frontend, guarded, page, metrics) if page and metrics else None
    calls.check = _check(calls, fleet, doors, http)
    if metrics:
        metrics.read(lambda: figures_of(calls.admission, fleet))
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look at all of it, and stop every request
    guards.warn_if_open(settings.listen, guarded.strangers(settings))
    await server.start(settings.listen)
    if http:
        guards.warn_if_open(settings.http_listen, guarded.strangers(settings))
        await http.start(settings.http_listen)
    supervising = asyncio.create_task(fleet.supervise())
    await _until_told(supervising)
    await _drain(server, http, settings)
    calls.refuse()  # the link to the worker ends next: what a door still lets in is refused by name, not lost in it
    service.close()
    supervising.cancel()
    await asyncio.wait([supervising])
    for observer in (page, spans):
        if observer:
            observer.stop()
    log.info("stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """By what callers are let in; None: by nothing."""

    keys: ApiKeys | None
    tls: Fresh[Identity] | None

    def strangers(self, settings: FrontendSettings) -> dict[str, object]:
        """What keeps them out of an address that others reach, by its flag."""
        return {"--tls-certificate": self.tls, "--api-keys or --tls-ca": self.keys or settings.tls_ca}


def _calls(settings: FrontendSettings, guarded: Guarded, spans: "Spans | None") -> Calls:
    return Calls(
        timeout=settings.default_timeout,
        bounds=settings.bounds,
        identify=guarded.keys.identify if guarded.keys else None,
        log_calls=settings.log_calls,
        begin_span=spans.begin if spans else None,
    )


def _server(
    settings: FrontendSettings,
    calls: Calls,
    doors: EnabledApis,
    threads: ThreadPoolExecutor,
    guarded: Guarded,
    page: "Page | None",
) -> Server:
    return Server(
        doors.services,
        calls,
        threads=threads,
        reflect=settings.reflection,
        connection_age=True,
        rpcs=page.rpcs if page else None,
        tell=doors.tell,
        tls=guarded.tls,
    )


def _http(
    settings: FrontendSettings, frontend: Frontend, guarded: Guarded, page: "Page", metrics: "FrontendMetrics"
) -> HttpServer | None:
    """Where it is one of the doors; it shows the metrics, whoever else does."""
    if "http" not in settings.doors:
        return None
    return http_server(
        frontend,
        keys=guarded.keys is not None,
        metrics=page.text,
        tell=metrics.http,
        tls=guarded.tls,
        drain_seconds=settings.drain_seconds,
        hosts=Hosts.of(settings.http_listen, settings.http_host),
        cors=Cors(frozenset(settings.http_cors_origin)),
    )


def _check(calls: Calls, fleet: Fleet, doors: EnabledApis, http: HttpServer | None) -> Callable[[Caller], None]:
    """Whether anybody could answer a call in time, for those that need a worker."""

    def check(caller: Caller) -> None:
        known_here = doors.known_here(caller.method) or (http is not None and http.known_here(caller.method))
        if not known_here:
            fleet.check_terms(calls.terms(caller))

    return check


async def _until_told(supervising: asyncio.Task[None]) -> None:
    """To stop."""
    told = asyncio.create_task(until_told_to_stop())
    await asyncio.wait([told, supervising], return_when=asyncio.FIRST_COMPLETED)
    if supervising.done():
        supervising.result()  # a bug of ours: supervision never ends by itself


async def _drain(server: Server, http: HttpServer | None, settings: FrontendSettings) -> None:
    """Both doors tell balancers so first, then answer what they have."""
    await server.announce_drain()
    if http:
        http.announce_drain()
    await asyncio.sleep(settings.drain_delay)
    await asyncio.gather(server.stop(settings.drain_seconds), *([http.stop()] if http else []))


def api_keys_of(settings: FrontendSettings) -> ApiKeys | None:
    """None: everybody may ask."""
    path = settings.api_keys
    return guards.read("api-keys", path, lambda: ApiKeys(path)) if path else None


def way_to_workers(settings: FrontendSettings, secret: LinkSecret | None) -> WorkerTransport:
    """Ends the process with status 2 and a line where a file of it is not there."""
    way = WorkerTransport(
        ca=settings.worker_ca,
        certificate=settings.worker_certificate,
        key=settings.worker_key,
        name=settings.worker_name,
        secret=secret,
    )
    guards.read("worker-ca", way.ca, way.credentials)
    if secret and not way.ca and not all(is_loopback(each) for each in settings.worker):
        log.warning("the link's secret leaves in plain text", without=["--worker-ca"])
    return way


def figures_of(admission: Admission, fleet: Fleet) -> FrontendFigures:
    """What metrics tell of both; another thread asks."""
    return FrontendFigures(
        requests=admission.requests,
        size=admission.size,
        results=admission.results,
        unread=admission.unread,
        refused=dict(admission.refused) | dict(fleet.refused),
        workers=fleet.workers,
        waits=fleet.waits,
    )


if __name__ == "__main__":
    chosen = FrontendSettings.read(sys.argv[1:])
    give_back_large_blocks()
    logs.configure(chosen.log_format, chosen.log_level)
    asyncio.run(main(chosen))
