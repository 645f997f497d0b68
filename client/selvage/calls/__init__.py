"""The client's methods, and how their calls are split, retried and shown. No I/O: the clients send and wait.

methods         a function for each method: its signature, its docstring, its request
embed_methods   the same for embed and embed_stream
signatures      such a function -> a method of a client
split_call      one call as several requests: what to send next, when to try again
streamed_call   texts without end: what to send next, which results are ready
retries         which errors are tried again, and when
rpcs            the rpc of each request
progress        how far a call is, on standard error
"""
