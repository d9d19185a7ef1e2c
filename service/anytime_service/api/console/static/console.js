// The page: what the controls say becomes a question, and every answer is shown in words, in charts and in tables.

import { drawAnswer, drawCurve } from "./charts.js";
import { byId, element, fillTable } from "./element.js";
import { Live } from "./live.js";
import { Row } from "./row.js";
import { KeyNeeded, get, key } from "./service.js";
import { curveSentence, showSteps } from "./steps.js";
import { doubt, explained, facts, kind, lacks, listed, number, percent, prediction } from "./words.js";

const PLAYED_MS = 5000; // what all costs of a model take when they are played
const TYPING_MS = 150; // a pause in typing that is worth a question

let model, curve, row;
let seed = 0;
let budget = null;
let answer = null;
let trail = new Map(); // the answers to one row by their cost, for the chart that shows them improve
let later = null;

const policy = () => document.querySelector("input[name=policy]:checked").value;

const live = new Live({
  answer: take,
  problem: (problem) => {
    if (row.refuse(problem)) return;
    const place = problem.field === "budget" ? byId("budget-problem") : byId("problem");
    place.textContent ||= problem.detail;
    byId("doing").textContent = "This was the answer before: what is asked now has none.";
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
  lost: () => get("models").catch((error) => error instanceof KeyNeeded && askKey(error.wrong)), // perhaps the key is why
});

function forgive() {
  byId("problem").textContent = "";
  byId("budget-problem").textContent = "";
  row.forgive();
}

const question = (groups) => ({ model: model.name, budget, policy: policy(), groups });

/** Ask anew with all that is sent, when the controls have been still for a moment. */
function ask({ soon = TYPING_MS, fresh = false } = {}) {
  if (fresh) trail = new Map();
  clearTimeout(later);
  later = setTimeout(() => {
    forgive();
    live.ask(question(row.sent));
  }, soon);
}

function play() {
  if (live.playing) {
    live.interrupt();
    return;
  }
  clearTimeout(later);
  forgive();
  trail = new Map();
  row.clear();
  const groups = row.all;
  byId("said").textContent = "Playing: groups are sent in the order of the sequence.";
  live.play(question(groups), waits(groups));
  byId("play").textContent = "Interrupt";
}

/** How long each group is computed, in ms; groups without features take their time before the next that has some. */
function waits(groups) {
  const costs = new Map(model.groups.map((group) => [group.name, group.cost]));
  const scale = PLAYED_MS / Math.max(model.total_cost, 1e-9);
  const found = new Map();
  let open = 0;
  for (const name of model.steps.flatMap((step) => step.adds)) {
    open += costs.get(name) * scale;
    if (!groups.has(name)) continue;
    found.set(name, open);
    open = 0;
  }
  return found;
}

/** Show an answer; `done` when it is the last one of its question. */
function take(given, done) {
  answer = given;
  trail.set(given.cost, given);
  const sent = row.sent;
  const said = facts(model, given);
  const lacking = lacks(given, [...sent.keys()]);
  byId("prediction").textContent = prediction(given);
  byId("error").textContent = doubt(model, given);
  byId("spent").max = Math.max(model.total_cost, 1e-9);
  byId("spent").value = given.cost;
  byId("facts").replaceChildren(
    ...said.map((each) => element("li", {}, each)), ...lacking.map((each) => element("li", { class: "lacking" }, each)));
  if (done && !live.playing) byId("doing").textContent = "";
  if (done) byId("said").textContent = `Prediction ${prediction(given)} ${doubt(model, given)}; ${[...said, ...lacking].join("; ")}.`;
  const answers = [...trail.values()].sort((a, b) => a.cost - b.cost);
  showTrail(answers);
  showSteps(byId("steps"), model, curve, given, sent);
  draw();
}

function showTrail(answers) {
  const classes = answers[0].probabilities !== null;
  const rest = (given) => (classes ? given.probabilities.map((share, i) => `${model.classes[i]} ${percent(share)}`).join(", ") : doubt(model, given));
  fillTable(byId("trail"), "Answers for this row", [`Cost (${model.cost_unit})`, "Prediction", classes ? "How likely" : "Error bar", "Groups"],
    answers.map((given) => [number(given.cost), prediction(given), rest(given), listed(given.groups, 3) || "none"]));
}

function draw() {
  drawCurve(byId("curve-chart"), curve, answer, budget >= 0 ? budget : null);
  if (answer !== null) drawAnswer(byId("answer-chart"), model, [...trail.values()].sort((a, b) => a.cost - b.cost), answer);
}

function setBudget(value, from) {
  budget = value;
  const limit = value ?? Infinity;
  const affordable = curve.points.findLastIndex((point) => point.cost <= limit * (1 + 1e-9)); // -1 where it is no budget
  if (from !== "slider") byId("slider").value = Math.max(affordable, 0);
  if (from !== "field") byId("budget").value = value === null ? "" : String(value);
  const says = value === null ? "No limit: every step is allowed."
    : affordable < 0 ? ""
    : affordable > 0 ? `Allows ${affordable} of ${model.steps.length} steps, up to ${curve.points[affordable].group}.` : "Allows no step: the base rate.";
  byId("budget-says").textContent = says;
  byId("slider").setAttribute("aria-valuetext", value === null ? "no limit" : `${value} ${model.cost_unit}: ${says}`);
}

byId("slider").oninput = () => {
  const step = Number(byId("slider").value);
  setBudget(step === model.steps.length ? null : curve.points[step].cost, "slider");
  ask({ soon: 30 });
};

byId("budget").oninput = () => {
  const text = byId("budget").value.trim();
  const value = Number(text);
  setBudget(text === "" ? null : Number.isFinite(value) ? value : text, "field"); // what is no number the service refuses
  ask();
};

byId("policy").onchange = () => {
  sayPolicy();
  ask({ soon: 0, fresh: true });
};

function sayPolicy() {
  byId("policy-says").textContent = policy() === "prefix"
    ? "A group counts once every group before it in the sequence has arrived."
    : model.policies.includes("arrived") ? `Every group counts at once, in whatever order it comes${model.family === "gaussian" ? "." : "; the answer is approximate where they are no prefix."}`
    : `This model ${model.family === "multinomial" ? "knows prefixes only" : "was saved without its moments"}, so the longest complete prefix answers.`;
}

byId("play").onclick = play;
byId("clear").onclick = () => {
  row.clear();
  ask({ soon: 0, fresh: true });
};
byId("another").onclick = () => attempt(async () => {
  seed += 1;
  if (await fill()) ask({ soon: 0, fresh: true });
});

/** Have a row made up; false where another model was chosen meanwhile, whose row is not filled with it. */
async function fill() {
  const mine = row;
  const sample = await get(`models/${encodeURIComponent(model.name)}/sample?seed=${seed}`);
  if (row !== mine) return false;
  row.fill(sample.groups);
  byId("row-says").textContent =
    `A made-up row: values with the means and deviations${sample.correlated ? " and correlations" : ""} of the training data. ` +
    "Type over them; what is left empty is missing. A group that is typed into, or ticked, is sent.";
  return true;
}

/** No answer is told, nor one under way: it was another model's, or for another key. The next one draws the charts anew. */
function forget() {
  clearTimeout(later);
  live.forget();
  answer = null;
  trail = new Map();
  for (const id of ["error", "said", "doing"]) byId(id).textContent = "";
  byId("prediction").textContent = "…";
  byId("facts").replaceChildren();
}

/** Show a model from the start. */
async function open(name) {
  const path = `models/${encodeURIComponent(name)}`;
  const [described, drawn] = await Promise.all([get(path), get(`${path}/curve`)]);
  if (byId("model").value !== name) return; // another was chosen meanwhile
  forget();
  [model, curve] = [described, drawn];
  model.featured = new Set(model.groups.filter((group) => group.features.length).map((group) => group.name));
  row = new Row(byId("row"), model, () => ask({ fresh: true }));
  if (!(await fill())) return;
  byId("about").textContent = `${model.name} ${model.version}: ${kind(model)} of ${model.target.join(", ")}, ` +
    `${model.groups.length} groups in ${model.steps.length} steps, ${number(model.total_cost)} ${model.cost_unit} in all`;
  byId("unit").textContent = model.cost_unit;
  byId("curve-title").textContent = `${explained(model)} against cost`;
  byId("curve-says").textContent = curveSentence(model, curve);
  byId("promise").textContent = curve.certified === null ? curve.promise : `${curve.promise} ${curve.certified}`;
  byId("slider").max = model.steps.length;
  setBudget(null);
  sayPolicy();
  showSteps(byId("steps"), model, curve, null, row.sent);
  draw();
  ask({ soon: 0, fresh: true });
}

async function start() {
  const cards = await get("models");
  byId("problem").textContent = "";
  byId("ask-key").hidden = true;
  byId("links").hidden = key.get() !== null; // what it leads to cannot be asked for with a key, by a link
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

/** Ask for the key, instead of showing anything else. */
function askKey(wrong) {
  key.forget();
  forget();
  byId("ask-key").hidden = false;
  byId("key-problem").textContent = wrong ? "This key does not hold, or no longer does." : "";
  byId("key").setAttribute("aria-invalid", String(wrong));
  byId("key").value = "";
  byId("key").focus();
}

byId("key-form").onsubmit = (event) => {
  event.preventDefault();
  const told = byId("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(told)) { // what no header can carry
    askKey(true);
    return;
  }
  key.keep(told);
  attempt(start);
};

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => model && draw());
attempt(start);
