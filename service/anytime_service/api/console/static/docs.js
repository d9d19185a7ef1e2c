// Shows the OpenAPI document of this server. The validator is off, because it would send the address to another server.
"use strict";

if (window.SwaggerUIBundle) {
  SwaggerUIBundle({ url: "openapi.json", dom_id: "#routes", deepLinking: true, validatorUrl: null });
}
