// Predictions by POST: all groups in one body, or one line per group as it is computed. The server answers at the
// deadline even if the body is unfinished.
//
//   node post.mjs http://127.0.0.1:8000 [MODEL]        Node 18 or newer
//
// `post` works in browsers too. Only some browsers stream request bodies, and only over HTTP/2: use stream.mjs there.

/** Return the address of a prediction without the parameters that are undefined. */
function address(url, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  return `${url}/predict?${new URLSearchParams(given)}`;
}

/** Send a body and return the answer; throw an error with the reason if the server refuses. */
async function answered(url, parameters, type, body, key) {
  const headers = { "Content-Type": type, ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }) };
  const response = await fetch(address(url, parameters), { method: "POST", headers, body, duplex: "half" });
  const content = await response.json();
  if (!response.ok) throw new Error(`${content.detail} (${content.status})`);
  return content;
}

/** Predict from computed groups, `{name: values}`. */
export function post(url, groups, { deadline_ms, budget, model, key } = {}) {
  return answered(url, { deadline_ms, budget, model }, "application/json", JSON.stringify({ groups }), key);
}

/** Compute the groups in order and send a line for each. */
export function stream(url, extractors, x, { deadline_ms, budget, model, key } = {}) {
  let over = false;
  async function* lines() {
    for (const { group, extract } of extractors) {
      const values = await extract(x);
      if (over) return; // the deadline has expired: stop computing
      yield new TextEncoder().encode(`${JSON.stringify({ group, values })}\n`);
    }
  }
  const body = ReadableStream.from?.(lines()) ?? lines(); // Node 18 accepts the generator itself
  return answered(url, { deadline_ms, budget, model }, "application/x-ndjson", body, key).finally(() => (over = true));
}

if (globalThis.process?.argv[1]?.endsWith("post.mjs")) {
  const { standIns, summary } = await import("./stand_ins.mjs");
  const [url = "http://127.0.0.1:8000", name] = process.argv.slice(2);
  const key = process.env.ANYTIME_KEY;
  const { model, extractors } = await standIns(url, name, key);
  const groups = {};
  for (const { group, extract } of extractors) groups[group] = await extract({});
  console.log("at hand:", summary(await post(url, groups, { deadline_ms: 1000, model, key })));
  for (const deadline_ms of [5, 1000]) {
    console.log(`${deadline_ms} ms:`, summary(await stream(url, extractors, {}, { deadline_ms, model, key })));
  }
}
