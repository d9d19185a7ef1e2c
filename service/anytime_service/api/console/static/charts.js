// Charts: pictures of the model, which the service draws and this page marks, and rows of bars for what changes with each answer.

import { element } from "./element.js";
import { bar, bars, number, percent, signed } from "./words.js";

const SHOWN = 12; // maximum number of rows of bars

const SVG = "http://www.w3.org/2000/svg";

/** Show a chart of the service, an HTML element as text, and return its picture with its plane. */
function picture(place, html) {
  const figure = new DOMParser().parseFromString(html, "text/html").body.firstChild;
  place.append(document.adoptNode(figure));
  const svg = figure.querySelector("svg");
  const [x, y, names, [left, right, bottom, top]] = ["x", "y", "names", "frame"].map((key) => JSON.parse(svg.dataset[key] ?? "null"));
  const along = (value, [low, high], from, to) => from + (Math.min(Math.max((value - low) / (high - low), 0), 1)) * (to - from);
  const add = (tag, attributes, title) => {
    const shape = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
    shape.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: title }));
    svg.append(shape);
  };
  return {
    figure, names, left, right, bottom, top, add, x: (value) => along(value, x, left, right), y: (value) => along(value, y, bottom, top),
    /** Add a diamond. */
    mark(value, height, title) {
      const [a, b] = [this.x(value), this.y(height)];
      add("path", { class: "mark", d: `M${a} ${b - 7}L${a + 7} ${b}L${a} ${b + 7}L${a - 7} ${b}Z` }, title);
    },
  };
}

/** Draw the explained share against cost, with the current answer and the budget. */
export function drawCurve(place, curve, answer, budget) {
  place.replaceChildren();
  const drawn = picture(place, curve.chart);
  if (budget !== null) drawn.add("path", { class: "rule", d: `M${drawn.x(budget)} ${drawn.bottom}V${drawn.top}` }, `budget ${number(budget)}`);
  if (answer === null) return;
  drawn.mark(answer.cost, answer.expected.r2 ?? 0, `this answer: cost ${number(answer.cost)}, ${percent(answer.expected.r2)}`);
  const key = element("span", {}, element("i", { class: "now" }), "this answer");
  let legend = drawn.figure.querySelector(".legend");
  if (legend === null) drawn.figure.prepend((legend = element("div", { class: "legend" })));
  legend.append(key);
}

/**
 * Draw rows of bars on one scale: {name, from, to, ends, text, kind}. A bar reaches from `from` to `to`; if these are
 * equal it is a dot. `ends` are those of an error bar, or null; `kind` is the class of its colour.
 */
function drawRows(place, heads, rows) {
  const values = rows.flatMap(({ from, to, ends }) => [from, to, ...(ends ?? [])]).filter(Number.isFinite);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const at = (value) => 98 * (high > low ? (Math.min(Math.max(value, low), high) - low) / (high - low) : 0.5);
  const bar = (kind, from, to) => {
    const shape = element("div", { class: kind });
    shape.style.left = `${Math.min(at(from), at(to))}%`;
    if (from !== to) shape.style.width = `${Math.abs(at(to) - at(from))}%`;
    return shape;
  };
  const lines = rows.map(({ name, from, to, ends, text, kind }) => {
    const shapes = [bar(`${kind}${from === to ? " dot" : ""}`, from, to)];
    if (ends) shapes.push(bar(`${kind} ends`, ...ends));
    return element("tr", {}, element("th", {}, name), element("td", { class: "bars" }, element("div", { class: "plane" }, ...shapes)), element("td", {}, text));
  });
  const head = element("tr", { class: "heads" }, element("th", {}, heads[0]), element("td", {}), element("td", {}, heads[1]));
  place.replaceChildren(element("table", { class: "rows" }, element("caption", { class: "unseen" }, heads.join(", ")), element("tbody", {}, head, ...lines)));
}

/** Return at most `SHOWN` of the answers, evenly over their costs, among them the current one. */
function thinned(answers, now) {
  if (answers.length <= SHOWN) return answers;
  const places = new Set(Array.from({ length: SHOWN - 1 }, (_, i) => Math.round((i * (answers.length - 1)) / (SHOWN - 2))));
  return answers.filter((answer, i) => places.has(i) || answer === now);
}

/** Draw an answer in the way that fits the model's task. */
export function drawAnswer(place, model, answers, now) {
  if (now.probabilities !== null) {
    const likely = now.probabilities.map((share, i) => [share, String(model.classes[i])]);
    const shown = likely.length > SHOWN ? likely.sort(([a], [b]) => b - a).slice(0, SHOWN) : likely;
    const rows = shown.map(([share, name]) => ({ name, from: 0, to: share, ends: null, text: percent(share), kind: name === String(now.prediction) ? "now" : "c0" }));
    drawRows(place, ["class", "probability"], rows);
  } else if (Array.isArray(now.prediction)) {
    const ends = bars(model, now);
    drawRows(place, ["response", "prediction"], now.prediction.map((value, i) => ({ name: model.responses[i], from: value, to: value, ends: ends?.[i], text: number(value), kind: "now" })));
  } else {
    const name = `${model.measures.least_squares ? "" : "expected "}${model.responses[0]}`;
    drawRows(place, [`cost (${model.cost_unit})`, name], thinned(answers, now).map((answer) => ({
      name: number(answer.cost), from: answer.prediction, to: answer.prediction, ends: bar(model, answer), text: number(answer.prediction),
      kind: answer === now ? "now" : "c0",
    })));
  }
}

/** Draw a waterfall from the base value by each part, {name, value}, to the score. */
export function drawParts(place, base, parts, score) {
  let from = base;
  const rows = parts.map(({ name, value }) => {
    const row = { name, from, to: from + value, ends: null, text: signed(value), kind: value < 0 ? "c1" : "c0" };
    from += value;
    return row;
  });
  const total = (name, value) => ({ name, from: value, to: value, ends: null, text: number(value), kind: "c4" });
  drawRows(place, ["group", "contribution"], [total("base value", base), ...rows, total("score", score)]);
}

/** Draw the charts of a shape, with a mark at the value of the row and its contribution `part`. */
export function drawShape(place, shape, value, part) {
  place.replaceChildren();
  const title = `this row: ${signed(part)}`;
  for (const html of shape.charts) {
    const drawn = picture(place, html);
    if (drawn.names === null) {
      if (value !== null) drawn.mark(Number(value), part, title);
      continue;
    }
    const level = value === null ? drawn.names.lastIndexOf("(missing)") : drawn.names.findIndex((name) => matches(name, value));
    const at = level >= 0 ? level : drawn.names.lastIndexOf("(other)");
    if (at >= 0 && shape.points.length === 0) drawn.mark(at, part, title);
  }
}

/** Return whether a level, as text, is a value of the row, in single precision; a boolean may be 0 or 1. */
const matches = (name, value) => (typeof value === "string" ? name === value : Math.fround(name) === Math.fround(value) || name === String(Boolean(value)));
