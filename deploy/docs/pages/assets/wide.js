// Titles of subgraphs stay on one line; Mermaid breaks them at 200 pixels and reserves space for one line.
const initialize = mermaid.initialize;
mermaid.initialize = (options) => initialize({ ...options, flowchart: { wrappingWidth: 320 } });
