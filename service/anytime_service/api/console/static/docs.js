// Shows the OpenAPI document of this server. A validator would send its address elsewhere.
"use strict";

if (window.SwaggerUIBundle) {
  SwaggerUIBundle({ url: "openapi.json", dom_id: "#routes", deepLinking: true, validatorUrl: null });
}
