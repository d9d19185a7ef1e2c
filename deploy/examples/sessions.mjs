// Sessions: a prediction that stays open on the server, for groups that arrive over minutes or from several programs.
//
//   node sessions.mjs http://127.0.0.1:8000 [MODEL]        Node 18 or newer, and browsers

/** Begin a session on a server. */
export async function begin(url, { model, rows, key } = {}) {
  const headers = { "Content-Type": "application/json", ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }) };

  /** Send a request and return the content; throw an error with the reason if the server refuses. */
  async function send(method, path, body) {
    const response = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
    const content = response.status === 204 ? undefined : await response.json();
    if (!response.ok) throw new Error(`${content.detail} (${content.status})`);
    return content;
  }

  const { id } = await send("POST", "/sessions", { model, rows });
  return {
    id,
    /** Send groups, `{name: values}`: the server accepts all or none. */
    add: (groups) => send("POST", `/sessions/${id}/groups`, groups),
    /** Answer from the groups sent: at once, or with a deadline then or when the budget's prefix is complete. */
    predict: (parameters = {}) => send("GET", `/sessions/${id}/predict?${new URLSearchParams(parameters)}`),
    /** End the session; an unused session expires. */
    end: () => send("DELETE", `/sessions/${id}`),
  };
}

if (globalThis.process?.argv[1]?.endsWith("sessions.mjs")) {
  const { standIns, summary } = await import("./stand_ins.mjs");
  const [url = "http://127.0.0.1:8000", name] = process.argv.slice(2);
  const key = process.env.ANYTIME_KEY;
  const { model, extractors } = await standIns(url, name, key);
  const session = await begin(url, { model, key });
  for (const { group, extract } of extractors) {
    const { prefix, steps } = await session.add({ [group]: await extract({}) });
    console.log(`${group}: ${prefix} of ${steps} steps,`, summary(await session.predict()));
  }
  console.log("waited:", summary(await session.predict({ deadline_ms: 20 })));
  await session.end();
}
