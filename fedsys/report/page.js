"use strict";
// The page is built from the JSON above; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);
const NS = "http://www.w3.org/2000/svg";
// The chart is drawn in pixels of the page, so that its text has the same size on a narrow screen.
const SIZE = { width: 900, height: 430 };
const BOX = { left: 92, right: 885, top: 12, bottom: 385 };
const byId = (id) => document.getElementById(id);
const shown = data.configurations.map(() => true);

function make(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

// A scale maps values to pixels and lists its ticks.
function scale(values, isLog, from, to) {
  const usable = values.filter((v) => v !== null && Number.isFinite(v) && (!isLog || v > 0));
  if (!usable.length) return null;
  const f = isLog ? Math.log10 : (v) => v;
  let low = Infinity, high = -Infinity;
  for (const v of usable) { low = Math.min(low, f(v)); high = Math.max(high, f(v)); }
  if (low === high) { low -= 0.5; high += 0.5; }
  const margin = (high - low) * 0.03;
  low -= margin; high += margin;
  const place = (v) => from + ((f(v) - low) / (high - low)) * (to - from);
  return { place, ok: (v) => v !== null && Number.isFinite(v) && (!isLog || v > 0), ticks: ticks(low, high, isLog) };
}

function ticks(low, high, isLog) {
  if (isLog && high - low > 1.5) {
    const every = Math.max(1, Math.ceil((high - low) / 8));
    const found = [];
    for (let e = Math.ceil(low / every) * every; e <= high; e += every) found.push(10 ** e);
    return found;
  }
  const raw = (high - low) / 6, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw) || 10);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) {
    found.push(isLog ? 10 ** v : Math.abs(v) < step * 1e-9 ? 0 : v);
  }
  return found;
}

// The columns of a point: its position on each axis, then mean, low, high and seeds.
const axisNames = Object.keys(data.axes);
const MEAN = axisNames.length, LOW = MEAN + 1, HIGH = MEAN + 2, SEEDS = MEAN + 3;
let curvesNow = [];

function fit() {
  SIZE.width = Math.min(900, Math.max(320, byId("plot").clientWidth));
  SIZE.height = SIZE.width < 600 ? 300 : 430;
  BOX.left = SIZE.width < 600 ? 74 : 92;
  BOX.right = SIZE.width - 15;
  BOX.bottom = SIZE.height - 45;
  byId("chart").setAttribute("viewBox", `0 0 ${SIZE.width} ${SIZE.height}`);
}

function redraw() {
  fit();
  const metric = byId("metric").value, axis = axisNames.indexOf(byId("axis").value);
  const svg = byId("chart");
  svg.replaceChildren();
  curvesNow = [];
  const visible = data.configurations.map((c, i) => [c, i]).filter(([c, i]) => shown[i] && c.curves[metric]);
  const points = visible.flatMap(([c]) => c.curves[metric]);
  const x = scale(points.map((p) => p[axis]), byId("log-x").checked, BOX.left, BOX.right);
  const ofClients = visible.flatMap(([c]) => (c.clients[metric] || []).flat()).map((p) => p[MEAN]);
  const y = scale([...points.flatMap((p) => [p[MEAN], p[LOW], p[HIGH]]), ...ofClients], byId("log-y").checked, BOX.bottom, BOX.top);
  if (!x || !y) {
    svg.append(draw("text", { x: SIZE.width / 2, y: SIZE.height / 2, "text-anchor": "middle" }, "no values to draw on these axes"));
    return;
  }
  for (const t of x.ticks) {
    svg.append(draw("line", { class: "grid", x1: x.place(t), x2: x.place(t), y1: BOX.top, y2: BOX.bottom }));
    svg.append(draw("text", { class: "x-tick", x: x.place(t), y: BOX.bottom + 16, "text-anchor": "middle" }, short(t)));
  }
  for (const t of y.ticks) {
    svg.append(draw("line", { class: "grid", x1: BOX.left, x2: BOX.right, y1: y.place(t), y2: y.place(t) }));
    svg.append(draw("text", { class: "y-tick", x: BOX.left - 6, y: y.place(t) + 4, "text-anchor": "end" }, short(t)));
  }
  svg.append(draw("rect", { class: "frame", x: BOX.left, y: BOX.top, width: BOX.right - BOX.left, height: BOX.bottom - BOX.top }));
  svg.append(draw("text", { id: "x-label", x: (BOX.left + BOX.right) / 2, y: SIZE.height - 8, "text-anchor": "middle" }, data.axes[axisNames[axis]]));
  svg.append(draw("text", { id: "y-label", x: -(BOX.top + BOX.bottom) / 2, y: 14, "text-anchor": "middle", transform: "rotate(-90)" }, metric));
  for (const [c] of visible) drawClients(svg, c, c.clients[metric] || [], axis, x, y);
  for (const [c, i] of visible) drawCurve(svg, c, i, c.curves[metric], axis, x, y);
}

// The value of a client has the column of the mean.
function drawClients(svg, c, lines, axis, x, y) {
  for (const line of lines) {
    const points = line.filter((p) => x.ok(p[axis]) && y.ok(p[MEAN]));
    const places = points.map((p) => `${x.place(p[axis]).toFixed(1)},${y.place(p[MEAN]).toFixed(1)}`);
    if (places.length > 1) svg.append(draw("polyline", { class: "client", points: places.join(" "), stroke: c.color }));
  }
}

function drawCurve(svg, c, i, all, axis, x, y) {
  const points = all.filter((p) => x.ok(p[axis]) && y.ok(p[MEAN]));
  if (!points.length) return;
  const at = (p, column) => `${x.place(p[axis]).toFixed(1)},${y.place(p[column]).toFixed(1)}`;
  const banded = points.filter((p) => p[SEEDS] > 1 && y.ok(p[LOW]) && y.ok(p[HIGH]));
  if (banded.length > 1) {
    const outline = [...banded.map((p) => at(p, HIGH)), ...banded.slice().reverse().map((p) => at(p, LOW))];
    svg.append(draw("polygon", { class: "band", points: outline.join(" "), fill: c.color }));
  }
  const look = { stroke: c.color, "stroke-dasharray": c.dashes };
  if (points.length > 1) {
    svg.append(draw("polyline", { class: c.best ? "curve best" : "curve", "data-index": i, points: points.map((p) => at(p, MEAN)).join(" "), ...look }));
  }
  if (points.length < 2) {
    const [cx, cy] = at(points[0], MEAN).split(",");
    svg.append(draw("circle", { class: "curve", "data-index": i, cx, cy, r: 4, stroke: c.color, fill: c.color }));
  }
  curvesNow.push({ label: c.label, points, axis, place: x.place });
}

function readOut(event) {
  const box = byId("chart").getBoundingClientRect();
  const at = ((event.clientX - box.left) / box.width) * SIZE.width;
  const lines = curvesNow.map(({ label, points, axis, place }) => {
    const near = points.reduce((a, b) => (Math.abs(place(b[axis]) - at) < Math.abs(place(a[axis]) - at) ? b : a));
    const seeds = near[SEEDS] > 1 ? ` (${short(near[LOW])} to ${short(near[HIGH])}, ${near[SEEDS]} seeds)` : "";
    return `${label}: ${short(near[MEAN])}${seeds} at ${short(near[axis])}`;
  });
  byId("readout").textContent = lines.length > 8 ? `${lines.slice(0, 8).join("\n")}\n...` : lines.join("\n");
}

function toggle(i, on) {
  shown[i] = on;
  byId("legend").children[i].setAttribute("aria-pressed", String(on));
}

function buildControls() {
  for (const name of data.metrics.map((m) => m.name)) byId("metric").append(make("option", name));
  for (const [name, text] of Object.entries(data.axes)) byId("axis").append(make("option", text, { value: name }));
  const suggest = () => { byId("log-y").checked = data.metrics[byId("metric").selectedIndex].log; };
  byId("metric").addEventListener("change", () => { suggest(); redraw(); });
  for (const id of ["axis", "log-x", "log-y"]) byId(id).addEventListener("change", redraw);
  data.configurations.forEach((c, i) => {
    const button = make("button", undefined, { type: "button", "aria-pressed": "true" });
    const sample = draw("svg", { viewBox: "0 0 26 8" });
    sample.append(draw("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: c.color, "stroke-width": c.best ? 4 : 2, "stroke-dasharray": c.dashes }));
    button.append(sample, c.best ? `${c.label} (best)` : c.label);
    button.addEventListener("click", () => { toggle(i, !shown[i]); redraw(); });
    byId("legend").append(button);
  });
  byId("all").addEventListener("click", () => { shown.forEach((_, i) => toggle(i, true)); redraw(); });
  byId("none").addEventListener("click", () => { shown.forEach((_, i) => toggle(i, false)); redraw(); });
  byId("chart").addEventListener("mousemove", readOut);
  window.addEventListener("resize", redraw);
  suggest();
}

function fillTable(table, head, rows) {
  const first = make("tr");
  for (const cell of head) first.append(make("th", cell));
  const top = make("thead"), body = make("tbody");
  top.append(first);
  for (const row of rows) {
    const line = make("tr");
    row.cells.forEach((cell, i) => line.append(make(i ? "td" : "th", cell, row.best && row.best[i] ? { class: "best" } : {})));
    body.append(line);
  }
  table.append(top, body);
}

function buildRest() {
  byId("title").textContent = data.title;
  for (const text of data.warnings) byId("warnings").append(make("li", text));
  fillTable(byId("finals"), data.finals.head, data.finals.rows);
  byId("finals-note").textContent = data.finals.note;
  fillTable(byId("clients"), data.clients.head, data.clients.rows);
  byId("clients-section").hidden = !data.clients.rows.length;
  byId("matrices-section").hidden = !data.matrices.length;
  for (const { label, head, rows } of data.matrices) {
    const table = make("table"), wide = make("div", undefined, { class: "wide" });
    fillTable(table, head, rows.map((cells) => ({ cells })));
    wide.append(table);
    byId("matrices").append(make("p", label), wide);
  }
  fillTable(byId("differences"), data.differences.head, data.differences.rows);
  byId("differences-section").hidden = !data.differences.rows.length;
  byId("partitions-section").hidden = !data.partitions.length;
  for (const partition of data.partitions) {
    const largest = Math.max(1, ...partition.counts.flat());
    const table = make("table", undefined, { class: "counts" });
    fillTable(table, ["client", ...partition.classes], partition.counts.map((row, m) => ({ cells: [m, ...row] })));
    table.querySelectorAll("td").forEach((cell) => {
      const share = Number(cell.textContent) / largest;
      cell.style.background = `rgba(43, 108, 176, ${share})`;
      if (share > 0.5) cell.style.color = "#fff";
    });
    const wide = make("div", undefined, { class: "wide" });
    wide.append(table);
    byId("partitions").append(make("p", partition.label), wide);
  }
  byId("waits-section").hidden = !data.waits.length;
  const longest = Math.max(1e-9, ...data.waits.flatMap((w) => w.seconds));
  for (const { label, seconds } of data.waits) {
    byId("waits").append(make("p", label));
    seconds.forEach((s, rank) => {
      const line = make("div");
      line.append(make("span", "", { class: "bar", style: `width: ${((s / longest) * 60).toFixed(2)}%` }), `rank ${rank}: ${short(s)} s`);
      byId("waits").append(line);
    });
  }
  for (const text of data.runs) byId("runs").append(make("li", text));
}

buildControls();
buildRest();
redraw();
