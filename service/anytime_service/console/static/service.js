// The service as the page asks it: documents by GET, predictions over one WebSocket.

const address = (path) => new URL(path, document.baseURI);

/** A document of the service; a problem is thrown with its detail as the message. */
export async function get(path) {
  const response = await fetch(address(path), { headers: { Accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail);
  return body;
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
    const socket = new WebSocket(url, "anytime.v1");
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
