"""Composition root of the frontend: settings -> objects -> serve until SIGTERM."""

import asyncio
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import structlog

from frontend_service.api_keys import ApiKeys
from frontend_service.doors.http.door import http_server
from frontend_service.doors.http.server import HttpServer
from frontend_service.doors.spoken import Doors
from frontend_service.frontend import Frontend
from frontend_service.service import Service
from frontend_service.settings import FrontendSettings
from frontend_service.worker.fleet import Fleet
from frontend_service.worker.way import Way
from shared import guards, logs, observers
from shared.admission import Admission
from shared.caller import Caller
from shared.calls import Calls
from shared.link_secret import LinkSecret
from shared.memory import give_back_large_blocks
from shared.observers import FrontendFigures
from shared.serving import Server, until_told_to_stop
from shared.tls import is_loopback

log = structlog.get_logger("frontend")


async def main(settings: FrontendSettings) -> None:
    threads, messages = ThreadPoolExecutor(settings.thread_count, "text"), ThreadPoolExecutor(2, "message")
    page = observers.page(settings, shown="http" in settings.doors)
    spans = observers.spans(settings, "selvage-frontend")
    metrics = page.frontend() if page else None
    keys = api_keys_of(settings)
    calls = Calls(
        timeout=settings.default_timeout,
        bounds=settings.bounds,
        identify=keys.identify if keys else None,
        log_calls=settings.log_calls,
        begin_span=spans.begin if spans else None,
    )
    tls, secret = guards.tls_of(settings), guards.link_secret_of(settings)
    doors = Doors(settings.doors)
    server = Server(
        doors.services,
        calls,
        threads=messages,
        reflect=settings.reflection,
        connection_age=True,
        rpcs=page.rpcs if page else None,
        tell=doors.tell,
        tls=tls,
    )
    fleet = Fleet(settings.worker, messages, server.set_ready, way_to_workers(settings, secret))
    service = Service(fleet, settings.limits, threads, messages, reserve=calls.admission.reserve)
    told_times = [each.times for each in (metrics, spans) if each]
    frontend = Frontend(service, calls, told_times, settings.thread_count)
    doors.register(frontend, server.grpc)
    http = None
    if page and metrics and "http" in settings.doors:
        http = http_server(
            frontend,
            keys=keys is not None,
            metrics=page.text,
            tell=metrics.http,
            tls=tls,
            drain_seconds=settings.drain_seconds,
        )

    def check(caller: Caller) -> None:
        known_here = doors.known_here(caller.method) or (http is not None and http.known_here(caller.method))
        if not known_here:
            fleet.check(calls.terms(caller))

    calls.check = check
    if metrics:
        metrics.read(lambda: figures_of(calls.admission, fleet))
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look at all of it, and stop every request
    strangers = {"--tls-certificate": tls, "--api-keys or --tls-ca": keys or settings.tls_ca}
    guards.warn_if_open(settings.listen, strangers)
    await server.start(settings.listen)
    if http:
        guards.warn_if_open(settings.http_listen, strangers)
        await http.start(settings.http_listen)
    supervising = asyncio.create_task(fleet.supervise())
    await _until_told(supervising)
    await _drain(server, http, settings)
    calls.refuse()  # the link to the worker ends next: what a door still lets in is refused by name, not lost in it
    service.close()
    supervising.cancel()
    await asyncio.wait([supervising])
    if page:
        page.stop()
    if spans:
        spans.stop()
    log.info("stopped")


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


def way_to_workers(settings: FrontendSettings, secret: LinkSecret | None) -> Way:
    """Ends the process with status 2 and a line where a file of it is not there."""
    way = Way(
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
