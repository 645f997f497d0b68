"""What both servers and all channels have in common where gRPC is spoken; policy lies in `shared.server.calls`."""

from shared.server.rpc.options import LINK_VERSION, channel_options, server_options
from shared.wire import MESSAGE_BYTES

__all__ = ["LINK_VERSION", "MESSAGE_BYTES", "channel_options", "server_options"]
