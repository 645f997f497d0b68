"""The client's methods, and how their calls are split and retried. No I/O: the transport sends and waits.

methods         a function for each method: its signature, its docstring, its request; such a function -> a method
split_call      one call as several requests: what to send next, which errors are tried again, and when
streamed_call   texts without end: which of them are sent together
"""
