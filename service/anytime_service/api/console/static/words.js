// Numbers and answers as text.

/** Return a number with four significant digits; use an exponent only for very large and very small numbers. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** Return a date, text in ISO form or a number, as seconds since 1970; a time without a zone is UTC, as the service reads it. */
export function seconds(value) {
  if (typeof value === "number") return value;
  return Date.parse(/^[\d-]+$|Z$|[+-]\d\d:?\d\d$/.test(value) ? value : `${value.replace(" ", "T")}Z`) / 1000;
}

/** Return a number with its sign. */
export const signed = (value) => (value < 0 ? number(value).replace("-", "−") : `+${number(value)}`);

export const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

/** Return a lower bound as a percentage: rounded down, except for floating-point error. */
export const leastPercent = (share) => percent(share === null ? null : Math.floor(1000 * share + 1e-6) / 1000);

export const listed = (names, most = 6) =>
  names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} more` : names.join(", ");

const heading = (words) => words[0].toUpperCase() + words.slice(1);

/** Return the heading of the explained share. */
export const explained = (model) => heading(model.measures.explained);

/** Return the heading of the cross-validated error. */
export const errorName = (model) => heading(model.measures.error);

/** Return task and family of a model. */
export const kind = (model) => (model.measures.least_squares ? model.task : `${model.task} (${model.family})`);

/** Return half the width of a regression's error bar, the root of the cross-validated error; null if unknown. */
export function deviation(model, answer) {
  const error = answer.expected.cv_error;
  return model.measures.least_squares && !model.classes && error !== null ? Math.sqrt(error) : null;
}

/** Return the ends of one number's error bar: the interval if the model is calibrated, else prediction ± deviation. */
export function bar(model, answer) {
  const interval = answer.interval;
  if (Array.isArray(interval) && interval.length === 2 && interval.every(Number.isFinite)) return interval;
  const half = deviation(model, answer);
  return half === null ? null : [answer.prediction - half, answer.prediction + half];
}

/** Return the ends of the error bars of several numbers, see `bar`. */
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

/** Return the calibrated coverage of the model's intervals or sets, in brackets. */
const coverage = (model) => (model.calibration ? ` (${Number((100 * model.calibration.coverage).toPrecision(4))} %)` : "");

/** Return the uncertainty of a prediction: its error bar, or the probability of its class and the other possible classes. */
export function doubt(model, answer) {
  if (answer.probabilities !== null) {
    const likely = `${percent(Math.max(...answer.probabilities))} likely`;
    const set = answer.prediction_set;
    if (!set) return likely;
    const others = ["none likely enough", "no other"][set.length] ?? `may be ${listed(set.map(String))}`;
    return `${likely}; ${others}${coverage(model)}`;
  }
  if (answer.interval) {
    const all = Array.isArray(answer.prediction) ? answer.interval : [answer.interval];
    return `${all.map(between).join(", ")}${coverage(model)}`;
  }
  const half = deviation(model, answer);
  return half === null ? "" : `± ${number(half)}`;
}

const REASONS = {
  budget: "every step that the budget allows is used",
  complete: "every step is used",
  deadline: "the maximum deadline of the service expired; the next group starts a new prediction",
  draining: "the service is stopping",
  overload: "the service is overloaded",
};

/** Return statements about an answer: groups used, cost, explained share, reason. */
export function facts(model, answer) {
  const unit = model.cost_unit;
  const statements = [
    answer.policy === "arrived"
      ? `${answer.groups.length} arrived groups used, ${number(answer.cost)} of ${number(model.total_cost)} ${unit}`
      : `step ${answer.prefix} of ${answer.steps}, ${number(answer.cost)} of ${number(model.total_cost)} ${unit}`,
  ];
  if (answer.expected.r2 !== null) statements.push(`explains ${answer.approximate ? "at least " : ""}${percent(answer.expected.r2)}${model.measures.least_squares ? "" : " of the deviance"} in training`);
  if (answer.approximate) statements.push("approximate: one Newton step from the nearest prefix");
  if (REASONS[answer.reason]) statements.push(REASONS[answer.reason]);
  return statements;
}

/** Return statements about what an answer does not use, or not as it was sent; `sent` has the values sent to the service. */
export function omissions(model, answer, sent) {
  const unused = [...sent.keys()].filter((name) => !answer.groups.includes(name) && !answer.missing.includes(name)); // refused groups are missing
  const values = new Map(model.groups.flatMap(({ name, features }) => features.map((feature, i) => [feature, sent.get(name)?.[i] ?? null])));
  const [empty, unknown] = [true, false].map((isEmpty) => answer.imputed.filter((name) => (values.get(name) === null) === isEmpty));
  const statements = [];
  if (!sent.size) statements.push("nothing is sent yet: press Play, or tick a group");
  else if (answer.missing.length) statements.push(`missing: ${listed(answer.missing)}`);
  if (unused.length) statements.push(`sent, but not counted: ${listed(unused)}${whyUnused(answer)}`);
  if (empty.length) statements.push(`filled by training means: ${listed(empty)}`);
  if (unknown.length) statements.push(`not a level of the model, counts as other: ${listed(unknown)}`);
  if (answer.clamped.length) statements.push(`outside the model's range: ${listed(answer.clamped.map((name) => moved(model, name, values.get(name))))}`);
  if (answer.note) statements.push(answer.note);
  return statements;
}

/** Return the name of a clamped column with the end of its range that its value moved to; a date may be text or seconds. */
function moved(model, name, value) {
  const { type, range } = model.columns.find((column) => column.name === name);
  const [low, high] = range;
  if (type !== "date") return `${name} (${number(value)} counts as ${number(Math.min(Math.max(value, low), high))})`;
  const time = seconds(value);
  if (Number.isNaN(time)) return `${name} (${value})`; // in a form that only the server reads
  const day = (x) => new Date(x * 1000).toISOString().slice(0, 10);
  return `${name} (${day(time)} counts as ${day(time < (low + high) / 2 ? low : high)}, except for its month, weekday and hour)`;
}

function whyUnused(answer) {
  if (answer.policy !== "arrived" && answer.missing.length) {
    return ` – a group counts after all groups before it; first missing is ${answer.missing[0]}`;
  }
  return answer.budget === null ? "" : " – beyond the budget";
}
