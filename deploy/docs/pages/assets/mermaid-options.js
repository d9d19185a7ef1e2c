// Titles of subgraphs have room for two lines, and diagrams keep their size on narrow screens, where they scroll.
const initialize = mermaid.initialize;
mermaid.initialize = (options) =>
  initialize({
    ...options,
    flowchart: { subGraphTitleMargin: { top: 2, bottom: 20 }, useMaxWidth: innerWidth > 720 },
  });
