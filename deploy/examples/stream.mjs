// Predictions over a WebSocket: the client sends each group as soon as it is computed, and the answer arrives by the
// deadline even if an extractor is still running. Many predictions share one connection.
//
//   node stream.mjs http://127.0.0.1:8000 [MODEL]                           Node 22 or newer, Deno, Bun
//   node --experimental-websocket stream.mjs http://127.0.0.1:8000 [MODEL]  Node 20
//
// In a browser: import { connect } from "./stream.mjs".

/** Encode a key as a token for a subprotocol: percent-encoded, including parentheses. */
const encoded = (key) => encodeURIComponent(key).replace(/[()]/g, (each) => `%${each.charCodeAt(0).toString(16)}`);

/** Connect to a server; a key is sent as a subprotocol, since a browser's WebSocket cannot send headers. */
export function connect(url, key) {
  if (typeof WebSocket === "undefined") throw new Error("no WebSocket here; Node 20 needs --experimental-websocket");
  const protocols = ["anytime.v1", ...(key === undefined ? [] : [`anytime.key.${encoded(key)}`])];
  const socket = new WebSocket(`${url.replace(/^http/, "ws").replace(/\/$/, "")}/stream`, protocols);
  const open = new Map(); // predictions that wait for their answer, by id
  let count = 0;

  const ready = new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error(`cannot connect to ${url}`));
  });
  ready.catch(() => {}); // the call that waits for it reports the error
  socket.onclose = () => {
    for (const { reject } of open.values()) reject(new Error("the connection closed"));
    open.clear();
  };
  socket.onmessage = ({ data }) => {
    const { type, id, problem, ...answer } = JSON.parse(data);
    const waiting = open.get(id);
    if (waiting === undefined) return; // already answered
    if (type === "update") {
      waiting.onUpdate?.(answer);
    } else {
      open.delete(id);
      if (type === "answer") waiting.resolve(answer);
      else waiting.reject(new Error(`${problem.detail} (${problem.status})`));
    }
  };

  /** Compute and send the groups in order, and return the answer; `onUpdate` receives better answers on the way. */
  async function run(extractors, x, { deadlineMs, budget, model, onUpdate } = {}) {
    await ready;
    if (socket.readyState !== WebSocket.OPEN) throw new Error("the connection closed; connect again");
    const id = count++;
    const answered = new Promise((resolve, reject) => open.set(id, { resolve, reject, onUpdate }));
    const send = (type, fields) => socket.send(JSON.stringify({ type, id, ...fields })); // omits undefined fields
    send("begin", { model, budget, deadline_ms: deadlineMs, updates: onUpdate !== undefined });
    const compute = async () => {
      for (const { group, extract } of extractors) {
        const begun = performance.now();
        const values = await extract(x);
        if (!open.has(id)) return; // the deadline has expired: stop computing
        send("group", { group, values, took_ms: performance.now() - begun });
      }
      if (open.has(id)) send("end");
    };
    compute().catch((error) => {
      open.get(id)?.reject(error);
      open.delete(id);
    });
    return answered;
  }

  return { run, close: () => socket.close() };
}

if (globalThis.process?.argv[1]?.endsWith("stream.mjs")) {
  const { standIns, summary } = await import("./stand_ins.mjs");
  const [url = "http://127.0.0.1:8000", name] = process.argv.slice(2);
  const key = process.env.ANYTIME_KEY;
  const { model, extractors } = await standIns(url, name, key);
  const server = connect(url, key);
  const onUpdate = (update) => console.log("  so far", summary({ ...update, reason: "update" }));
  for (const deadlineMs of [0, 5, 1000]) {
    console.log(`${deadlineMs} ms:`, summary(await server.run(extractors, {}, { deadlineMs, model, onUpdate })));
  }
  server.close();
}
