"""Others to compare with, each in a process and mostly a Python of its own (NAME.txt lists what pip installs there).

process.py     such a process from outside: a line of JSON asks for a run, a line tells what it took
answering.py   its end of the pipe; selvage_peer.py (our engine, of any checkout), sentence_transformers_peer.py,
               onnx_peer.py and maxsim_peer.py are what it runs
infinity.py    a server over HTTP
"""
