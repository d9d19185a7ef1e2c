// Stand-ins for feature extractors, so that the examples run with any server: one for each group that has features, in
// the order of the model's sequence. Real extractors compute the values; these wait, and return those of the made-up row
// that the server draws with the means and deviations of the training rows.

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
  const { steps } = await get(`/models/${encodeURIComponent(model)}`);
  const { groups: values } = await get(`/models/${encodeURIComponent(model)}/sample`);
  const extractors = steps
    .flatMap(({ adds }) => adds)
    .filter((group) => group in values)
    .map((group) => ({
      group,
      extract: async () => {
        await wait(ms);
        return values[group];
      },
    }));
  return { model, extractors };
}

/** Return the line that an example prints for an answer. */
export function summary({ prediction, groups, prefix, steps, reason, elapsed_ms }) {
  const used = groups.join(", ") || "nothing";
  return `${JSON.stringify(prediction)} from ${used} (${prefix} of ${steps} steps, ${reason}, ${elapsed_ms.toFixed(1)} ms)`;
}
