// The live view: asks the server for its prefix tree and counters twice a second and draws them.

import { $, RequestError, ask, bytes, count, counted } from "/page/common.js";
import { drawTree, fillTable, svg } from "/page/tree.js";

const kPeriod = 500; // ms
const kHistory = 240; // answers that the charts show: two minutes
const kReadLines = 4; // nodes of which the text says how they were read

// --------------------------------------------------------------------------------------------------------------------- tree

// Nodes with the most KV read in the last step: whether it was read together, and why.
function showReads(nodes) {
  const cost = (node) => node.running * (node.end - node.begin);
  const shown = nodes.filter((node) => node.reason).sort((a, b) => cost(b) - cost(a)).slice(0, kReadLines);
  $("reads").replaceChildren(
    ...shown.map((node) => {
      const line = document.createElement("li");
      line.className = node.read_together ? "together" : "apart";
      line.textContent = `Tokens ${count(node.begin)} to ${count(node.end)}: ${node.reason}`;
      return line;
    }),
  );
}

function showTree(state) {
  drawTree(state.nodes);
  showReads(state.nodes);
  const tokens = state.nodes.reduce((sum, node) => sum + node.end - node.begin, 0);
  const hidden = state.num_nodes - state.nodes.length;
  $("tree-summary").textContent =
    `${counted(state.num_nodes, "node")}${hidden > 0 ? `, ${count(hidden)} of them cached and not shown` : ""}; ` +
    `${counted(tokens, "token")} in ${bytes(tokens * state.kv_bytes_per_token)} of KV` +
    (ofServer(state)
      ? `; ${count(state.pages_used)} of ${counted(state.pages, "page")} in use; ` +
        `${counted(state.samples_running, "sample")} running, ${counted(state.requests_waiting, "request")} waiting`
      : ", those of this API key");
  $("tree").setAttribute("aria-label", `The prefix tree: ${$("tree-summary").textContent}`);
  if ($("table-box").open) fillTable(state.nodes);
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
  const since = before && ofServer(before) ? before : { kv_bytes_read: 0, kv_bytes_read_unshared: 0, steps: 0 }; // the server's start
  const delta = state.kv_bytes_read_unshared - since.kv_bytes_read_unshared;
  if (delta > 0) {
    const read = state.kv_bytes_read - since.kv_bytes_read;
    const steps = Math.max(1, state.steps - since.steps);
    $("read-bar").value = read / Math.max(read, delta);
    $("unshared-bar").value = delta / Math.max(read, delta);
    $("read-bytes").textContent = `${bytes(read / steps)} a step`;
    $("unshared-bytes").textContent = `${bytes(delta / steps)} a step`;
    $("figures").textContent = `KV read: ${bytes(read / steps)} a step, ${(delta / Math.max(1, read)).toFixed(1)} times as much without read sharing`;
  }
  const saved = state.kv_bytes_read > 0 ? state.kv_bytes_read_unshared / state.kv_bytes_read : 1;
  $("bytes-summary").textContent = state.kv_bytes_read === 0 ? "No step has read any KV yet." :
    `Since the start ${bytes(state.kv_bytes_read)} were read where an engine without read sharing reads ` +
    `${bytes(state.kv_bytes_read_unshared)}: ${saved.toFixed(1)} times as much.`;
}

// ------------------------------------------------------------------------------------------------------------------- charts

const history = []; // {stepMs, rate}: null where nothing ran

function drawChart(picture, values) {
  const width = picture.clientWidth || 300, height = 90, left = 36;
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.style.setProperty("height", `${height}px`);
  const most = Math.max(...values.filter((value) => value !== null), 0), top = most || 1;
  const x = (i) => left + ((width - left) * (i + kHistory - values.length)) / (kHistory - 1);
  const y = (value) => height - 4 - (value / top) * (height - 16);
  const parts = [svg("line", { x1: left, x2: width, y1: y(0), y2: y(0) }), svg("line", { x1: left, x2: width, y1: y(top), y2: y(top) })];
  parts.push(svg("text", { x: left - 4, y: y(0), "text-anchor": "end" }, "0"));
  parts.push(svg("text", { x: left - 4, y: y(top) + 4, "text-anchor": "end" }, most === 0 ? "" : top >= 100 ? top.toFixed(0) : top.toPrecision(2)));
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
  const state = await (await ask("/v1/tree")).json(), now = performance.now();
  // Another server, or another key's view.
  const restarted = last && (ofServer(state) !== ofServer(last) || state.generated_tokens < last.generated_tokens);
  const before = restarted ? null : last;
  showTree(state);
  drawBytes(state, before);
  drawCharts(state, before, (now - lastTime) / 1000);
  last = state;
  lastTime = now;
}

async function pollForever() {
  for (;;) {
    try {
      await poll();
      $("tree-summary").classList.remove("error");
    } catch (error) {
      $("tree-summary").classList.add("error");
      $("tree-summary").textContent = error instanceof RequestError ? error.message : `The page failed: ${error.message}.`;
    }
    await new Promise((resolve) => setTimeout(resolve, kPeriod));
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
});
$("table-box").addEventListener("toggle", () => last && fillTable(last.nodes));
pollForever();
