/** Query tokens against document tokens. A side is `{tokens, vectors}`. */

import { element, heated, table } from "./elements.js";
import { maxSim, scale } from "./vectors.js";

const ROWS = 64;
const COLUMNS = 128;

/** `{score, elements}`; both sides have at least one token. */
export function heatMap(query, document) {
  const found = maxSim(query.vectors, document.vectors);
  const { winners } = found;
  const shownRows = [...query.tokens.keys()].slice(0, ROWS);
  const won = new Set(winners);
  const places = [...document.tokens.keys()];
  const shownColumns = places.length > COLUMNS ? places.filter((place) => won.has(place)).slice(0, COLUMNS) : places;
  const heat = scale(shownRows.flatMap((row) => shownColumns.map((column) => found.products[row][column])));
  const rows = shownRows.map((row) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", dir: "auto" }, query.tokens[row]),
      ...shownColumns.map((column) => cell(found.products[row][column], heat, column === winners[row])),
    ),
  );
  const drawn = table(
    "Similarity of each query token (rows) with each document token (columns)",
    ["Query \\ document", ...shownColumns.map((column) => document.tokens[column])],
    rows,
  );
  drawn.classList.add("heat-map");
  const left = leftOut(query, document, shownRows, shownColumns);
  return { score: found.score, elements: [legend(heat), ...left, drawn, summary(query, document, found)] };
}

function cell(product, heat, wins) {
  const made = heated(element("td", {}, product.toFixed(2)), heat.of(product));
  if (wins) {
    made.classList.add("winner");
    made.prepend(element("span", { "aria-hidden": "true" }, "★ "));
    made.append(element("span", { class: "unseen" }, " wins"));
  }
  return made;
}

function legend({ low, high }) {
  const bar = element("span", { class: "ramp", "aria-hidden": "true" });
  return element(
    "p",
    { class: "legend" },
    element("span", {}, `${low.toFixed(2)} `, bar, ` ${high.toFixed(2)}`),
    element("span", {}, "★ and a frame: the document token that wins the row"),
  );
}

function leftOut(query, document, shownRows, shownColumns) {
  const told = [];
  if (shownRows.length < query.tokens.length) {
    told.push(`The first ${ROWS} of ${query.tokens.length} query tokens are shown.`);
  }
  if (shownColumns.length < document.tokens.length) {
    told.push(`Of ${document.tokens.length} document tokens only those that win are shown.`);
  }
  return told.length ? [element("p", { class: "note" }, told.join(" "))] : [];
}

/** The winners as a text: the same without looking at colours. */
function summary(query, document, { products, winners }) {
  const lines = query.tokens.map((token, row) =>
    element(
      "li",
      {},
      element("bdi", {}, token),
      " → ",
      element("bdi", {}, document.tokens[winners[row]]),
      ` ${products[row][winners[row]].toFixed(2)}`,
    ),
  );
  return element(
    "div",
    { class: "winners" },
    element("h3", {}, "Winners: query token → document token, similarity"),
    element("ol", {}, ...lines),
  );
}
