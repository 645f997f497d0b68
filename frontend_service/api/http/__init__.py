"""JSON over HTTP, in the dialects of widespread clients. uvicorn and Starlette serve HTTP, msgspec reads JSON, orjson
and pybase64 write it.

pages.py        the whole API: all routes, those that ask no model, and its OpenAPI document; files are in playground/
port.py         the port: uvicorn, bound, served, drained
app.py          one call: head, route, caller, body, answer, reply
routes.py       routes, calls whose bodies have arrived, and replies: JSON, numbers and base64
fields.py       JSON to the struct that a route takes; refused fields
error_replies.py  errors as HTTP replies, in the form of each dialect
openai.py, vllm.py with vllm_fields.py, cohere.py, tei.py with tei_bodies.py
                requests and replies of each dialect <-> domain types, both directions side by side, and its routes
"""
