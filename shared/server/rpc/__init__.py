"""What both servers and all channels have in common where gRPC is spoken; policy lies in `shared.server.calls`."""

from shared.codec.wire import MESSAGE_BYTES
from shared.server.rpc.options import LINK_VERSION, REQUEST_BYTES, channel_options, server_options

__all__ = ["LINK_VERSION", "MESSAGE_BYTES", "REQUEST_BYTES", "channel_options", "server_options"]
