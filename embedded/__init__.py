"""Both services in one process, without a port: `from selvage import Engine`.

engine.py     Engine: the client's methods over what is here
channel.py    calls as a `grpc.Channel` makes them, to handlers in this process
stream.py     one EmbedStream of it
pair.py       the worker, the frontend's services, and the event loop they live on
resident.py   the worker of this process, as the services see workers
"""
