// The live view: asks the server for its prefix tree and counters twice a second and draws them.

import { headers } from "./playground.js";

const $ = (id) => document.getElementById(id);
const kPeriod = 500; // ms
const kHistory = 240; // answers that the charts show: two minutes
const kRowHeight = 18;
const kMaxRows = 40; // leaves that are drawn; the table has all

const number = new Intl.NumberFormat("en");

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit + 1 < units.length) {
    count /= 1024;
    ++unit;
  }
  return `${count.toFixed(unit === 0 || count >= 100 ? 0 : 1)} ${units[unit]}`;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// --------------------------------------------------------------------------------------------------------------------- tree

function shareClass(running) {
  if (running <= 2) return `share-${running}`;
  return running <= 4 ? "share-3" : running <= 16 ? "share-4" : "share-5";
}

// Gives each node the rows [top, top + rows) of the leaves below it. Nodes come parents first.
function layOut(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, { ...node, children: [], rows: 1 }]));
  const roots = [];
  for (const node of byId.values()) (byId.get(node.parent)?.children ?? roots).push(node);
  for (const node of [...byId.values()].reverse()) {
    if (node.children.length) node.rows = node.children.reduce((sum, child) => sum + child.rows, 0);
  }
  let used = 0;
  const place = (siblings, top) => {
    siblings.sort((a, b) => a.id - b.id); // so that what runs does not make the picture jump
    for (const node of siblings) {
      node.top = top;
      top += node.rows;
    }
    used = Math.max(used, top);
    for (const node of siblings) place(node.children, node.top);
  };
  place(roots, 0);
  return { nodes: [...byId.values()], rows: used };
}

function drawNode(node, scale) {
  const x = node.begin * scale, width = Math.max(2, (node.end - node.begin) * scale);
  const y = node.top * kRowHeight, height = node.rows * kRowHeight;
  const group = svg("g", {});
  const pinned = node.pinned ? " pinned" : "";
  const rect = svg("rect", { x, y, width, height, rx: 2, class: shareClass(node.running) + pinned });
  const length = node.end - node.begin;
  rect.append(svg("title", {}, `tokens ${node.begin} to ${node.end}, ${node.running} samples run through them, found ${node.hits} times${node.pinned ? ", pinned" : ""}`));
  group.append(rect);
  const label = node.running > 1 ? `${length} ×${node.running}` : String(length);
  if (width > 8 * label.length + 4) {
    group.append(svg("text", { x: x + 4, y: y + height / 2 + 4, class: node.running > 4 ? "on-dark" : "" }, label));
  }
  return group;
}

function drawTree(state) {
  const picture = $("tree");
  const width = picture.clientWidth || 600;
  const { nodes, rows } = layOut(state.nodes);
  const shown = nodes.filter((node) => node.top < kMaxRows);
  const end = Math.max(1, ...shown.map((node) => node.end));
  const scale = (width - 4) / end;
  const height = Math.max(3, Math.min(rows, kMaxRows)) * kRowHeight;
  picture.setAttribute("viewBox", `0 0 ${width} ${height + 16}`);
  picture.style.setProperty("height", `${height + 16}px`);
  for (const node of shown) node.rows = Math.min(node.rows, kMaxRows - node.top);
  picture.replaceChildren(...shown.map((node) => drawNode(node, scale)));
  picture.append(svg("text", { x: 2, y: height + 12, class: "axis" }, "token 0"));
  picture.append(svg("text", { x: width - 2, y: height + 12, "text-anchor": "end", class: "axis" }, `token ${number.format(end)}`));

  const tokens = state.nodes.reduce((sum, node) => sum + node.end - node.begin, 0);
  const hidden = state.num_nodes - shown.length;
  $("tree-summary").textContent =
    `${number.format(state.num_nodes)} nodes${hidden > 0 ? `, ${number.format(hidden)} of them not drawn` : ""}; ` +
    `${number.format(tokens)} tokens in ${bytes(tokens * state.kv_bytes_per_token)} of KV` +
    (ofServer(state)
      ? `; ${number.format(state.pages_used)} of ${number.format(state.pages)} pages in use; ` +
        `${number.format(state.samples_running)} samples running, ${number.format(state.requests_waiting)} requests waiting`
      : ", those of this API key");
  picture.setAttribute("aria-label", `The prefix tree: ${$("tree-summary").textContent}`);
  if (document.querySelector("details").open) fillTable(state.nodes);
}

function fillTable(nodes) {
  const rows = nodes.map((node) => {
    const row = document.createElement("tr");
    for (const value of [`${node.begin} to ${node.end}`, node.end - node.begin, node.running, node.hits, node.pinned ? "yes" : ""]) {
      const cell = document.createElement("td");
      cell.textContent = value;
      row.append(cell);
    }
    return row;
  });
  $("tree-table").tBodies[0].replaceChildren(...rows);
}

// -------------------------------------------------------------------------------------------------------------------- bytes

// Keys without role admin see their own nodes and tokens, and nothing of the server's steps.
function ofServer(state) {
  return state.steps !== undefined;
}

function drawBytes(state, before) {
  if (!ofServer(state)) {
    $("bytes-summary").textContent = "What the server reads is shown to API keys of role admin.";
    return;
  }
  const delta = before ? state.kv_bytes_read_unshared - before.kv_bytes_read_unshared : 0;
  if (delta > 0) {
    const read = state.kv_bytes_read - before.kv_bytes_read;
    const steps = Math.max(1, state.steps - before.steps);
    $("read-bar").value = read / Math.max(read, delta);
    $("unshared-bar").value = delta / Math.max(read, delta);
    $("read-bytes").textContent = `${bytes(read / steps)} a step`;
    $("unshared-bytes").textContent = `${bytes(delta / steps)} a step`;
  }
  const saved = state.kv_bytes_read > 0 ? state.kv_bytes_read_unshared / state.kv_bytes_read : 1;
  $("bytes-summary").textContent =
    `Since the start ${bytes(state.kv_bytes_read)} were read where an engine without read sharing reads ` +
    `${bytes(state.kv_bytes_read_unshared)}: ${saved.toFixed(1)} times as much.`;
}

// ------------------------------------------------------------------------------------------------------------------- charts

const history = []; // {stepMs, rate}: null where nothing ran

function drawChart(picture, values) {
  const width = picture.clientWidth || 300, height = 90, left = 36;
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.style.setProperty("height", `${height}px`);
  const top = Math.max(...values.filter((value) => value !== null), 1e-9);
  const x = (i) => left + ((width - left) * (i + kHistory - values.length)) / (kHistory - 1);
  const y = (value) => height - 4 - (value / top) * (height - 16);
  const parts = [svg("line", { x1: left, x2: width, y1: y(0), y2: y(0) }), svg("line", { x1: left, x2: width, y1: y(top), y2: y(top) })];
  parts.push(svg("text", { x: left - 4, y: y(0), "text-anchor": "end" }, "0"));
  parts.push(svg("text", { x: left - 4, y: y(top) + 4, "text-anchor": "end" }, top >= 100 ? top.toFixed(0) : top.toPrecision(2)));
  let points = [];
  for (let i = 0; i <= values.length; ++i) {
    if (i < values.length && values[i] !== null) {
      points.push(`${x(i).toFixed(1)},${y(values[i]).toFixed(1)}`);
      continue;
    }
    if (points.length === 1) points.push(points[0].replace(/^[\d.]+/, (at) => String(Number(at) + 1)));
    if (points.length) parts.push(svg("polyline", { points: points.join(" ") }));
    points = [];
  }
  picture.replaceChildren(...parts);
}

function drawCharts(state, before, seconds) {
  const steps = before && ofServer(state) ? state.steps - before.steps : 0;
  const stepMs = steps > 0 ? (1000 * (state.step_seconds - before.step_seconds)) / steps : null;
  const rate = before ? (state.generated_tokens - before.generated_tokens) / seconds : 0;
  history.push({ stepMs, rate });
  if (history.length > kHistory) history.shift();
  drawChart($("step-chart"), history.map((item) => item.stepMs));
  drawChart($("rate-chart"), history.map((item) => item.rate));
  $("step-now").textContent = !ofServer(state) ? "not shown" : stepMs === null ? "idle" : stepMs.toFixed(2);
  $("rate-now").textContent = rate.toFixed(1);
}

// ------------------------------------------------------------------------------------------------------------------ polling

let last = null, lastTime = 0, paused = false;

async function poll() {
  if (paused || document.hidden) return;
  const response = await fetch("/v1/tree", { headers: headers() });
  if (!response.ok) {
    $("tree-summary").textContent = (await response.json()).error.message;
    return;
  }
  const state = await response.json(), now = performance.now();
  // Another server, or another key's view.
  const restarted = last && (ofServer(state) !== ofServer(last) || state.generated_tokens < last.generated_tokens);
  const before = restarted ? null : last;
  drawTree(state);
  drawBytes(state, before);
  drawCharts(state, before, (now - lastTime) / 1000);
  last = state;
  lastTime = now;
}

async function pollForever() {
  for (;;) {
    try {
      await poll();
    } catch {
      $("tree-summary").textContent = "the server does not answer";
    }
    await new Promise((resolve) => setTimeout(resolve, kPeriod));
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
});
document.querySelector("details").addEventListener("toggle", () => last && fillTable(last.nodes));
pollForever();
