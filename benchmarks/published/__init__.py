"""The tables that vLLM's developers published, made here beside vLLM: the same requests to both servers in turns."""
