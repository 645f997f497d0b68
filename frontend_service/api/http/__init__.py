"""JSON over HTTP, in the dialects of widespread clients. llhttp reads HTTP, msgspec reads JSON, orjson and
pybase64 write it.

api.py              the whole API: all routes, the application and its server
server.py           the port: bound, served, drained
connection.py       one connection: requests and their responses in order, and their time limits
open_connections.py all connections of a port, and how they end
parser.py           bytes to requests
cycle.py            one request and its response, as ASGI has both
app.py              one call: route, caller, body, answer, reply
head.py             checks of a request's head, and of the host that it is for
cors.py             web pages of other sites that may call the API
arrival.py          how a body arrives
route.py            routes and their endpoints
body.py             JSON to the struct that a route takes
leniency.py         bodies that are not strictly JSON of their struct
refused_fields.py   fields that the original API has and this one cannot honour
choices.py          words that a field may have, for errors
reply.py            replies: JSON to bytes
errors.py           errors as HTTP replies, in the form of each dialect
page.py             routes without requests to a model: health, metrics,
assets.py           the playground at /, whose files are in playground/,
openapi.py          the OpenAPI document,
manual.py           the same as a page for a person
dialects/           requests and replies of OpenAI, Cohere, vLLM, NIM and text-embeddings-inference
"""
