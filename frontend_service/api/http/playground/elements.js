/** Elements of the page. Texts go in as texts, never as HTML. */

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A list of names and values. */
export function facts(pairs) {
  return pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));
}

/** A table that scrolls by itself, by keyboard too. `heads`: of the columns. */
export function table(caption, heads, rows) {
  const columns = heads.map((head) => element("th", { scope: "col", dir: "auto" }, head));
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", {}, element("span", {}, caption)),
      element("thead", {}, element("tr", {}, ...columns)),
      element("tbody", {}, ...rows),
    ),
  );
}

/** Colours an element by `share`, 0 to 1. */
export function heated(cell, share) {
  cell.classList.add("heat");
  cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
  return cell;
}
