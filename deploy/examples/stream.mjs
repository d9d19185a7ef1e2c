// Predictions over a WebSocket: each group leaves as soon as it is computed, and the answer comes by the deadline,
// whatever the extractor is doing. Many predictions share one connection.
//
//   node stream.mjs http://127.0.0.1:8000 [MODEL]                           Node 22 or newer, Deno, Bun
//   node --experimental-websocket stream.mjs http://127.0.0.1:8000 [MODEL]  Node 20
//
// In a browser: import { connect } from "./stream.mjs".

/** A key as a subprotocol may have it: percent-encoded, parentheses too. */
const encoded = (key) => encodeURIComponent(key).replace(/[()]/g, (each) => `%${each.charCodeAt(0).toString(16)}`);

/** Connect to a server; a key goes as a subprotocol, since a browser's WebSocket has no headers to put it in. */
export function connect(url, key) {
  if (typeof WebSocket === "undefined") throw new Error("no WebSocket here: Node 20 has it by --experimental-websocket");
  const protocols = ["anytime.v1", ...(key === undefined ? [] : [`anytime.key.${encoded(key)}`])];
  const socket = new WebSocket(`${url.replace(/^http/, "ws").replace(/\/$/, "")}/stream`, protocols);
  const open = new Map(); // predictions that wait for their answer, by id
  let count = 0;

  const ready = new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error(`cannot connect to ${url}`));
  });
  ready.catch(() => {}); // told by whichever call waits for it
  socket.onclose = () => {
    for (const { reject } of open.values()) reject(new Error("the connection closed"));
    open.clear();
  };
  socket.onmessage = ({ data }) => {
    const { type, id, problem, ...answer } = JSON.parse(data);
    const waiting = open.get(id);
    if (waiting === undefined) return; // answered already
    if (type === "update") {
      waiting.onUpdate?.(answer);
    } else {
      open.delete(id);
      if (type === "answer") waiting.resolve(answer);
      else waiting.reject(new Error(`${problem.detail} (${problem.status})`));
    }
  };

  /** Compute groups one after another, send each, and return the answer; `onUpdate` is called with better ones before. */
  async function run(extractors, x, { deadlineMs, budget, model, onUpdate } = {}) {
    await ready;
    if (socket.readyState !== WebSocket.OPEN) throw new Error("the connection closed; connect again");
    const id = count++;
    const answered = new Promise((resolve, reject) => open.set(id, { resolve, reject, onUpdate }));
    const send = (type, fields) => socket.send(JSON.stringify({ type, id, ...fields })); // undefined is left out
    send("begin", { model, budget, deadline_ms: deadlineMs, updates: onUpdate !== undefined });
    const compute = async () => {
      for (const { group, extract } of extractors) {
        const begun = performance.now();
        const values = await extract(x);
        if (!open.has(id)) return; // the deadline has struck: compute no more
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
  const { standIns, told } = await import("./stand_ins.mjs");
  const [url = "http://127.0.0.1:8000", name] = process.argv.slice(2);
  const key = process.env.ANYTIME_KEY;
  const { model, extractors } = await standIns(url, name, key);
  const server = connect(url, key);
  const onUpdate = (update) => console.log("  so far", told({ ...update, reason: "update" }));
  for (const deadlineMs of [0, 5, 1000]) {
    console.log(`${deadlineMs} ms:`, told(await server.run(extractors, {}, { deadlineMs, model, onUpdate })));
  }
  server.close();
}
