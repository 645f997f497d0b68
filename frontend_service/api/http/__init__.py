"""JSON over HTTP, in the dialects of widespread clients. uvicorn and Starlette serve HTTP, msgspec reads JSON, orjson
and pybase64 write it.

pages.py        the whole API: all routes, and those that ask no model, whose files are in playground/
server.py       the port: uvicorn, bound, served, drained
app.py          one call: head, route, caller, body, answer, reply
route.py        routes and their endpoints
fields.py       JSON to the struct that a route takes; refused fields
replies.py      replies: JSON, numbers and base64
errors.py       errors as HTTP replies, in the form of each dialect
openapi.py      the OpenAPI document, and a page that shows it
openai.py, vllm.py with vllm_fields.py, cohere.py, nim.py, tei.py with tei_bodies.py
                requests and replies of each dialect <-> domain types, both directions side by side, and its routes
"""
