// Predictions about one row: asked at once with all that is sent, or played, group after group, as costs allow.
//
// A question is {model, budget, policy, groups}: groups a Map from names to values, in the order in which to send them.

import { Stream } from "./service.js";

const OF_BEGIN = new Set(["model", "rows", "budget", "deadline_ms", "policy"]);

/** Whether a problem is of a beginning: what it asks for cannot be, or there is too much to do for it. */
const ofBegin = ({ type, field }) => (field ? OF_BEGIN.has(field) : type.endsWith(":overloaded"));

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export class Live {
  #stream;
  #last = 0; // ids are used once
  #since = 0; // replies to what was asked before are stale
  #played = null; // {id, open, sent, refused} of the prediction that is being played

  /** `on` has answer(answer, done), problem(problem), group(name, state), ended() and lost(). */
  constructor(on) {
    this.on = on;
    this.#stream = new Stream((frame) => this.#take(frame), (why) => this.#lost(why));
  }

  get playing() {
    return this.#played !== null;
  }

  /** Ask with all groups at once; there is always exactly one answer. */
  ask(question) {
    this.#leave();
    const id = this.#begin(question, false);
    this.#since = id;
    this.#send(id, ...question.groups);
    this.#end(id);
  }

  /**
   * Begin, then send each group when its wait, in ms, is over; answers come as updates, the last one as the answer.
   *
   * Play is slower than life: where the service's longest deadline strikes meanwhile, the next group begins anew.
   */
  async play(question, waits) {
    this.ask({ ...question, groups: new Map() }); // the base rate, to start from
    const played = { id: this.#begin(question, true), open: true, sent: false, refused: false };
    const before = [];
    this.#played = played;
    for (const [name, values] of question.groups) {
      this.on.group(name, "computing");
      await pause(waits.get(name));
      if (this.#played !== played) return;
      this.on.group(name, "sent");
      if (!played.open) {
        Object.assign(played, { id: this.#begin(question, true), open: true });
        this.#send(played.id, ...before);
      }
      this.#send(played.id, [name, values]);
      before.push([name, values]);
    }
    played.sent = true;
    this.#settle(played);
  }

  /** The deadline of a played prediction: whatever is at hand is the answer. */
  interrupt() {
    if (this.#played === null) return;
    this.#end(this.#played.id); // one that is answered already takes no notice
    this.#leave();
  }

  /** End what is played, and take no reply any more to what has been asked. */
  forget() {
    this.interrupt();
    this.#since = this.#last + 1;
  }

  #begin({ model, budget, policy }, updates) {
    const id = ++this.#last;
    this.#stream.send({ type: "begin", id, model, rows: 1, policy, updates, ...(budget === null ? {} : { budget }) });
    return id;
  }

  #send(id, ...groups) {
    this.#stream.send(...groups.map(([group, values]) => ({ type: "group", id, group, values })));
  }

  #end(id) {
    this.#stream.send({ type: "end", id });
  }

  /** A prediction whose groups are all there answers by itself; with one refused it has to be ended. */
  #settle({ id, sent, refused }) {
    if (sent && refused) this.#end(id);
  }

  #leave() {
    if (this.#played === null) return;
    this.#played = null;
    this.on.ended();
  }

  #take(frame) {
    if (frame.id !== null && frame.id < this.#since) return;
    const played = this.#played?.id === frame.id ? this.#played : null;
    if (frame.type === "error") this.#refused(frame, played);
    else {
      const done = frame.type === "answer";
      if (played && done && frame.reason === "deadline" && !played.sent) played.open = false;
      else if (played && done) this.#leave();
      this.on.answer(frame, done);
    }
  }

  #refused({ id, problem }, played) {
    if (ofBegin(problem)) {
      this.#since = id + 1; // never begun, so its groups and its end are refused too: that is no news
      if (played) this.#leave();
    } else if (played) {
      played.refused = true;
      this.#settle(played);
    }
    this.on.problem(problem);
  }

  #lost(why) {
    this.#leave();
    this.on.problem({ detail: why });
    this.on.lost();
  }
}
