"""The client whose methods block, over a channel of gRPC."""

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
        """`target`: host:port, or dns:///name:port with many addresses, which serve calls in turn.

        - `model`: the model of calls that name none; empty: the only one.
        - `key`: the API key, sent as `authorization: Bearer`.
        - `tls`: True, or `TLS` with certificates of your own.
        - `timeout`: seconds for a call, including all its parts and retries; `math.inf`: as long as it takes.
        - `retries`: how often a part is sent again where the service is overloaded or unavailable; 0: never.
        - `in_flight`: how many parts of a large input are sent at a time.
        - `fairness_key`: your name to the service, which serves keys evenly.
        - `priority`: "interactive", "default" or "bulk".
        - `metadata`: sent with each call.

        Nothing is sent yet. Raises ValueError for values that make no sense.
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
