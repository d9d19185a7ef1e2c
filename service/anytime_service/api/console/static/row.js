// The groups of the row as cards: their values, whether they are sent, and their problems.

import { element } from "./element.js";
import { number } from "./words.js";

const SEPARATE = 12; // maximum number of number columns with separate inputs
const LONG = 9; // maximum number of characters of the levels of a column that shares its line

/** Return entered text as a value for the service: null if empty, else a number; other text is unchanged, so that it is rejected. */
export function parsed(text) {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed === "null") return null;
  const value = Number(trimmed);
  return Number.isFinite(value) ? value : trimmed;
}

const shown = (value) => (value === null ? "" : String(value));

/** Return the choices of a column of categories, texts and values: its levels, other values if they have a term, and missing. */
function choices({ type, levels, other }) {
  let unlisted = type === "text" ? "other" : type === "bool" ? !levels.includes(true) : Math.max(...levels) + 1;
  while (type === "text" && levels.includes(unlisted)) unlisted += "'";
  return [...levels.map((level) => [String(level) || '""', level]), ...(other && !levels.includes(unlisted) ? [["(other)", unlisted]] : []), ["(missing)", null]];
}

// A field has the text of its label, an input, and functions that return and show the values of its columns.

function choiceField(column, id) {
  const options = choices(column);
  const long = options.some(([text]) => text.length > LONG);
  const input = element("select", { id, class: long ? "long" : null }, ...options.map(([text], i) => element("option", { value: i }, text)));
  return {
    text: column.name, input, read: () => [options[input.value][1]],
    write: ([value]) => { input.value = options.findIndex(([, each]) => each === value); },
  };
}

function numberField(column, id) {
  const input = element("input", { type: "text", id, inputMode: column.type === "date" ? "text" : "decimal", placeholder: "missing" });
  return { text: column.name, input, read: () => [parsed(input.value)], write: ([value]) => { input.value = shown(value); } };
}

function listField(columns, id) {
  const input = element("textarea", { id, rows: 3 });
  return {
    text: `${columns.length} numbers, ${columns[0].name} to ${columns.at(-1).name}, separated by commas`, input,
    read: () => input.value.split(",").map(parsed), write: (values) => { input.value = values.map(shown).join(", "); },
  };
}

/** Return the fields of a group with the indices of their columns. */
function fieldsOf(columns, prefix) {
  const all = [...columns.keys()];
  const isNumber = (i) => columns[i].levels === null;
  const numbers = all.filter(isNumber);
  const joint = numbers.length > SEPARATE;
  const single = joint ? all.filter((i) => !isNumber(i)) : all;
  const fields = single.map((i) => ({ indices: [i], ...(isNumber(i) ? numberField : choiceField)(columns[i], `${prefix}-${i}`) }));
  return joint ? [...fields, { indices: numbers, ...listField(numbers.map((i) => columns[i]), `${prefix}-all`) }] : fields;
}

class Card {
  constructor(group, columns, place, unit, changed) {
    this.name = group.name;
    this.count = columns.length;
    const problem = `group-${place}-problem`;
    this.check = element("input", { type: "checkbox", id: `group-${place}` });
    this.check.onchange = () => changed(this);
    this.state = element("span", { class: "state" });
    this.problem = element("p", { class: "problem", id: problem, "aria-live": "polite" });
    this.fields = fieldsOf(columns, `group-${place}`);
    for (const { input } of this.fields) {
      input.setAttribute("aria-describedby", problem);
      input.oninput = () => {
        this.check.checked = true;
        changed(this);
      };
    }
    this.root = element("fieldset", { class: "card", "data-group": group.name },
      element("legend", {}, group.name),
      element("p", { class: "head" },
        element("label", {}, this.check, " sent"), ` · ${number(group.cost)} ${unit}`,
        group.requires.length ? ` · after ${group.requires.join(", ")}` : "", this.state),
      element("div", { class: "values" }, ...this.fields.map(({ text, input }) => element("p", {}, element("label", { htmlFor: input.id }, text), input))),
      this.problem);
    this.show("idle");
  }

  /** The values in the order of the columns. If the list lacks values or has too many, the row does too, so that it is rejected. */
  get values() {
    const values = {};
    for (const { indices, read } of this.fields) read().forEach((value, i) => { values[indices[i] ?? this.count + i] = value; });
    return Object.values(values);
  }

  set values(values) {
    for (const { indices, write } of this.fields) write(indices.map((i) => values[i]));
  }

  show(state) {
    this.check.checked = state === "sent";
    this.state.textContent = state === "computing" ? " · computing …" : "";
    this.root.dataset.state = state;
  }

  /** Show a problem; null clears it. */
  refuse(detail) {
    this.problem.textContent = detail ?? "";
    for (const { input } of this.fields) {
      if (detail === null) input.removeAttribute("aria-invalid");
      else input.setAttribute("aria-invalid", "true");
    }
  }
}

/** The cards of a model in a form, in the order of the sequence. */
export class Row {
  /** `changed` is called when the user ticks, unticks or edits a group. */
  constructor(form, model, changed) {
    const byName = new Map(model.groups.map((group) => [group.name, group]));
    const order = model.steps.flatMap((step) => step.adds).filter((name) => byName.get(name).features.length);
    const update = (card) => {
      card.show(card.check.checked ? "sent" : "idle");
      changed();
    };
    const described = new Map(model.columns.map((column) => [column.name, column]));
    const columns = (group) => group.features.map((name) => described.get(name));
    this.cards = new Map(order.map((name) => byName.get(name)).map((group, place) =>
      [group.name, new Card(group, columns(group), place, model.cost_unit, update)]));
    form.onsubmit = (event) => event.preventDefault();
    form.replaceChildren(...[...this.cards.values()].map((card) => card.root));
  }

  fill(groups) {
    for (const [name, card] of this.cards) card.values = groups[name];
  }

  clear() {
    for (const card of this.cards.values()) card.show("idle");
  }

  get all() {
    return new Map([...this.cards].map(([name, card]) => [name, card.values]));
  }

  get sent() {
    return new Map([...this.cards].filter(([, card]) => card.check.checked).map(([name, card]) => [name, card.values]));
  }

  /** Show a problem at its group; return false if it has no group. */
  refuse({ field, detail }) {
    const affected = [...this.cards.values()].filter((card) => field === `groups.${card.name}` || field?.startsWith(`groups.${card.name}[`));
    for (const card of affected) card.refuse(detail);
    return affected.length > 0;
  }

  clearProblems() {
    for (const card of this.cards.values()) card.refuse(null);
  }
}
