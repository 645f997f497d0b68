/** What happens when somebody asks: the card, the four tasks, the table of times. */

import { byId, element, facts, heated, table } from "./elements.js";
import { heatMap } from "./heatmap.js";
import { Refused, get, key, post, watchers } from "./service.js";
import { cosine, floats, norm, rows, scale } from "./vectors.js";

const PARTS = ["tokenize", "queue", "compute", "transfer", "postprocess"];
const REQUESTS_SHOWN = 6;
const FIRST_NUMBERS = 6;

const WORDS = { dense: "one vector a text", sparse: "sparse vectors", multi_vector: "a vector a token" };

/** Of each task: why a model cannot do it ("" where it can), and what is done. */
const TASKS = {
  embed: { lacks: (model) => (model.outputs.includes("dense") ? "" : "It does not give one vector a text."), run: embed },
  rerank: { lacks: (model) => (model.tasks.includes("rerank") ? "" : "It does not rank documents."), run: rerank },
  late: { lacks: (model) => (model.outputs.includes("multi_vector") ? "" : "It gives no vectors of tokens."), run: late },
  classify: { lacks: whyNoLabels, run: classify },
};

let models = [];

const chosen = () => models.find((model) => model.id === byId("models").value);

// The tasks: each returns what to say and what to show.

async function embed(model) {
  const texts = [byId("embed-first").value, byId("embed-second").value];
  const reply = await post("v1/embeddings", { model: model.id, input: texts, encoding_format: "base64" });
  const [first, second] = reply.data.map((each) => floats(each.embedding));
  const numbers = (vector) => [...vector.subarray(0, FIRST_NUMBERS)].map((number) => number.toFixed(3)).join(", ");
  const about = facts([
    ["Dimensions", first.length],
    ["Tokens", reply.usage.prompt_tokens],
    ["Lengths of the vectors", `${norm(first).toFixed(3)} and ${norm(second).toFixed(3)}`],
    ["First vector", `${numbers(first)}, …`],
    ["Second vector", `${numbers(second)}, …`],
  ]);
  return [`Cosine similarity ${cosine(first, second).toFixed(4)}`, element("dl", { class: "facts lines" }, ...about)];
}

async function rerank(model) {
  const documents = byId("rerank-documents").value.split("\n").filter((line) => line.trim());
  const reply = await post("v1/rerank", { model: model.id, query: byId("rerank-query").value, documents });
  const heat = scale(reply.results.map((each) => each.relevance_score));
  const lines = reply.results.map((each, place) =>
    element(
      "tr",
      {},
      element("td", { class: "number" }, String(place + 1)),
      heated(element("td", { class: "number" }, each.relevance_score.toPrecision(4)), heat.of(each.relevance_score)),
      element("th", { scope: "row", dir: "auto" }, documents[each.index]),
      element("td", { class: "number" }, String(each.index + 1)),
    ),
  );
  const best = documents[reply.results[0].index];
  const shown = table("Documents, the best one first", ["Rank", "Score", "Document", "Line"], lines);
  return [`${documents.length} documents; the best one: ${best}`, shown];
}

async function late(model) {
  const asked = { model: model.id, encoding_format: "base64", return_token_ids: true };
  const [query, found] = await Promise.all([
    post("v1/multi-vector", { ...asked, input: [byId("late-query").value], input_type: "query" }),
    post("v1/multi-vector", { ...asked, input: [byId("late-document").value], input_type: "document" }),
  ]);
  const [ours, theirs] = [query.data[0], found.data[0]];
  const texts = await textsOf(model, [...ours.token_ids, ...theirs.token_ids]);
  const side = (each) => ({
    tokens: each.token_ids.map((id) => texts.get(id)),
    vectors: rows(each.embeddings, each.shape),
  });
  if (!ours.token_ids.length || !theirs.token_ids.length) return ["One of the texts has no token with a vector."];
  const { score, elements } = heatMap(side(ours), side(theirs));
  const count = ours.token_ids.length;
  const told = `Score ${score.toFixed(3)}: the sum over ${count} query tokens; ${(score / count).toFixed(3)} a token`;
  return [told, ...elements];
}

/** What each token id stands for. */
async function textsOf(model, ids) {
  const known = [...new Set(ids)];
  if (!known.length) return new Map();
  const asked = { model: model.id, ids: known.map((id) => [id]), skip_special_tokens: false };
  const texts = await post("decode", asked);
  return new Map(known.map((id, place) => [id, texts[place].trim() ? texts[place] : `#${id}`]));
}

async function classify(model) {
  const labels = await post("predict", { model: model.id, inputs: byId("classify-text").value });
  const lines = labels.map(({ label, score }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", dir: "auto" }, label),
      heated(element("td", { class: "number" }, score.toFixed(4)), Math.min(Math.max(score, 0), 1)),
    ),
  );
  const [{ label, score }] = labels;
  return [`${label}, ${score.toFixed(4)}`, table("Labels, the best one first", ["Label", "Score"], lines)];
}

function whyNoLabels(model) {
  if (!model.tasks.includes("classify")) return "It has no labels for texts.";
  return model.tasks.includes("rerank") ? "Its labels are of pairs of texts: see Rerank." : "";
}

// The page around them.

/** Runs `work` for a section, one at a time, and says how it ended. `work` returns what to say and what to show. */
async function run(section, work) {
  if (section.ariaBusy === "true") return;
  section.ariaBusy = "true";
  say(section, "Asking …");
  try {
    const [told, ...shown] = await work();
    say(section, told);
    section.querySelector(".result")?.replaceChildren(...shown);
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    if (error.status === 401) byId("key-form").hidden = false;
    say(section, `Error ${error.message}`, true);
    section.querySelector(".result")?.replaceChildren();
  } finally {
    section.ariaBusy = "false";
  }
}

function say(section, text, wrong = false) {
  const status = section.querySelector(".status");
  status.textContent = text;
  status.classList.toggle("wrong", wrong);
}

/** Asks which models there are, and shows the one that was chosen before, or the first. */
async function refresh() {
  const select = byId("models");
  const before = select.value;
  models = [];
  select.replaceChildren();
  try {
    models = (await get("v1/models")).data.filter((model) => model.id === model.root); // its other names are listed too
  } finally {
    select.append(...models.map((model) => element("option", { value: model.id }, model.id)));
    select.disabled = !models.length;
    if (models.some((model) => model.id === before)) select.value = before;
    await show();
  }
  return [""];
}

/** The chosen model's card, and the tasks that it is for. */
async function show() {
  const model = chosen();
  for (const [id, { lacks }] of Object.entries(TASKS)) {
    const why = model ? lacks(model) : "No model is chosen.";
    const section = byId(id);
    const reason = section.querySelector(".reason");
    reason.hidden = !why;
    reason.textContent = model ? `Not with ${model.id}. ${why}` : why;
    section.querySelector("form").hidden = Boolean(why);
    say(section, "");
    section.querySelector(".result").replaceChildren();
  }
  byId("card").replaceChildren(...(model ? facts(cardOf(model, models.length === 1 ? await get("info") : null)) : []));
}

/** `info` tells of the only model, and is null where there are several. */
function cardOf(model, info) {
  const found = [["Name", model.id], ["Tasks", model.tasks.join(", ").replaceAll("_", " ")]];
  if (model.outputs.length) found.push(["Outputs", model.outputs.map((each) => WORDS[each] ?? each).join(", ")]);
  if (model.dimensions) found.push(["Dimensions", model.dimensions]);
  found.push(["Longest text", `${model.max_model_len} tokens`]);
  if (info) found.push(["Numbers", info.model_dtype], ...headOf(info.model_type));
  found.push(["Fingerprint", model.fingerprint.slice(0, 16)]);
  if (info) found.push(["Selvage", info.version]);
  return found;
}

function headOf({ embedding, classifier, reranker }) {
  const labels = Object.values((classifier ?? reranker)?.id2label ?? {});
  if (labels.length) return [["Labels", labels.join(", ")]];
  return embedding?.pooling ? [["Pooling", embedding.pooling]] : [];
}

function tellTimes({ request, status, took, parts }) {
  const times = [took, ...PARTS.map((part) => parts[part])];
  const cells = [status, ...times.map((time) => (time === undefined ? "–" : time.toFixed(1)))];
  byId("times").prepend(
    element(
      "tr",
      {},
      element("th", { scope: "row" }, request),
      ...cells.map((text) => element("td", { class: "number" }, String(text))),
    ),
  );
  byId("times").children[REQUESTS_SHOWN]?.remove();
}

/** Without a key the service would refuse us, and its OpenAPI document, which is open, tells whether it asks for one. */
async function start() {
  const needed = key.value || (await get("openapi.json")).components.securitySchemes;
  byId("key-form").hidden = !needed;
  if (needed && !key.value) {
    await show();
    return ["This service asks for an API key."];
  }
  return refresh();
}

const card = byId("model");
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.value = byId("key").value.trim();
  run(card, refresh);
});
byId("model-form").addEventListener("submit", (event) => {
  event.preventDefault();
  run(card, refresh);
});
byId("models").addEventListener("change", () => run(card, async () => [await show()]));
for (const [id, task] of Object.entries(TASKS)) {
  const section = byId(id);
  section.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    run(section, async () => {
      const model = chosen();
      const found = await task.run(model);
      return model === chosen() ? found : [""]; // another one was chosen meanwhile
    });
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.form) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});
byId("times-head").append(
  element("tr", {}, ...["Request", "Status", "Waited", ...PARTS].map((head) => element("th", { scope: "col" }, head))),
);
watchers.push(tellTimes);
run(card, start);
