"""Both services in one process, without a port: `from selvage import Engine`.

engine.py     Engine: the client's methods over a pair
channel.py    the part of `grpc.Channel` that clients use, to handlers in this process
stream.py     its bidirectional streams
pair.py       a worker and the frontend's services on one event loop
resident.py   the frontend's `Worker` interface over that worker
options.py    the options of `Engine`
refused.py    errors of calls, in gRPC's form
"""
