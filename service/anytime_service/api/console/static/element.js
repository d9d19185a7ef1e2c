// Creation of elements. Text is always set as text, never as markup: names of models, groups and features are user input.

export const byId = (id) => document.getElementById(id);

/** Create an element with properties (`class`, `data-*` and `aria-*` as attributes) and children, texts or elements. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && !name.includes("-")) made[name] = value;
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Fill a table with a caption, headings and rows; the first cell of a row is its heading. */
export function fillTable(table, caption, heads, rows) {
  table.replaceChildren(
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map(([head, ...cells]) =>
      element("tr", {}, element("th", { scope: "row" }, head), ...cells.map((cell) => element("td", {}, cell))))),
  );
}
