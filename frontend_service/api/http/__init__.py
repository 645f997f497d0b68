"""HTTP with JSON, in the shapes that people's clients speak. llhttp reads HTTP, msgspec reads JSON, orjson writes it.

door.py       all of it, from what the frontend is
server.py     the port: bound, served, drained
connection.py one connection: requests and their responses in order, and how long it may take
present.py    everybody who is connected, and how that ends
parser.py     bytes to requests
cycle.py      one request and its response, as ASGI has both
app.py        one call: route, caller, body, answer, reply
head.py       what a request's head must hold, and for which hosts it may be
cors.py       pages of other sites that may ask
arrival.py    how a body arrives
route.py      what there is to be asked for
body.py       bytes to what a route takes
leniency.py   what a body may have beside strict JSON of its struct
refusing.py   fields that an original knows and nothing here can honour
reply.py      what goes back
errors.py     an error in the words of a shape
page.py       what there is to be looked at: health, metrics,
assets.py     the playground at /, whose files are in playground/,
openapi.py    the OpenAPI document,
manual.py     the same as a page for a person
shapes/       OpenAI's, Cohere's, vLLM's and text-embeddings-inference's requests and replies, a file each
"""
