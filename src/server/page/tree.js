// The picture of the prefix tree. Running nodes are drawn first and always; nodes that are only cached are folded where one runs,
// and otherwise from a number of rows on.

import { $, count, counted } from "/page/common.js";

const kRowHeight = 18, kLeastRowHeight = 5; // of a row: pixels
const kMostHeight = 560; // of all rows, before they grow thinner
const kCachedRows = 12; // of nodes that are only cached, while none runs

export function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function shareClass(running) {
  if (running <= 2) return `share-${running}`;
  return running <= 4 ? "share-3" : running <= 16 ? "share-4" : "share-5";
}

// Nodes as trees: [roots], each node with its children. Nodes come parents first.
function grow(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, { ...node, children: [] }]));
  const roots = [];
  for (const node of byId.values()) (byId.get(node.parent)?.children ?? roots).push(node);
  return roots;
}

// A bar for subtrees in which nothing runs.
function foldOf(siblings) {
  const fold = { fold: true, begin: Infinity, end: 0, prompts: 0, tokens: 0, running: 0, children: [] };
  const visit = (node) => {
    fold.begin = Math.min(fold.begin, node.begin);
    fold.end = Math.max(fold.end, node.end);
    fold.tokens += node.end - node.begin;
    fold.prompts += node.children.length === 0;
    node.children.forEach(visit);
  };
  siblings.forEach(visit);
  return fold;
}

// The siblings to draw, in order, and below them theirs. `budget.rows`: rows that are left for what is cached.
function arrange(siblings, budget) {
  const running = siblings.filter((node) => node.running > 0).sort((a, b) => b.running - a.running || a.id - b.id);
  for (const node of running) node.children = arrange(node.children, budget);
  const drawn = [], folded = [];
  for (const node of siblings.filter((node) => node.running === 0)) {
    if (budget.rows <= 0) {
      folded.push(node);
      continue;
    }
    node.children = arrange(node.children, budget);
    if (node.children.length === 0) --budget.rows;
    drawn.push(node);
  }
  return [...running, ...drawn, ...(folded.length ? [foldOf(folded)] : [])];
}

// Gives each node the rows [top, top + rows) of the leaves below it; returns how many there are.
function layOut(siblings, top = 0) {
  let end = top;
  for (const node of siblings) {
    node.top = end;
    end = Math.max(end + 1, layOut(node.children, end));
    node.rows = end - node.top;
  }
  return end;
}

function titleOf(node) {
  if (node.fold) return `${counted(node.prompts, "cached prompt")}, ${counted(node.tokens, "token")}`;
  const parts = [`tokens ${node.begin} to ${node.end}`, `${counted(node.running, "running sample")}`, `found ${counted(node.hits, "time")}`];
  if (node.pinned) parts.push("pinned");
  return parts.join(", ") + (node.reason ? `. ${node.reason}` : "");
}

// The longest of these that fits.
function labelsOf(node) {
  if (node.fold) return [titleOf(node), `+${count(node.prompts)}`];
  const length = count(node.end - node.begin);
  if (node.running <= 1) return [length];
  return [`${length} ×${node.running}${node.read_together === false ? " apart" : ""}`];
}

function drawNode(node, scale, rowHeight) {
  const x = node.begin * scale, width = Math.max(2, (node.end - node.begin) * scale);
  const y = node.top * rowHeight, height = node.rows * rowHeight;
  const group = svg("g", {});
  const kind = [shareClass(node.running), node.pinned ? "pinned" : "", node.fold ? "fold" : ""].filter(Boolean).join(" ");
  const title = titleOf(node);
  const draw = (attributes) => {
    const rect = svg("rect", { x, y, width, height, rx: 2, ...attributes });
    rect.append(svg("title", {}, title));
    group.append(rect);
  };
  draw({ class: kind });
  if (node.read_together === false) draw({ class: "apart" });
  const label = labelsOf(node).find((text) => width > 7 * text.length + 6);
  if (label && height >= 11) {
    group.append(svg("text", { x: x + 4, y: y + height / 2 + 4, class: node.running > 4 && node.read_together !== false ? "on-dark" : "" }, label));
  }
  return group;
}

const hatching = () => {
  const defs = svg("defs", {}), pattern = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  pattern.append(svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" }));
  defs.append(pattern);
  return defs;
};

export function drawTree(nodes) {
  const picture = $("tree");
  const width = picture.clientWidth || 600;
  const runs = nodes.some((node) => node.running > 0);
  const roots = arrange(grow(nodes), { rows: runs ? 0 : kCachedRows });
  const rows = Math.max(3, layOut(roots));
  const rowHeight = Math.max(kLeastRowHeight, Math.min(kRowHeight, kMostHeight / rows));
  const drawn = [];
  const collect = (node) => (drawn.push(node), node.children.forEach(collect));
  roots.forEach(collect);
  const end = Math.max(1, ...drawn.map((node) => node.end));
  const scale = (width - 4) / end;
  const height = rows * rowHeight;
  picture.setAttribute("viewBox", `0 0 ${width} ${height + 16}`);
  picture.style.setProperty("height", `${height + 16}px`);
  picture.replaceChildren(hatching(), ...drawn.map((node) => drawNode(node, scale, rowHeight)));
  picture.append(svg("text", { x: 2, y: height + 12, class: "axis" }, "token 0"));
  picture.append(svg("text", { x: width - 2, y: height + 12, "text-anchor": "end", class: "axis" }, `token ${count(end)}`));
}

export function fillTable(nodes) {
  const rows = nodes.map((node) => {
    const row = document.createElement("tr");
    const read = node.reason ?? "";
    for (const value of [`${node.begin} to ${node.end}`, node.end - node.begin, node.running, node.hits, node.pinned ? "yes" : "", read]) {
      const cell = document.createElement("td");
      cell.textContent = value;
      row.append(cell);
    }
    return row;
  });
  $("tree-table").tBodies[0].replaceChildren(...rows);
}
