"""The rpcs of the public contract, by the class of their request. Read from the contract's descriptors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2


@dataclass(frozen=True, slots=True)
class Rpc:
    """An rpc of the contract. `path`: its name as gRPC sends it. `reply`: the function that parses a reply's bytes."""

    path: str
    reply: Callable[[bytes], Any]


RPCS: dict[type[Any], Rpc] = {
    GetMessageClass(method.input_type): Rpc(
        f"/{service.full_name}/{method.name}", GetMessageClass(method.output_type).FromString
    )
    for contract in (embedding_pb2, ranking_pb2, classification_pb2, model_pb2)
    for service in contract.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
