// The table of the steps of the sequence, with the curve's values, and a sentence that summarises the curve.

import { fillTable } from "./element.js";
import { errorName, explained, leastPercent, listed, number, percent } from "./words.js";

/** Return the state of a step in an answer. */
function state(step, prefix, model, answer) {
  if (answer === null) return "";
  const needed = step.adds.filter((name) => model.featured.has(name));
  if (answer.policy === "arrived" ? needed.length && needed.every((name) => answer.groups.includes(name)) : prefix <= answer.prefix) return "used";
  const missing = needed.filter((name) => answer.missing.includes(name));
  if (answer.budget !== null && step.cumulative_cost > answer.budget * (1 + 1e-9)) return "beyond the budget";
  return missing.length ? `missing ${listed(missing)}` : "sent, not counted";
}

export function showSteps(table, model, curve, answer) {
  const unit = model.cost_unit;
  const [base, ...points] = curve.points;
  const certified = curve.certified === null ? [] : ["Of the best possible, at least"];
  const share = (point) => certified.map(() => leastPercent(point.certified_share));
  const rows = points.map((point, i) => {
    const step = model.steps[i];
    return [String(point.prefix), step.adds.join(", "), state(step, point.prefix, model, answer), number(step.cost), number(point.cost),
      percent(point.r2), percent(point.cv_r2), number(point.cv_error), percent(point.guaranteed_r2), ...share(point)];
  });
  rows.unshift(["0", "none: the base rate", answer ? "used" : "", "0", "0", percent(base.r2), percent(base.cv_r2), number(base.cv_error), percent(base.guaranteed_r2), ...share(base)]);
  fillTable(table, `What each step adds, costs (in ${unit}) and explains`,
    ["Step", "Adds", "In the answer", "Cost", "Cost so far", `${explained(model)}, training`, "Cross-validated", `${errorName(model)}, cross-validated`, "Guaranteed", ...certified], rows);
  table.querySelectorAll("tbody tr").forEach((row) => { row.dataset.used = row.cells[2].textContent === "used"; });
}

/** Return a summary of the curve: the cost of all steps, and the cost of half of the explained share. */
export function curveSentence(model, curve) {
  const last = curve.points.at(-1);
  if (last.r2 === null) return `All ${model.steps.length} steps cost ${number(last.cost)} ${model.cost_unit}; a response is constant in training, so R² is not defined.`;
  const half = curve.points.find((point) => point.r2 >= last.r2 / 2);
  const heldOut = last.cv_r2 === null ? "" : ` (${percent(last.cv_r2)} cross-validated)`;
  return `All ${model.steps.length} steps cost ${number(last.cost)} ${model.cost_unit} and explain ${percent(last.r2)} of the ${model.measures.least_squares ? "variance" : "deviance"} in training${heldOut}; ` +
    `half of that is reached at ${number(half.cost)} ${model.cost_unit}, by step ${half.prefix}.`;
}
