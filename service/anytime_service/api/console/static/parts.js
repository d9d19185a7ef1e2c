// What the groups and columns of the last answer contribute to a score, and the shape of a column.

import { drawParts, drawShape } from "./charts.js";
import { byId, element, fillTable } from "./element.js";
import { get } from "./service.js";
import { number, seconds, signed } from "./words.js";

const SHOWN_GROUPS = 9;
const SHOWN_COLUMNS = 100;

const strongest = (parts) => parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));

export class Parts {
  #column = null; // the chosen column
  #shape = null;

  constructor() {
    byId("score").onchange = () => this.answer?.contributions && this.show(this.answer, this.sent);
    byId("parts").onclick = ({ target }) => target.dataset.column !== undefined && this.#choose(target.dataset.column);
  }

  /** Begin with another model: there is no answer, and no column is chosen. */
  open(model, failed) {
    Object.assign(this, { model, failed, answer: null });
    this.#column = this.#shape = null;
    const scores = model.classes?.length > 2 ? model.classes : model.classes ? [] : model.responses;
    byId("parts-choice").hidden = scores.length < 2;
    const predicted = model.classes ? [element("option", { value: "" }, "the predicted class")] : [];
    byId("score").replaceChildren(...predicted, ...scores.map((name, i) => element("option", { value: String(i) }, String(name))));
    this.#clear("");
    byId("shape-chart").hidden = true;
    byId("shape-says").textContent = "";
  }

  /** Show a sentence instead of contributions. */
  #clear(sentence) {
    byId("parts-says").textContent = sentence;
    byId("parts-chart").hidden = true;
    for (const id of ["parts-table", "parts"]) byId(id).replaceChildren();
  }

  /** Show the contributions of an answer to the values sent. */
  show(answer, sent) {
    Object.assign(this, { answer, sent });
    this.#redraw();
    if (this.#column !== null) this.#choose(this.#column);
  }

  /** Return the index of the score shown. */
  get #k() {
    const chosen = byId("score").value;
    return chosen === "" ? Math.max(this.model.classes?.indexOf(this.answer.prediction) ?? 0, 0) : Number(chosen);
  }

  #of(value) {
    return Array.isArray(value) ? value[this.#k] : value;
  }

  #redraw() {
    if (!this.answer.contributions) {
      this.#clear(`There are no contributions to show. The service says: ${this.answer.note}.`);
      return;
    }
    const { intercept, groups, features } = this.answer.contributions;
    const base = this.#of(intercept);
    const parts = strongest(Object.entries(groups).map(([name, value]) => ({ name, value: this.#of(value) })));
    const score = parts.reduce((sum, { value }) => sum + value, base);
    const rest = parts.splice(parts.length > SHOWN_GROUPS + 1 ? SHOWN_GROUPS : parts.length);
    if (rest.length) parts.push({ name: `${rest.length} more groups`, value: rest.reduce((sum, { value }) => sum + value, 0) });
    byId("parts-says").textContent = parts.length ? `The base value, ${number(base)}, plus the contributions is ${number(score)}, ${this.#named}.`
      : `No group is used, so nothing contributes: the base value, ${number(base)}, is ${this.#named}.`;
    fillTable(byId("parts-table"), "Strongest first", ["Group", "Contribution"], [["base value", number(base)], ...parts.map(({ name, value }) => [name, signed(value)]), ["score", number(score)]]);
    const columns = strongest(Object.entries(features).map(([name, value]) => ({ name, value: this.#of(value) })));
    const group = new Map(this.model.columns.map((column) => [column.name, column.group]));
    fillTable(byId("parts"), columns.length > SHOWN_COLUMNS ? `The ${SHOWN_COLUMNS} strongest of ${columns.length}` : "Strongest first", ["Column", "Group", "Contribution"],
      columns.slice(0, SHOWN_COLUMNS).map(({ name, value }) => [
        element("button", { type: "button", class: "link", "data-column": name, "aria-pressed": String(name === this.#column) }, name), group.get(name), signed(value)]));
    byId("parts-chart").hidden = !parts.length;
    if (parts.length) drawParts(byId("parts-chart"), base, parts, score);
    if (this.#shape !== null) this.#drawShape();
  }

  /** Return what the score is. */
  get #named() {
    const { classes, measures, responses } = this.model;
    if (!classes && !measures.least_squares) return `the ${measures.score} of ${responses[0]}`;
    if (!classes) return `the prediction${responses.length > 1 ? ` of ${responses[this.#k]}` : ""}`;
    if (classes.length > 2 || responses.length > 1) return `the score of ${classes[this.#k]}`;
    return `the ${measures.score} of ${classes[1]}`;
  }

  /** Choose a column, and draw its shape in the prefix of the answer, or in all steps if the groups are no prefix. */
  async #choose(column) {
    const { model, answer } = this;
    this.#column = column;
    for (const button of byId("parts").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.column === column));
    if (!(column in (answer.contributions?.features ?? {}))) {
      this.#shape = null;
      byId("shape-chart").hidden = true;
      byId("shape-says").textContent = answer.contributions ? `${column}: the answer does not use it.` : "";
      return;
    }
    const score = this.#k;
    const prefix = answer.policy !== "arrived" ? `&prefix=${answer.prefix}` : "";
    try {
      const shape = await get(`models/${encodeURIComponent(model.name)}/shape?column=${encodeURIComponent(column)}&score=${score}${prefix}`);
      if (this.#column !== column || this.answer !== answer || this.#k !== score) return; // another choice or answer meanwhile
      this.#shape = shape;
      byId("shape-chart").hidden = false;
      this.#drawShape();
    } catch (error) {
      if (this.model === model) this.failed(error);
    }
  }

  #drawShape() {
    const shape = this.#shape;
    const part = this.answer.contributions.features[shape.name];
    if (part === undefined) return;
    const group = this.model.groups.find(({ name }) => name === shape.group);
    const value = this.sent.get(shape.group)?.[group.features.indexOf(shape.name)] ?? null;
    const steps = this.answer.policy !== "arrived" ? "" : " The line is that of all steps.";
    const paired = this.model.steps.some(({ pairs = [] }) => pairs.some((pair) => pair.includes(shape.name)));
    const halves = paired ? " It includes half of each of its pairs; the line does not." : "";
    byId("shape-says").textContent = `${shape.name} is ${value === null ? "missing" : typeof value === "number" ? number(value) : value} and contributes ${signed(this.#of(part))} (basis ${shape.basis}).${halves}${steps}`;
    const isDate = this.model.columns.find(({ name }) => name === shape.name).type === "date";
    drawShape(byId("shape-chart"), shape, isDate && value !== null ? seconds(value) : value, this.#of(part));
  }
}
