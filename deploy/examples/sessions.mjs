// Sessions: a prediction that stays open on the server, for groups that come over minutes or from several programs.
//
//   node sessions.mjs http://127.0.0.1:8000 [MODEL]        Node 18 or newer, and browsers

/** Begin a session on a server. */
export async function begin(url, { model, rows, key } = {}) {
  const headers = { "Content-Type": "application/json", ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }) };

  /** Send a request; what the server refuses is thrown with its reason. */
  async function ask(method, path, body) {
    const response = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
    const content = response.status === 204 ? undefined : await response.json();
    if (!response.ok) throw new Error(`${content.detail} (${content.status})`);
    return content;
  }

  const { id } = await ask("POST", "/sessions", { model, rows });
  return {
    id,
    /** Send groups, `{name: values}`: all are taken, or none. */
    add: (groups) => ask("POST", `/sessions/${id}/groups`, groups),
    /** Answer from what was sent: at once, or by a deadline when the groups of the budget are awaited. */
    predict: (parameters = {}) => ask("GET", `/sessions/${id}/predict?${new URLSearchParams(parameters)}`),
    /** End it; one that is left alone expires. */
    end: () => ask("DELETE", `/sessions/${id}`),
  };
}

if (globalThis.process?.argv[1]?.endsWith("sessions.mjs")) {
  const { standIns, told } = await import("./stand_ins.mjs");
  const [url = "http://127.0.0.1:8000", name] = process.argv.slice(2);
  const key = process.env.ANYTIME_KEY;
  const { model, extractors } = await standIns(url, name, key);
  const session = await begin(url, { model, key });
  for (const { group, extract } of extractors) {
    const { prefix, steps } = await session.add({ [group]: await extract({}) });
    console.log(`${group}: ${prefix} of ${steps} steps,`, told(await session.predict()));
  }
  console.log("waited:", told(await session.predict({ deadline_ms: 20 })));
  await session.end();
}
