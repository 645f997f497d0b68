"""Two-way streams: how requests are read and replies are written, without messages and without gRPC."""
