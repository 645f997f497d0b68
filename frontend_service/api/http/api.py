"""The whole API over HTTP: all routes, the application and its server."""

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
from shared.security import Fresh, Identity

DIALECTS = (openai, models, cohere, vllm, nim, tei)


def http_server(
    frontend: Frontend,
    *,
    keys: bool,
    metrics: Callable[[], tuple[bytes, str]],
    observe_call: ObserveCall | None = None,
    tls: Fresh[Identity] | None = None,
    drain_seconds: float,
    hosts: Hosts = ALL_HOSTS,
    cors: Cors = NO_CORS,
) -> HttpServer:
    """Builds the server, which is not started yet.

    `keys`: whether callers need an API key; `metrics`: returns the page for Prometheus and its content type;
    `hosts`: hosts that requests may be for; `cors`: web pages of other sites that may call the API.
    """
    model_routes = [route for dialect in DIALECTS for route in dialect.routes(frontend)]

    def is_draining() -> bool:
        return server.draining

    page_routes = page.routes(frontend, model_routes, keys=keys, is_draining=is_draining, metrics=metrics)
    app = App(frontend, [*model_routes, *page_routes], observe_call, hosts=hosts, cors=cors)
    server = HttpServer(app, tls, drain_seconds)
    return server
