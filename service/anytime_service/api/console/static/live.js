// Predictions for one row: sent at once with all groups, or played, one group after another with pauses by their costs.
//
// A request is {model, budget, policy, groups}; `groups` is a Map from names to values, in the order of sending.

import { Stream } from "./service.js";

const OF_BEGIN = new Set(["model", "rows", "budget", "deadline_ms", "policy"]);

/** Return whether a problem refuses a `begin` message: an option is invalid, or the service is overloaded. */
const ofBegin = ({ type, field }) => (field ? OF_BEGIN.has(field) : type.endsWith(":overloaded"));

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export class Live {
  #stream;
  #last = 0; // last id; every id is used once
  #since = 0; // replies with a lower id are stale
  #played = null; // {id, open, sent, refused} of the prediction being played

  /** `on` has the callbacks answer(answer, done), problem(problem), group(name, state), ended() and lost(). */
  constructor(on) {
    this.on = on;
    this.#stream = new Stream((frame) => this.#receive(frame), (reason) => this.#lost(reason));
  }

  get playing() {
    return this.#played !== null;
  }

  /** Send a request with all groups at once; the service sends exactly one answer. */
  send(request) {
    this.#stopPlaying();
    const id = this.#begin(request, false);
    this.#since = id;
    this.#sendGroups(id, ...request.groups);
    this.#end(id);
  }

  /**
   * Begin a prediction, and send each group after its duration in ms. The service sends updates, and the last one as the
   * answer. A play is slower than real groups: if the service's maximum deadline expires meanwhile, the next group begins
   * a new prediction.
   */
  async play(request, durations) {
    this.send({ ...request, groups: new Map() }); // the base rate, to start from
    const played = { id: this.#begin(request, true), open: true, sent: false, refused: false };
    const sentGroups = [];
    this.#played = played;
    for (const [name, values] of request.groups) {
      this.on.group(name, "computing");
      await pause(durations.get(name));
      if (this.#played !== played) return;
      this.on.group(name, "sent");
      if (!played.open) {
        Object.assign(played, { id: this.#begin(request, true), open: true });
        this.#sendGroups(played.id, ...sentGroups);
      }
      this.#sendGroups(played.id, [name, values]);
      sentGroups.push([name, values]);
    }
    played.sent = true;
    this.#endIfRefused(played);
  }

  /** End the played prediction, like a deadline: the service answers from the groups received. */
  interrupt() {
    if (this.#played === null) return;
    this.#end(this.#played.id); // has no effect if the prediction is already answered
    this.#stopPlaying();
  }

  /** End the played prediction, and ignore all further replies to earlier requests. */
  forget() {
    this.interrupt();
    this.#since = this.#last + 1;
  }

  #begin({ model, budget, policy }, updates) {
    const id = ++this.#last;
    this.#stream.send({ type: "begin", id, model, rows: 1, policy, updates, explain: true, ...(budget === null ? {} : { budget }) });
    return id;
  }

  #sendGroups(id, ...groups) {
    this.#stream.send(...groups.map(([group, values]) => ({ type: "group", id, group, values })));
  }

  #end(id) {
    this.#stream.send({ type: "end", id });
  }

  /** End a prediction if a group was refused; the service answers by itself only if it has received all groups. */
  #endIfRefused({ id, sent, refused }) {
    if (sent && refused) this.#end(id);
  }

  #stopPlaying() {
    if (this.#played === null) return;
    this.#played = null;
    this.on.ended();
  }

  #receive(frame) {
    if (frame.id !== null && frame.id < this.#since) return;
    const played = this.#played?.id === frame.id ? this.#played : null;
    if (frame.type === "error") this.#refused(frame, played);
    else {
      const done = frame.type === "answer";
      if (played && done && frame.reason === "deadline" && !played.sent) played.open = false;
      else if (played && done) this.#stopPlaying();
      this.on.answer(frame, done);
    }
  }

  #refused({ id, problem }, played) {
    if (ofBegin(problem)) {
      this.#since = id + 1; // the service refuses its groups and its end too: ignore these errors
      if (played) this.#stopPlaying();
    } else if (played) {
      played.refused = true;
      this.#endIfRefused(played);
    }
    this.on.problem(problem);
  }

  #lost(reason) {
    this.#stopPlaying();
    this.on.problem({ detail: reason });
    this.on.lost();
  }
}
