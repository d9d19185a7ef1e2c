// Access to the service: documents by GET, predictions over one WebSocket; with the API key, if one is required.

const address = (path) => new URL(path, document.baseURI);

const STORAGE_KEY = "anytime.key"; // in the session storage: only for this tab, until it is closed

export const key = {
  get: () => sessionStorage.getItem(STORAGE_KEY),
  store: (text) => sessionStorage.setItem(STORAGE_KEY, text),
  forget: () => sessionStorage.removeItem(STORAGE_KEY),
  possible: (text) => /^[\x21-\x7e]+$/.test(text), // other characters are invalid in a header
};

/** Error if a key is missing or invalid; `wrong` is whether a key was sent. */
export class KeyNeeded extends Error {
  constructor(detail, wrong) {
    super(detail);
    this.wrong = wrong;
  }
}

/** Return a document of the service; throw a problem as an error with its detail as the message. */
export async function get(path) {
  const stored = key.get();
  const headers = { Accept: "application/json", ...(stored === null ? {} : { Authorization: `Bearer ${stored}` }) };
  const response = await fetch(address(path), { headers });
  const body = await response.json();
  if (response.status === 401) throw new KeyNeeded(body.detail, stored !== null);
  if (!response.ok) throw new Error(body.detail);
  return body;
}

/** Return the subprotocols of the WebSocket: anytime.v1 and, because a page cannot send headers with it, the key. */
function subprotocols() {
  const stored = key.get();
  if (stored === null) return ["anytime.v1"];
  const encoded = encodeURIComponent(stored).replace(/[()]/g, (each) => `%${each.charCodeAt(0).toString(16)}`);
  return ["anytime.v1", `anytime.key.${encoded}`];
}

/** One connection, opened when the first frame is sent; frames are queued until it is open. */
export class Stream {
  #socket = null;
  #pending = [];

  /** `onReply` receives every frame of the service; `onLost` receives a sentence when the connection ends. */
  constructor(onReply, onLost) {
    this.onReply = onReply;
    this.onLost = onLost;
  }

  send(...frames) {
    this.#pending.push(...frames.map((frame) => JSON.stringify(frame)));
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
      this.#pending = [];
      this.onLost(`The connection to the service ended${event.reason ? ` (${event.reason})` : ""}; the next change reconnects.`);
    };
  }

  #flush() {
    for (const frame of this.#pending.splice(0)) this.#socket.send(frame);
  }
}
