"""The whole door."""

from collections.abc import Callable

from frontend_service.api.http import page
from frontend_service.api.http.app import ALL_HOSTS, NO_CORS, App, ObserveCall
from frontend_service.api.http.cors import Cors
from frontend_service.api.http.dialects import models, nim, openai, vllm
from frontend_service.api.http.dialects.cohere import routes as cohere
from frontend_service.api.http.dialects.tei import routes as tei
from frontend_service.api.http.head import Hosts
from frontend_service.api.http.server import HttpServer
from frontend_service.application.frontend import Frontend
from shared.security.reloaded_file import Fresh
from shared.security.tls import Identity

DIALECTS = (openai, models, cohere, vllm, nim, tei)


def http_server(
    frontend: Frontend,
    *,
    keys: bool,
    metrics: Callable[[], tuple[bytes, str]],
    tell: ObserveCall | None = None,
    tls: Fresh[Identity] | None = None,
    drain_seconds: float,
    hosts: Hosts = ALL_HOSTS,
    cors: Cors = NO_CORS,
) -> HttpServer:
    """Not started yet. `keys`: whether callers need one; `metrics`: the page for Prometheus and its content type;
    `hosts`: those that requests may be for; `cors`: pages of other sites that may ask.
    """
    answered = [route for shape in DIALECTS for route in shape.routes(frontend)]

    def is_draining() -> bool:
        return server.draining

    looked_at = page.routes(frontend, answered, keys=keys, is_draining=is_draining, metrics=metrics)
    app = App(frontend, [*answered, *looked_at], tell, hosts=hosts, cors=cors)
    server = HttpServer(app, tls, drain_seconds)
    return server
