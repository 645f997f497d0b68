"""Both services in one process, without a port: `from selvage import Engine`.

engine.py     Engine: the client's methods over what is here
options.py    its options
services.py   the worker, and the frontend's services on a unix socket
"""
