"""The client that blocks, over a channel of gRPC."""

from collections.abc import Iterable, Mapping

import grpc

from selvage.blocking import Blocking
from selvage.connection import TLS, Settings


class Client(Blocking):
    """A connection to a frontend, or to many behind one name.

    Threads may share it. A process that forks makes its clients after the fork: gRPC's threads do not survive it.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        model: str = "",
        key: str = "",
        tls: TLS | bool = False,
        timeout: float = 60.0,
        retries: int = 5,
        in_flight: int = 4,
        fairness_key: str = "",
        priority: str = "",
        metadata: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """`target`: host:port, or dns:///name:port with many addresses, which calls take in turns.

        `model`: which one calls mean unless they say so; empty: the only one. `key`: sent as `authorization: Bearer`.
        `tls`: True, or `TLS` with files of your own. `timeout`: seconds for a call, all its parts and retries included;
        `math.inf`: as long as it takes. `retries`: of each part, where the service is overloaded or not there; 0: none.
        `in_flight`: parts of a large input that are sent at a time. `fairness_key`: who you are to the service, which
        serves keys evenly. `priority`: "interactive", "default" or "bulk". `metadata`: sent with each call.

        Nothing is sent yet. Raises ValueError for what makes no sense.
        """
        settings = Settings.of(
            target,
            model=model,
            key=key,
            tls=tls,
            timeout=timeout,
            retries=retries,
            in_flight=in_flight,
            fairness_key=fairness_key,
            priority=priority,
            metadata=metadata,
        )
        super().__init__(settings, settings.channel(grpc))
