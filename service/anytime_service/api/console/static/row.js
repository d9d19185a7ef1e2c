// The groups of the row as cards: their values, whether they are sent, and their problems.

import { element } from "./element.js";
import { number } from "./words.js";

const SEPARATE = 12; // maximum number of features with separate inputs

/** Return entered text as a value for the service: null if empty, else a number; other text is unchanged, so that it is rejected. */
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
    this.inputs = this.count <= SEPARATE ? this.#separate(group, place, problem) : this.#joint(group, place, problem);
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

  #joint(group, place, problem) {
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

  /** Whether a value is not a number; it is sent unchanged, and the service's error says what is expected. */
  get unreadable() {
    return this.values.some((value) => typeof value === "string");
  }

  show(state) {
    this.check.checked = state === "sent";
    this.state.textContent = state === "computing" ? " · computing …" : "";
    this.root.dataset.state = state;
  }

  /** Show a problem; null clears it. */
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
  /** `changed` is called when the user ticks, unticks or edits a group. */
  constructor(form, model, changed) {
    const byName = new Map(model.groups.map((group) => [group.name, group]));
    const order = model.steps.flatMap((step) => step.adds).filter((name) => byName.get(name).features.length);
    const update = (card) => {
      card.show(card.check.checked ? "sent" : "idle");
      changed();
    };
    this.cards = new Map(order.map((name, place) => [name, new Card(byName.get(name), place, model.cost_unit, update)]));
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

  /** Show a problem at its group; return false if it has no group. The problem of an undecodable message has only `values`. */
  refuse({ field, detail }) {
    const named = [...this.cards.values()].filter((card) => field === `groups.${card.name}` || field?.startsWith(`groups.${card.name}[`));
    const affected = field?.startsWith("values") ? [...this.cards.values()].filter((card) => card.check.checked && card.unreadable) : named;
    for (const card of affected) card.refuse(detail);
    return affected.length > 0;
  }

  clearProblems() {
    for (const card of this.cards.values()) card.refuse(null);
  }
}
