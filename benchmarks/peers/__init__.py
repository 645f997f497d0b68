"""Peers that live apart: what pip installs for each (NAME.txt), and how they are run.

infinity.py   a server over HTTP
peer.py       a process that answers lines, from outside; answering.py is its end, *_peer.py what it runs
venv.py       the Python that each has of its own
"""
