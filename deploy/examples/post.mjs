// Predictions by POST: the groups in one body, or a line for each as it is computed, answered at the deadline though
// the body is unfinished.
//
//   node post.mjs http://127.0.0.1:8000 [MODEL]        Node 18 or newer
//
// `post` works in browsers too. Of them only some stream request bodies, and those only over HTTP/2: use stream.mjs.

/** Address of a prediction; parameters that are undefined are left out. */
function address(url, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  return `${url}/predict?${new URLSearchParams(given)}`;
}

/** Send a body and read the answer; what the server refuses is thrown with its reason. */
async function answered(url, parameters, type, body, key) {
  const headers = { "Content-Type": type, ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }) };
  const response = await fetch(address(url, parameters), { method: "POST", headers, body, duplex: "half" });
  const content = await response.json();
  if (!response.ok) throw new Error(`${content.detail} (${content.status})`);
  return content;
}

/** Predict from groups that are at hand, `{name: values}`. */
export function post(url, groups, { deadline_ms, budget, model, key } = {}) {
  return answered(url, { deadline_ms, budget, model }, "application/json", JSON.stringify({ groups }), key);
}

/** Compute groups one after another and send a line for each. */
export function stream(url, extractors, x, { deadline_ms, budget, model, key } = {}) {
  let over = false;
  async function* lines() {
    for (const { group, extract } of extractors) {
      const values = await extract(x);
      if (over) return; // the deadline has struck: compute no more
      yield new TextEncoder().encode(`${JSON.stringify({ group, values })}\n`);
    }
  }
  const body = ReadableStream.from?.(lines()) ?? lines(); // Node 18 takes the generator itself
  return answered(url, { deadline_ms, budget, model }, "application/x-ndjson", body, key).finally(() => (over = true));
}

if (globalThis.process?.argv[1]?.endsWith("post.mjs")) {
  const { standIns, told } = await import("./stand_ins.mjs");
  const [url = "http://127.0.0.1:8000", name] = process.argv.slice(2);
  const key = process.env.ANYTIME_KEY;
  const { model, extractors } = await standIns(url, name, key);
  const groups = {};
  for (const { group, extract } of extractors) groups[group] = await extract({});
  console.log("at hand:", told(await post(url, groups, { deadline_ms: 1000, model, key })));
  for (const deadline_ms of [5, 1000]) {
    console.log(`${deadline_ms} ms:`, told(await stream(url, extractors, {}, { deadline_ms, model, key })));
  }
}
