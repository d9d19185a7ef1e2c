// Numbers and answers as text.

/** A number with four significant digits, without an exponent as long as it can be read. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

/** A share of which it is known that it is no less: rounded down, but for rounding. */
export const leastPercent = (share) => percent(share === null ? null : Math.floor(1000 * share + 1e-6) / 1000);

export const listed = (names, most = 6) =>
  names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} more` : names.join(", ");

const likelihood = (model) => model.family !== "gaussian";

/** What a prefix explains, by the name that it has in the model's family; a heading. */
export const explained = (model) => (likelihood(model) ? "Deviance explained" : "R²");

/** What the cross-validated error of a prefix is called; a heading. */
export const errorName = (model) => (likelihood(model) ? "Deviance" : "Error");

/** What the model is, in a word or two. */
export const kind = (model) => (likelihood(model) ? `${model.task} (${model.family})` : model.task);

/** Half the width of the error bar of a regression: the root of the cross-validated error; null where not known. */
export function deviation(model, answer) {
  const error = answer.expected.cv_error;
  return model.task === "regression" && error !== null ? Math.sqrt(error) : null;
}

/** Ends of the error bar of one number: the interval where the model is calibrated, else prediction ± deviation. */
export function bar(model, answer) {
  const interval = answer.interval;
  if (Array.isArray(interval) && interval.length === 2 && interval.every(Number.isFinite)) return interval;
  const half = deviation(model, answer);
  return half === null ? null : [answer.prediction - half, answer.prediction + half];
}

/** The same of several numbers. */
export function bars(model, answer) {
  if (answer.interval) return answer.interval;
  const half = deviation(model, answer);
  return half === null ? null : answer.prediction.map((value) => [value - half, value + half]);
}

export function prediction(answer) {
  const value = answer.prediction;
  if (Array.isArray(value)) return value.map(number).join(", ");
  return typeof value === "number" && answer.probabilities === null ? number(value) : String(value);
}

const between = ([low, high]) => `between ${number(low)} and ${number(high)}`;

/** How often the model's intervals or sets hold the truth, as calibrated. */
const sure = (model) => (model.calibration ? ` (${Number((100 * model.calibration.coverage).toPrecision(4))} %)` : "");

/** What stands beside the prediction: its error bar, or how likely the class is and which others it may be. */
export function doubt(model, answer) {
  if (answer.probabilities !== null) {
    const likely = `${percent(Math.max(...answer.probabilities))} likely`;
    const set = answer.prediction_set;
    if (!set) return likely;
    const held = ["none likely enough", "no other"][set.length] ?? `may be ${listed(set.map(String))}`;
    return `${likely}; ${held}${sure(model)}`;
  }
  if (answer.interval) {
    const all = Array.isArray(answer.prediction) ? answer.interval : [answer.interval];
    return `${all.map(between).join(", ")}${sure(model)}`;
  }
  const half = deviation(model, answer);
  return half === null ? "" : `± ${number(half)}`;
}

const REASONS = {
  budget: "every step that the budget allows is used",
  complete: "every step is used",
  deadline: "the longest deadline of the service struck; the next group asks again",
  draining: "the service is stopping",
  overload: "more is asked of the service than it can answer in time",
};

/** What an answer rests on. */
export function facts(model, answer) {
  const unit = model.cost_unit;
  const said = [
    answer.policy === "arrived"
      ? `${answer.groups.length} arrived groups used, ${number(answer.cost)} of ${number(model.total_cost)} ${unit}`
      : `step ${answer.prefix} of ${answer.steps}, ${number(answer.cost)} of ${number(model.total_cost)} ${unit}`,
  ];
  if (answer.expected.r2 !== null) said.push(`explains ${answer.approximate ? "at least " : ""}${percent(answer.expected.r2)}${likelihood(model) ? " of the deviance" : ""} in training`);
  if (answer.approximate) said.push("approximate: one Newton step from the nearest prefix");
  if (REASONS[answer.reason]) said.push(REASONS[answer.reason]);
  return said;
}

/** What an answer lacks; `sent` are the groups that the service was given. */
export function lacks(answer, sent) {
  const idle = sent.filter((name) => !answer.groups.includes(name));
  const said = [];
  if (!sent.length) said.push("nothing is sent yet: press Play, or tick a group");
  else if (answer.missing.length) said.push(`missing: ${listed(answer.missing)}`);
  if (idle.length) said.push(`sent, but not counted: ${listed(idle)}${whyIdle(answer)}`);
  if (answer.imputed.length) said.push(`filled by training means: ${listed(answer.imputed)}`);
  if (answer.note) said.push(answer.note);
  return said;
}

function whyIdle(answer) {
  if (answer.policy === "prefix" && answer.missing.length) {
    return ` – a group counts when all before it are here; first missing is ${answer.missing[0]}`;
  }
  return answer.budget === null ? "" : " – beyond the budget";
}
