// The groups of the row as cards: what is typed, what has been sent, and what was wrong with it.

import { element } from "./element.js";
import { number } from "./words.js";

const SEPARATE = 12; // features up to which each has an input of its own

/** What is typed as the service takes it: null for nothing, else a number; what is none goes as it is, to be refused. */
export function parsed(text) {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed === "null") return null;
  const value = Number(trimmed);
  return Number.isFinite(value) ? value : trimmed;
}

class Card {
  constructor(group, place, unit, changed) {
    this.name = group.name;
    this.count = group.features.length;
    const problem = `group-${place}-problem`;
    this.check = element("input", { type: "checkbox", id: `group-${place}` });
    this.check.onchange = () => changed(this);
    this.state = element("span", { class: "state" });
    this.problem = element("p", { class: "problem", id: problem, "aria-live": "polite" });
    this.inputs = this.count <= SEPARATE ? this.#separate(group, place, problem) : this.#together(group, place, problem);
    for (const { input } of this.inputs) {
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
      element("div", { class: "values" }, ...this.inputs.map(({ label, input }) => element("p", {}, label, input))),
      this.problem);
    this.show("idle");
  }

  #separate(group, place, problem) {
    return group.features.map((feature, i) => {
      const id = `group-${place}-${i}`;
      return {
        label: element("label", { htmlFor: id }, feature),
        input: element("input", { type: "text", id, inputMode: "decimal", placeholder: "missing", "aria-describedby": problem }),
      };
    });
  }

  #together(group, place, problem) {
    const id = `group-${place}-all`;
    return [{
      label: element("label", { htmlFor: id }, `${this.count} values, ${group.features[0]} to ${group.features.at(-1)}, separated by commas`),
      input: element("textarea", { id, rows: 3, "aria-describedby": problem }),
    }];
  }

  get values() {
    const texts = this.inputs.map(({ input }) => input.value);
    return (this.count <= SEPARATE ? texts : texts[0].split(",")).map(parsed);
  }

  set values(values) {
    const texts = values.map((value) => (value === null ? "" : String(value)));
    const shown = this.count <= SEPARATE ? texts : [texts.join(", ")];
    this.inputs.forEach(({ input }, i) => { input.value = shown[i]; });
  }

  /** Whether something is typed that is no number; it is sent as it is, and the service says what it expects. */
  get unreadable() {
    return this.values.some((value) => typeof value === "string");
  }

  show(state) {
    this.check.checked = state === "sent";
    this.state.textContent = state === "computing" ? " · computing …" : "";
    this.root.dataset.state = state;
  }

  /** Say what is wrong; null takes it back. */
  refuse(detail) {
    this.problem.textContent = detail ?? "";
    for (const { input } of this.inputs) {
      if (detail === null) input.removeAttribute("aria-invalid");
      else input.setAttribute("aria-invalid", "true");
    }
  }
}

/** The cards of a model in a form, in the order of the sequence. */
export class Row {
  /** `changed` is called when a group is sent, taken back or typed into. */
  constructor(form, model, changed) {
    const byName = new Map(model.groups.map((group) => [group.name, group]));
    const order = model.steps.flatMap((step) => step.adds).filter((name) => byName.get(name).features.length);
    const told = (card) => {
      card.show(card.check.checked ? "sent" : "idle");
      changed();
    };
    this.cards = new Map(order.map((name, place) => [name, new Card(byName.get(name), place, model.cost_unit, told)]));
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

  /** Show a problem at its group; false if it is of none. A message that cannot be read has no group but `values`. */
  refuse({ field, detail }) {
    const named = [...this.cards.values()].filter((card) => field === `groups.${card.name}` || field?.startsWith(`groups.${card.name}[`));
    const blamed = field?.startsWith("values") ? [...this.cards.values()].filter((card) => card.check.checked && card.unreadable) : named;
    for (const card of blamed) card.refuse(detail);
    return blamed.length > 0;
  }

  forgive() {
    for (const card of this.cards.values()) card.refuse(null);
  }
}
