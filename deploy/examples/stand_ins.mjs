// Stand-ins for feature extractors, so that the examples run with any server: one for each group that has features, in
// the order of the model's sequence. Real extractors compute the values; these wait and make them up.

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Return the name of a model of the server, by default its first, and `[{group, extract}, ...]`. */
export async function standIns(url, model, key, ms = 2) {
  const headers = key === undefined ? {} : { Authorization: `Bearer ${key}` };
  const get = async (path) => {
    const response = await fetch(url + path, { headers });
    const content = await response.json();
    if (!response.ok) throw new Error(`${content.detail} (${content.status})`);
    return content;
  };
  if (model === undefined) [{ name: model }] = await get("/models");
  const { steps, groups } = await get(`/models/${encodeURIComponent(model)}`);
  const width = Object.fromEntries(groups.map(({ name, features }) => [name, features.length]));
  const extractors = steps
    .flatMap(({ adds }) => adds)
    .filter((group) => width[group] > 0)
    .map((group) => ({
      group,
      extract: async () => {
        await wait(ms);
        return Array.from({ length: width[group] }, () => Math.random());
      },
    }));
  return { model, extractors };
}

/** Return the line that an example prints for an answer. */
export function summary({ prediction, groups, prefix, steps, reason, elapsed_ms }) {
  const used = groups.join(", ") || "nothing";
  return `${JSON.stringify(prediction)} from ${used} (${prefix} of ${steps} steps, ${reason}, ${elapsed_ms.toFixed(1)} ms)`;
}
