"""The APIs over gRPC."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from frontend_service.api.selvage_v1.server import register as register_selvage
from frontend_service.api.tei_v1.server import register as register_tei
from frontend_service.api.tei_v1.tei_errors import tei_error
from frontend_service.application.frontend import Frontend
from selvage.v1 import model_pb2
from shared.errors import SelvageError
from shared.server.interceptor import TellStatus, unchanged
from shared.server.options import PUBLIC_SERVICES, TEI_SERVICES
from tei.v1 import tei_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcApi:
    """The services of one contract, and how they are added to a server.

    `services`: full names of all services; `local_services`: names of those that need no worker; `adapt_error`: gives
    an error the field, message and status that this contract has for it.
    """

    services: tuple[str, ...]
    local_services: tuple[str, ...]
    register: Callable[[Frontend, grpc.aio.Server], None]
    adapt_error: TellStatus = unchanged


SELVAGE, TEI = (
    GrpcApi(
        services=PUBLIC_SERVICES,
        local_services=(model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,),
        register=register_selvage,
    ),
    GrpcApi(
        services=TEI_SERVICES,
        local_services=tuple(tei_pb2.DESCRIPTOR.services_by_name[name].full_name for name in ("Info", "Tokenize")),
        register=register_tei,
        adapt_error=tei_error,
    ),
)


class EnabledApis:
    """The gRPC APIs of a server."""

    def __init__(self, apis: Sequence[GrpcApi] = (SELVAGE, TEI)) -> None:
        self._registers = [api.register for api in apis]
        self._apis = {service: api for api in apis for service in api.services}

    @property
    def services(self) -> tuple[str, ...]:
        """Full names of all services."""
        return tuple(self._apis)

    def register(self, frontend: Frontend, server: grpc.aio.Server) -> None:
        """Adds all services to a server."""
        for register in self._registers:
            register(frontend, server)

    def needs_no_worker(self, method: str) -> bool:
        """Tells whether calls of a method are answered without a worker."""
        service = _service(method)
        api = self._apis.get(service)
        return api is not None and service in api.local_services

    def adapt_error(self, method: str, error: SelvageError) -> SelvageError:
        """Adapts an error to the API that the method belongs to."""
        api = self._apis.get(_service(method))
        return error if api is None else api.adapt_error(method, error)


def _service(method: str) -> str:
    """The full name of a method's service: tei.v1.Embed for /tei.v1.Embed/EmbedStream."""
    return method[1:].partition("/")[0]
