// The service as the page asks it: documents by GET, predictions over one WebSocket; with the key, where one is needed.

const address = (path) => new URL(path, document.baseURI);

const KEPT = "anytime.key"; // for as long as the tab is open, and for this tab alone

export const key = {
  get: () => sessionStorage.getItem(KEPT),
  keep: (text) => sessionStorage.setItem(KEPT, text),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** What is thrown where a key is needed; `wrong` is whether one was sent. */
export class KeyNeeded extends Error {
  constructor(detail, wrong) {
    super(detail);
    this.wrong = wrong;
  }
}

/** A document of the service; a problem is thrown with its detail as the message. */
export async function get(path) {
  const sent = key.get();
  const headers = { Accept: "application/json", ...(sent === null ? {} : { Authorization: `Bearer ${sent}` }) };
  const response = await fetch(address(path), { headers });
  const body = await response.json();
  if (response.status === 401) throw new KeyNeeded(body.detail, sent !== null);
  if (!response.ok) throw new Error(body.detail);
  return body;
}

/** Subprotocols of the WebSocket: ours and, as a page cannot send headers with it, the key. */
function subprotocols() {
  const sent = key.get();
  if (sent === null) return ["anytime.v1"];
  const encoded = encodeURIComponent(sent).replace(/[()]/g, (each) => `%${each.charCodeAt(0).toString(16)}`);
  return ["anytime.v1", `anytime.key.${encoded}`];
}

/** One connection, made when something is sent; frames wait until it is open. */
export class Stream {
  #socket = null;
  #waiting = [];

  /** `onReply` gets every frame of the service, `onLost` a sentence when the connection ends. */
  constructor(onReply, onLost) {
    this.onReply = onReply;
    this.onLost = onLost;
  }

  send(...frames) {
    this.#waiting.push(...frames.map((frame) => JSON.stringify(frame)));
    if (this.#socket === null) this.#connect();
    else if (this.#socket.readyState === WebSocket.OPEN) this.#flush();
  }

  #connect() {
    const url = address("stream");
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, subprotocols());
    this.#socket = socket;
    socket.onopen = () => this.#flush();
    socket.onmessage = (event) => this.onReply(JSON.parse(event.data));
    socket.onclose = (event) => {
      this.#socket = null;
      this.#waiting = [];
      this.onLost(`The connection to the service ended${event.reason ? ` (${event.reason})` : ""}; the next change asks again.`);
    };
  }

  #flush() {
    for (const frame of this.#waiting.splice(0)) this.#socket.send(frame);
  }
}
