// The page: it turns the state of the controls into a request, and shows every answer as text, charts and tables.

import { drawAnswer, drawCurve } from "./charts.js";
import { byId, element, fillTable } from "./element.js";
import { Live } from "./live.js";
import { Parts } from "./parts.js";
import { Row } from "./row.js";
import { KeyNeeded, get, key } from "./service.js";
import { curveSentence, showSteps } from "./steps.js";
import { doubt, explained, facts, kind, omissions, listed, number, percent, prediction } from "./words.js";

const PLAY_MS = 5000; // duration of a play: the time for which all costs of a model are simulated
const TYPING_MS = 150; // pause in typing after which the page sends a request

let model, curve, row;
let seed = 0;
let budget = null;
let answer = null;
let answers = new Map(); // the answers for the current row, by cost
let timer = null;
const parts = new Parts();

const policy = () => document.querySelector("input[name=policy]:checked").value;

const live = new Live({
  answer: receive,
  problem: (problem) => {
    if (row.refuse(problem)) return;
    const place = problem.field === "budget" ? byId("budget-problem") : byId("problem");
    place.textContent ||= problem.detail;
    byId("doing").textContent = "This is the answer to an earlier request; the current request has no answer.";
  },
  group: (name, state) => {
    row.cards.get(name).show(state);
    if (state === "computing") byId("doing").textContent = `computing ${name} …`;
  },
  ended: () => {
    byId("play").textContent = "Play";
    byId("doing").textContent = "";
    for (const card of row.cards.values()) if (card.root.dataset.state === "computing") card.show("idle");
  },
  lost: () => get("models").catch((error) => error instanceof KeyNeeded && askKey(error.wrong)), // the key may have become invalid
});

function clearProblems() {
  byId("problem").textContent = "";
  byId("budget-problem").textContent = "";
  row.clearProblems();
}

const request = (groups) => ({ model: model.name, budget, policy: policy(), groups });

/** Send a request with all sent groups, after the controls have been unchanged for `soon` ms; `fresh` clears the answers. */
function send({ soon = TYPING_MS, fresh = false } = {}) {
  if (fresh) answers = new Map();
  clearTimeout(timer);
  timer = setTimeout(() => {
    clearProblems();
    live.send(request(row.sent));
  }, soon);
}

function play() {
  if (live.playing) {
    live.interrupt();
    return;
  }
  clearTimeout(timer);
  clearProblems();
  answers = new Map();
  row.clear();
  const groups = row.all;
  byId("said").textContent = "Playing: groups are sent in the order of the sequence.";
  live.play(request(groups), waits(groups));
  byId("play").textContent = "Interrupt";
}

/** Return the computing time of each group, in ms; the time of groups without features is added to the next group. */
function waits(groups) {
  const perRow = (cost) => (typeof cost === "number" ? cost : cost.per_row + cost.fixed / model.rows);
  const costs = new Map(model.groups.map((group) => [group.name, perRow(group.cost)]));
  const scale = PLAY_MS / Math.max(model.total_cost, 1e-9);
  const durations = new Map();
  let pending = 0;
  for (const name of model.steps.flatMap((step) => step.adds)) {
    pending += costs.get(name) * scale;
    if (!groups.has(name)) continue;
    durations.set(name, pending);
    pending = 0;
  }
  return durations;
}

/** Show an answer; `done` if it is the last one of its request. */
function receive(given, done) {
  answer = given;
  answers.set(given.cost, given);
  const sent = row.sent;
  const statements = facts(model, given);
  const missing = omissions(model, given, sent);
  byId("prediction").textContent = prediction(given);
  byId("error").textContent = doubt(model, given);
  byId("spent").max = Math.max(model.total_cost, 1e-9);
  byId("spent").value = given.cost;
  byId("facts").replaceChildren(
    ...statements.map((each) => element("li", {}, each)), ...missing.map((each) => element("li", { class: "lacking" }, each)));
  if (done && !live.playing) byId("doing").textContent = "";
  if (done) byId("said").textContent = `Prediction ${prediction(given)} ${doubt(model, given)}; ${[...statements, ...missing].join("; ")}.`;
  const sorted = [...answers.values()].sort((a, b) => a.cost - b.cost);
  showAnswers(sorted);
  showSteps(byId("steps"), model, curve, given);
  draw();
  parts.show(given, sent);
}

function showAnswers(answers) {
  const classes = answers[0].probabilities !== null;
  const detail = (given) => (classes ? given.probabilities.map((share, i) => `${model.classes[i]} ${percent(share)}`).join(", ") : doubt(model, given));
  fillTable(byId("trail"), "Answers for this row", [`Cost (${model.cost_unit})`, "Prediction", classes ? "How likely" : "Error bar", "Groups"],
    answers.map((given) => [number(given.cost), prediction(given), detail(given), listed(given.groups, 3) || "none"]));
}

function draw() {
  drawCurve(byId("curve-chart"), curve, answer, budget >= 0 ? budget : null);
  if (answer !== null) drawAnswer(byId("answer-chart"), model, [...answers.values()].sort((a, b) => a.cost - b.cost), answer);
}

function setBudget(value, from) {
  budget = value;
  const limit = value ?? Infinity;
  const affordable = curve.points.findLastIndex((point) => point.cost <= limit * (1 + 1e-9)); // -1 if the budget is invalid
  if (from !== "slider") byId("slider").value = Math.max(affordable, 0);
  if (from !== "field") byId("budget").value = value === null ? "" : String(value);
  const description = value === null ? "No limit: every step is allowed."
    : affordable < 0 ? ""
    : affordable > 0 ? `Allows ${affordable} of ${model.steps.length} steps, up to ${curve.points[affordable].group}.` : "Allows no step: the base rate.";
  byId("budget-says").textContent = description;
  byId("slider").setAttribute("aria-valuetext", value === null ? "no limit" : `${value} ${model.cost_unit}: ${description}`);
}

byId("slider").oninput = () => {
  const step = Number(byId("slider").value);
  setBudget(step === model.steps.length ? null : curve.points[step].cost, "slider");
  send({ soon: 30 });
};

byId("budget").oninput = () => {
  const text = byId("budget").value.trim();
  const value = Number(text);
  setBudget(text === "" ? null : Number.isFinite(value) ? value : text, "field"); // the service rejects text that is not a number
  send();
};

byId("policy").onchange = () => {
  describePolicy();
  send({ soon: 0, fresh: true });
};

function describePolicy() {
  byId("policy-says").textContent = policy() === "prefix"
    ? "A group counts after all groups before it in the sequence have arrived."
    : policy() === "best"
    ? model.policies.includes("best") ? "A shorter prefix answers where its cross-validated error is less by one standard error." : "This model has no cross-validated errors, so the answer uses the longest complete prefix."
    : model.policies.includes("arrived") ? `Every group counts when it arrives, in any order${model.measures.least_squares ? "." : "; the answer is approximate unless the groups are a prefix."}`
    : `This model ${model.measures.least_squares ? "was saved without its moments" : "supports prefixes only"}, so the answer uses the longest complete prefix.`;
}

byId("play").onclick = play;
byId("clear").onclick = () => {
  row.clear();
  send({ soon: 0, fresh: true });
};
byId("another").onclick = () => attempt(async () => {
  seed += 1;
  if (await fill()) send({ soon: 0, fresh: true });
});

/** Fill the row with a synthetic one; return false, without filling it, if another model was chosen meanwhile. */
async function fill() {
  const current = row;
  const sample = await get(`models/${encodeURIComponent(model.name)}/sample?seed=${seed}`);
  if (row !== current) return false;
  row.fill(sample.groups);
  byId("row-says").textContent =
    `A synthetic row: values with the means${sample.correlated ? ", deviations and correlations" : " and deviations"} of the training data. ` +
    "Edit the values; an empty field is a missing value. Editing or ticking a group sends it.";
  return true;
}

/** Clear the answers and ignore pending ones, because the model or the key has changed; the next answer redraws the charts. */
function forget() {
  clearTimeout(timer);
  live.forget();
  answer = null;
  answers = new Map();
  for (const id of ["error", "said", "doing"]) byId(id).textContent = "";
  byId("prediction").textContent = "…";
  byId("facts").replaceChildren();
}

/** Load a model and reset the page. */
async function open(name) {
  const path = `models/${encodeURIComponent(name)}`;
  const [described, drawn] = await Promise.all([get(path), get(`${path}/curve`)]);
  if (byId("model").value !== name) return; // another model was chosen meanwhile
  forget();
  [model, curve] = [described, drawn];
  model.featured = new Set(model.groups.filter((group) => group.features.length).map((group) => group.name));
  row = new Row(byId("row"), model, () => send({ fresh: true }));
  if (!(await fill())) return;
  byId("about").textContent = `${model.name} ${model.version}: ${kind(model)} of ${model.target.join(", ")}, ` +
    `${model.groups.length} groups in ${model.steps.length} steps, ${number(model.total_cost)} ${model.cost_unit} in all`;
  byId("unit").textContent = model.cost_unit;
  byId("curve-title").textContent = `${explained(model)} against cost`;
  byId("curve-says").textContent = curveSentence(model, curve);
  byId("promise").textContent = curve.certified === null ? curve.promise : `${curve.promise} ${curve.certified}`;
  byId("slider").max = model.steps.length;
  setBudget(null);
  describePolicy();
  parts.open(model, (error) => attempt(() => { throw error; }));
  showSteps(byId("steps"), model, curve, null);
  draw();
  send({ soon: 0, fresh: true });
}

async function start() {
  const cards = await get("models");
  byId("problem").textContent = "";
  byId("ask-key").hidden = true;
  byId("links").hidden = key.get() !== null; // a link cannot send the key
  const chooser = byId("model");
  chooser.replaceChildren(...cards.map((card) => element("option", {}, card.name)));
  if (!cards.length) throw new Error("No model is loaded: start the service with a model file.");
  chooser.onchange = () => attempt(() => open(chooser.value));
  await open(chooser.value);
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof KeyNeeded) askKey(error.wrong);
    else byId("problem").textContent = error.message;
  }
}

/** Show only the form for the key. */
function askKey(wrong) {
  key.forget();
  forget();
  byId("ask-key").hidden = false;
  byId("key-problem").textContent = wrong ? "The API key is invalid or was revoked." : "";
  byId("key").setAttribute("aria-invalid", String(wrong));
  byId("key").value = "";
  byId("key").focus();
}

byId("key-form").onsubmit = (event) => {
  event.preventDefault();
  const entered = byId("key").value.trim();
  if (!key.possible(entered)) {
    askKey(true);
    return;
  }
  key.store(entered);
  attempt(start);
};

attempt(start);
