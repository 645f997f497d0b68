/** Requests to the door that this page came from. Addresses are relative, so a prefix before them does no harm. */

const KEY = "selvage-api-key";

/** The service said no; the message is what it told. */
export class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get value() {
    return sessionStorage.getItem(KEY) ?? "";
  },
  set value(given) {
    if (given) sessionStorage.setItem(KEY, given);
    else sessionStorage.removeItem(KEY);
  },
};

/** Called after each reply with `{request, status, took, parts}`, in milliseconds. */
export const watchers = [];

export const get = (path) => ask("GET", path, {});

export const post = (path, body) =>
  ask("POST", path, { headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

async function ask(method, path, options) {
  const headers = { ...options.headers };
  if (key.value) headers.authorization = `Bearer ${key.value}`;
  const start = performance.now();
  let reply, text;
  try {
    reply = await fetch(path, { ...options, method, headers, cache: "no-store" });
    text = await reply.text();
  } catch (error) {
    throw new Refused(`The service cannot be reached: ${error.message}`);
  }
  const took = performance.now() - start;
  const parts = partsOf(reply.headers.get("server-timing") ?? "");
  for (const tell of watchers) tell({ request: `${method} /${path}`, status: reply.status, took, parts });
  if (!reply.ok) throw new Refused(refusal(reply, text), reply.status);
  return JSON.parse(text);
}

/** Of a header such as `queue;dur=0.12, compute;dur=3.4`. */
function partsOf(header) {
  return Object.fromEntries(
    header
      .split(",")
      .map((part) => part.trim().split(";dur="))
      .filter((pair) => pair.length === 2)
      .map(([name, milliseconds]) => [name, Number(milliseconds)]),
  );
}

/** In the service's words, whichever shape they have. */
function refusal(reply, text) {
  let told = text || reply.statusText;
  try {
    const body = JSON.parse(text);
    told = body.error?.message ?? body.message ?? body.error ?? told;
  } catch {
    // something between us and the service answered
  }
  const again = reply.headers.get("retry-after");
  return `${reply.status}: ${told}${again ? ` (try again in ${again} s)` : ""}`;
}
