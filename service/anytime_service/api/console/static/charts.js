// Charts drawn by plotly, which this server provides; without it, the tables contain the same values.

import { bar, bars, number, percent, signed } from "./words.js";

let library = null;

/** Load plotly once, after the page is usable; null if the server does not have it. */
export function plotly() {
  library ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = "console/plotly.min.js";
    script.onload = () => done(window.Plotly);
    script.onerror = () => done(null);
    document.head.append(script);
  });
  return library;
}

// Plotly interprets tags in texts, so they are escaped.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

const SHOWN_CLASSES = 12;

function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

const CONFIG = { displayModeBar: false, responsive: true, staticPlot: false, scrollZoom: false };

async function draw(place, traces, layout) {
  const Plotly = await plotly();
  if (Plotly === null) {
    place.hidden = true;
    return;
  }
  const colour = colours();
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true, fixedrange: true };
  await Plotly.react(place, traces, {
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    height: place.clientHeight, // follows the height of the adjacent section; plotly sets the width itself
    font: { color: colour("text"), family: getComputedStyle(document.body).fontFamily, size: 13 },
    margin: { l: 8, r: 8, t: 8, b: 8 },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    showlegend: false,
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
    ...(layout.yaxis2 ? { yaxis2: { ...axis, ...layout.yaxis2 } } : {}),
  }, CONFIG);
}

/** Return the indices of the at most four points with the largest gains, which the chart labels. */
function labelled(points) {
  const gains = points.map((point, i) => [i ? point.r2 - points[i - 1].r2 : 0, i]);
  return new Set(gains.sort(([a], [b]) => b - a).slice(0, 4).filter(([gain]) => gain > 0.04 * points.at(-1).r2).map(([, i]) => i));
}

/** Draw the explained share against cost: training, cross-validated, guaranteed, best possible, and the current answer. */
export function drawCurve(place, curve, answer, budget) {
  const colour = colours();
  const { points } = curve;
  const named = labelled(points);
  const x = points.map((point) => point.cost);
  const line = (field, name, style, more) => ({
    x, y: points.map((point) => point[field]), name, type: "scatter", mode: "lines", line: { shape: "hv", ...style },
    hovertemplate: "%{x:.4~g}: %{y:.1%}", ...more,
  });
  const traces = [line("r2", "training", { color: colour("accent"), width: 2.5 }, {
    mode: "lines+markers+text", marker: { size: 6 }, cliponaxis: false,
    textposition: x.map((cost) => (cost > 0.7 * x.at(-1) ? "bottom left" : "bottom right")),
    text: points.map((point, i) => (named.has(i) ? plain(point.group) : "")), textfont: { size: 12 },
    customdata: points.map((point) => plain(point.group ?? "base rate")), hovertemplate: "%{customdata}, %{x:.4~g}: %{y:.1%}",
  })];
  if (points.at(-1).cv_r2 !== null) traces.push(line("cv_r2", "cross-validated", { color: colour("second"), dash: "dash", width: 2 }));
  if (points.some((point) => point.guaranteed_r2 !== null)) {
    traces.push(line("guaranteed_r2", "guaranteed", { color: colour("third"), dash: "dot", width: 2 }));
  }
  if (curve.certified !== null) {
    traces.push(line("penalised_r2", "training, less the penalty", { color: colour("quiet"), width: 1 }));
    // The bound for the cost of a prefix also applies to lower costs, so the line extends to the left of each point.
    traces.push(line("certified_r2", "best possible, certified", { shape: "vh", color: colour("quiet"), dash: "4px,2px", width: 1.5 }));
  }
  if (answer !== null) {
    traces.push({
      x: [answer.cost], y: [answer.expected.r2], name: "this answer", type: "scatter", mode: "markers",
      marker: { size: 14, color: colour("now"), symbol: "diamond", line: { color: colour("card"), width: 2 } }, hovertemplate: "%{x:.4~g}: %{y:.1%}",
    });
  }
  const shapes = budget === null ? [] : [{
    type: "line", x0: budget, x1: budget, yref: "paper", y0: 0, y1: 1, line: { color: colour("now"), width: 1.5, dash: "dashdot" },
    label: { text: "budget", textposition: "end", textangle: 0, xanchor: budget > x.at(-1) / 2 ? "right" : "left", font: { color: colour("now") } },
  }];
  const total = Math.max(x.at(-1), 1e-9);
  const shares = points.flatMap((point) => [point.r2 ?? 0, point.cv_r2 ?? 0, point.certified_r2 ?? 0]);
  const [lowest, highest] = [Math.min(...shares), Math.max(...shares, 0.01)];
  return draw(place, traces, {
    showlegend: true, shapes,
    xaxis: { title: { text: `cost (${plain(curve.cost_unit)})` }, range: [-0.02 * total, 1.04 * total] },
    yaxis: { tickformat: ".0%", range: [lowest - 0.04 * (highest - lowest), highest + 0.06 * (highest - lowest)] },
  });
}

/** Draw the predictions of one number against cost, with error bars; the current answer is highlighted. */
function drawNumber(place, model, answers, now) {
  const colour = colours();
  const trace = (answers, name, style, size) => {
    const bars = answers.map((answer) => bar(model, answer));
    return {
      x: answers.map((answer) => answer.cost), y: answers.map((answer) => answer.prediction), name, type: "scatter", mode: "markers",
      marker: { size, color: style, symbol: name === "now" ? "diamond" : "circle" }, hovertemplate: "%{x:.4~g}: %{y:.4~g}<extra></extra>",
      error_y: {
        type: "data", symmetric: false, color: style, thickness: name === "now" ? 2.5 : 1.2, width: name === "now" ? 7 : 4,
        array: bars.map((ends, i) => (ends ? ends[1] - answers[i].prediction : 0)),
        arrayminus: bars.map((ends, i) => (ends ? answers[i].prediction - ends[0] : 0)),
      },
    };
  };
  const path = {
    x: answers.map((answer) => answer.cost), y: answers.map((answer) => answer.prediction), type: "scatter", mode: "lines",
    line: { shape: "hv", color: colour("accent"), width: 1 }, hoverinfo: "skip",
  };
  const total = Math.max(model.total_cost, 1e-9);
  return draw(place, [path, trace(answers.filter((answer) => answer !== now), "before", colour("accent"), 6), trace([now], "now", colour("now"), 13)], {
    xaxis: { title: { text: `cost (${plain(model.cost_unit)})` }, range: [-0.03 * total, 1.04 * total] },
    yaxis: { title: { text: `${model.measures.least_squares ? "" : "expected "}${plain(model.responses[0])}` } },
  });
}

/** Draw horizontal bars: the probability of each class, with `chosen` highlighted, or each response with its error bar. */
function drawBars(place, names, values, ends, layout, chosen = null) {
  const colour = colours();
  return draw(place, [{
    type: "bar", orientation: "h", x: values, y: names.map(plain), marker: { color: names.map((name) => colour(name === chosen ? "now" : "accent")) }, hovertemplate: "%{y}: %{x:.4~g}<extra></extra>",
    error_x: ends === null ? { visible: false } : {
      type: "data", symmetric: false, color: colour("text"),
      array: ends.map(([, high], i) => high - values[i]), arrayminus: ends.map(([low], i) => values[i] - low),
    },
    ...layout.trace,
  }], { bargap: 0.35, yaxis: { autorange: "reversed", type: "category" }, xaxis: layout.xaxis });
}

/** Draw an answer in the way that fits the model's task. */
export function drawAnswer(place, model, answers, now) {
  if (now.probabilities !== null) {
    const likely = now.probabilities.map((share, i) => [share, String(model.classes[i])]);
    const shown = likely.length > SHOWN_CLASSES ? likely.sort(([a], [b]) => b - a).slice(0, SHOWN_CLASSES) : likely;
    const shares = shown.map(([share]) => share);
    return drawBars(place, shown.map(([, name]) => name), shares, null, {
      trace: { text: shares.map(percent), textposition: "outside" }, xaxis: { range: [0, 1.15], tickformat: ".0%" },
    }, String(now.prediction));
  }
  if (Array.isArray(now.prediction)) return drawBars(place, model.responses, now.prediction, bars(model, now), { xaxis: {} });
  return drawNumber(place, model, answers, now);
}

/** Draw a waterfall from the base value by each part, {name, value}, to the score; the numbers stand next to the names. */
export function drawParts(place, base, parts, score) {
  const colour = colours();
  const ends = [base];
  for (const { value } of parts) ends.push(ends.at(-1) + value);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const space = 0.08 * (high - low || Math.abs(base) || 1);
  const bars = [["base value", number(base)], ...parts.map(({ name, value }) => [name, signed(value)]), ["score", number(score)]];
  return draw(place, [{
    type: "waterfall", orientation: "h", measure: ["absolute", ...parts.map(() => "relative"), "total"],
    x: [base, ...parts.map(({ value }) => value), score], y: bars.map((_, i) => `${i}`), textposition: "none",
    text: bars.map((texts) => plain(texts.join(" "))), hovertemplate: "%{text}<extra></extra>", connector: { line: { color: colour("quiet"), width: 1, dash: "dot" } },
    increasing: { marker: { color: colour("accent") } }, decreasing: { marker: { color: colour("second") } }, totals: { marker: { color: colour("quiet") } },
  }], {
    xaxis: { range: [low - space, high + space], zeroline: false, nticks: 6 },
    yaxis: {
      autorange: "reversed", type: "category", tickmode: "array", tickvals: bars.map((_, i) => `${i}`),
      ticktext: bars.map(([name, value]) => `${plain(short(name))} <b>${value}</b>`),
    },
  });
}

/** Draw what each value of a column contributes to score `k`, above the distribution of the rows; `value` and `part` are those of the row. */
export function drawShape(place, shape, k, value, part, isDate = false) {
  const colour = colours();
  const of = ({ contribution }) => (Array.isArray(contribution) ? contribution[k] : contribution);
  const mark = (x) => ({ x: [x], y: [part], type: "scatter", mode: "markers", marker: { size: 13, symbol: "diamond", color: colour("now"), line: { color: colour("card"), width: 2 } }, hovertemplate: "%{y:.4~g}<extra>this row</extra>" });
  const layout = {
    bargap: 0.3,
    xaxis: { anchor: "y2", nticks: 6 },
    yaxis: { domain: [0.28, 1], zerolinecolor: colour("quiet"), title: { text: "contribution" } },
    yaxis2: { domain: [0, 0.18], showticklabels: false, showgrid: false },
  };
  const below = { yaxis: "y2", marker: { color: colour("line") } };
  if (isDate) layout.xaxis.type = "date";
  const at = (x) => (isDate ? 1000 * x : x); // in milliseconds
  if (shape.points.length && !(isDate && shape.levels.length)) {
    const [first, last] = [shape.points[0].x, shape.points.at(-1).x];
    const traces = [{ x: shape.points.map(({ x }) => at(x)), y: shape.points.map(of), type: "scatter", mode: "lines", line: { color: colour("accent"), width: 2.5 }, hovertemplate: `%{x${isDate ? "" : ":.4~g"}}: %{y:.4~g}<extra></extra>` }];
    if (shape.levels.length) traces.push({ x: shape.levels.map(({ level }) => level), y: shape.levels.map(of), type: "scatter", mode: "markers", marker: { size: 8, color: colour("accent") }, hovertemplate: "%{x:.4~g}: %{y:.4~g}<extra></extra>" });
    if (shape.quantiles) traces.push({ x: likely(shape.quantiles).map(at), type: "histogram", nbinsx: 24, hoverinfo: "skip", ...below });
    if (shape.missing) {
      layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: of(shape.missing), y1: of(shape.missing), line: { color: colour("second"), width: 1.5, dash: "dash" }, label: { text: "missing", textposition: "end", font: { color: colour("second") } } }];
    }
    if (value !== null) traces.push(mark(at(Math.min(Math.max(Number(value), first), last))));
    return draw(place, traces, layout);
  }
  // Months, weekdays and hours of a date are in their order.
  const frequent = isDate ? shape.levels : [...shape.levels].sort((a, b) => b.share - a.share).slice(0, SHOWN_CLASSES);
  const levels = frequent.map((each) => [String(each.level), each]);
  if (shape.other) levels.push(["(other)", shape.other]);
  if (shape.missing) levels.push(["(missing)", shape.missing]);
  const x = levels.map((_, i) => i);
  const now = levels.findIndex(([name, each]) => (each.level === null ? value === null && each === shape.missing : matches(name, value)));
  const place_of = now >= 0 ? now : levels.findIndex(([, each]) => each === shape.other);
  return draw(place, [
    { x, y: levels.map(([, each]) => of(each)), type: "bar", marker: { color: levels.map((_, i) => colour(i === place_of ? "now" : "accent")) }, text: levels.map(([name]) => plain(name)), textposition: "none", hovertemplate: "%{text}: %{y:.4~g}<extra></extra>" },
    { x, y: levels.map(([, each]) => each.share), type: "bar", hovertemplate: "%{y:.1%} of the rows<extra></extra>", ...below },
  ], { ...layout, xaxis: { ...layout.xaxis, type: "linear", tickmode: "array", tickvals: x, ticktext: levels.map(([name]) => plain(short(name, 14))) } });
}

/** Return whether a level, as text, is a value of the row; a boolean may be 0 or 1. */
const matches = (name, value) => value !== null && (typeof value === "string" ? name === value : Number(name) === Number(value) || name === String(Boolean(value)));

const short = (name, most = 22) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

/** Return equally likely values, given quantiles at equal steps of probability. */
function likely(quantiles, count = 200) {
  return Array.from({ length: count }, (_, i) => {
    const at = ((i + 0.5) / count) * (quantiles.length - 1);
    const low = Math.floor(at);
    return quantiles[low] + (at - low) * (quantiles[low + 1] - quantiles[low]);
  });
}
