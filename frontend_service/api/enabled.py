"""The doors that speak gRPC, by the names that --doors takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from frontend_service.api.selvage_v1.server import register as register_selvage
from frontend_service.api.tei_v1.codec.errors import told as told_as_tei
from frontend_service.api.tei_v1.server import register as register_tei
from frontend_service.application.frontend import Frontend
from selvage.v1 import model_pb2
from shared.errors import SelvageError
from shared.server.rpc.interceptor import TellStatus, unchanged
from shared.server.services import PUBLIC_SERVICES, TEI_SERVICES
from tei.v1 import tei_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcApi:
    """A contract. `services`: full names; `known_here`: those of them that wait for no worker; `tell`: its errors."""

    services: tuple[str, ...]
    known_here: tuple[str, ...]
    register: Callable[[Frontend, grpc.aio.Server], None]
    tell: TellStatus = unchanged


DOORS = {
    "grpc": GrpcApi(
        services=PUBLIC_SERVICES,
        known_here=(model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,),
        register=register_selvage,
    ),
    "tei": GrpcApi(
        services=TEI_SERVICES,
        known_here=tuple(tei_pb2.DESCRIPTOR.services_by_name[name].full_name for name in ("Info", "Tokenize")),
        register=register_tei,
        tell=told_as_tei,
    ),
}


class EnabledApis:
    """Those that were chosen."""

    def __init__(self, names: Sequence[str]) -> None:
        chosen = [DOORS[name] for name in dict.fromkeys(names) if name in DOORS]
        self._registers = [door.register for door in chosen]
        self._doors = {service: door for door in chosen for service in door.services}

    @property
    def services(self) -> tuple[str, ...]:
        """Full names of all."""
        return tuple(self._doors)

    def register(self, frontend: Frontend, server: grpc.aio.Server) -> None:
        """Adds all services to a server."""
        for register in self._registers:
            register(frontend, server)

    def known_here(self, method: str) -> bool:
        """Whether calls of a method wait for no worker."""
        service = _service(method)
        door = self._doors.get(service)
        return door is not None and service in door.known_here

    def tell(self, method: str, error: SelvageError) -> SelvageError:
        """An error in the words of the door that has this method."""
        door = self._doors.get(_service(method))
        return error if door is None else door.tell(method, error)


def _service(method: str) -> str:
    """Of /tei.v1.Embed/EmbedStream."""
    return method[1:].partition("/")[0]
