// Shows the OpenAPI document of this server, and prompts for a key as the console does, which shares it in this tab. The
// validator is off, because it would send the address to another server.
import { KeyNeeded, get, key } from "./service.js";

const byId = (id) => document.getElementById(id);

/** Add the key to requests of this server only. */
function withKey(request) {
  const here = new URL(request.url, document.baseURI).origin === location.origin;
  if (here && key.get() !== null) request.headers.Authorization ??= `Bearer ${key.get()}`;
  return request;
}

function askKey(wrong) {
  key.forget();
  byId("ask-key").hidden = false;
  byId("key-problem").textContent = wrong ? "The API key is invalid or was revoked." : "";
  byId("key").value = "";
  byId("key").focus();
}

async function show() {
  try {
    await get("openapi.json");
  } catch (error) {
    if (!(error instanceof KeyNeeded)) throw error;
    return askKey(error.wrong);
  }
  byId("ask-key").hidden = true;
  SwaggerUIBundle({ url: "openapi.json", dom_id: "#routes", deepLinking: true, validatorUrl: null, requestInterceptor: withKey });
}

byId("key-form").onsubmit = (event) => {
  event.preventDefault();
  const entered = byId("key").value.trim();
  if (!key.possible(entered)) return askKey(true);
  key.store(entered);
  return show();
};

if (window.SwaggerUIBundle) show();
