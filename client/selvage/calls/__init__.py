"""The client's methods, and how their calls are split, retried and shown. No I/O: the transport sends and waits.

methods         a function for each method: its signature, its docstring, its request; such a function -> a method
embed_methods   the functions of embed and embed_stream
split_call      one call as several requests: what to send next, which errors are tried again, and when
streamed_call   texts without end: what to send next, which results are ready
progress        how far a call is, on standard error
"""
