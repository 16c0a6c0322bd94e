"use strict";
// Matrices on a canvas: one byte a cell. A single matrix has axes and values on hover; a grid has thumbnails, one of
// which is shown large. Nothing here touches innerHTML: every label is text.

// What is drawn again when the reader's system changes between light and dark, and before printing, which is light.
const theme = { dark: matchMedia("(prefers-color-scheme: dark)").matches, redraws: [] };
const RAMPS = Object.fromEntries(Object.entries(PALETTES).map(([name, stops]) => [name, ramp(stops)]));
const FONT = getComputedStyle(document.documentElement).getPropertyValue("--fonts") || "sans-serif";
const LABEL = 12, LEAST_LABEL = 9, MOST_LABELS = 64;  // letters in pixels; a matrix up to this size has every label

// The 256 colours of a scale on the page as it is now.
function scaleOf(diverging) {
  return RAMPS[(diverging ? "diverging" : "sequential") + (theme.dark ? "Dark" : "")];
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
}

function ramp(stops) {
  const colours = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, byte) => {
    const position = (byte / 255) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(position));
    return colours[left].map((from, channel) => Math.round(from + (position - left) * (colours[left + 1][channel] - from)));
  });
}

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// A canvas with one pixel a cell.
function picture(bytes, rows, columns, diverging) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const colours = scaleOf(diverging);
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [red, green, blue] = colours[bytes[i]];
    image.data.set([red, green, blue, 255], i * 4);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function number(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(1) : String(+value.toPrecision(3));
}

function cut(text, most) {
  const characters = Array.from(text);
  return characters.length > most ? characters.slice(0, most - 1).join("") + "…" : text;
}

// The labels of one side: what each is, and where. As `side_labels.py` does: Chinese stays upright, words that do not
// fit are turned, and what has no room is left out.
function placeLabels(labels, cell, across, size) {
  const pen = document.createElement("canvas").getContext("2d"), line = size + 1;
  pen.font = `${size}px ${FONT}`;
  const widths = labels.map((label) => pen.measureText(label).width);
  const crowded = across && widths.some((one, at) => at && (one + widths[at - 1]) / 2 + 4 > cell);
  const step = crowded || !across ? Math.max(1, Math.ceil(line / cell)) : 1;
  let room = 0;
  const places = [];
  labels.forEach((label, at) => {
    if (at % step) return;
    let kind = "flat", lines = [label];
    if (crowded && widths[at] > Math.max(cell * step - 4, line)) {
      kind = WIDE.test(label) ? "stacked" : "turned";
      if (kind === "stacked") lines = Array.from(label);
    }
    room = Math.max(room, !across || kind === "turned" ? widths[at] : lines.length * line);
    places.push({ at: (at + 0.5) * cell, kind, lines });
  });
  return { places, room: Math.ceil(room), line, size };
}

const WIDE = /[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60]|[\u{1f300}-\u{1faff}\u{20000}-\u{3ffff}]/u;

// Writes them above (`across`) or at the left of the point (x, y).
function writeLabels(pen, placed, across, x, y) {
  pen.font = `${placed.size}px ${FONT}`;
  pen.fillStyle = ink("ink");
  for (const { at, kind, lines } of placed.places) {
    pen.save();
    if (!across) {
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(lines[0], x, y + at);
    } else if (kind === "turned") {
      pen.translate(x + at, y);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillText(lines[0], 0, 0);
    } else {
      pen.textAlign = "center";
      pen.textBaseline = "bottom";
      lines.forEach((text, n) => pen.fillText(text, x + at, y - (lines.length - 1 - n) * placed.line));
    }
    pen.restore();
  }
}

// A canvas of that size on the page, sharp on every screen.
function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

// The colour bar.
function scaleLegend(chart) {
  const bar = document.createElement("span"), legend = document.createElement("p");
  bar.className = chart.diverging ? "ramp diverging" : "ramp";
  legend.className = "legend";
  legend.append(textElement("span", number(chart.low)), bar, textElement("span", number(chart.high)));
  return legend;
}

function boxed(content) {
  const around = document.createElement("div");
  around.className = "scroll";
  around.append(content);
  return around;
}

// Draws the matrix with its axes into a canvas in `holder`, as wide as fits or wider in a box that scrolls; again when
// the width or the colours of the page change.
function drawMatrix(holder, chart, bytes) {
  const rows = chart.rows.length, columns = chart.columns.length;
  const canvas = document.createElement("canvas");
  const rowLabels = chart.rows.map((label) => cut(label, 16)), columnLabels = chart.columns.map((label) => cut(label, 16));
  let box = null;
  holder.append(boxed(canvas), scaleLegend(chart));

  function draw() {
    const room = holder.clientWidth;
    if (!room) return;
    const widest = (labels) => placeLabels(labels, 1e6, false, LABEL).room;
    const left = widest(rowLabels) + 10 + (chart.rowTitle ? 20 : 0), fitting = Math.max(1, room - left - 4);
    const least = Math.max(rows, columns) <= MOST_LABELS ? LABEL + 1 : Math.min(fitting / columns, 1);
    const cell = Math.max(least, Math.min(26, fitting / columns, 620 / rows));
    // Few columns are made as wide as their labels, so that these need not be turned.
    const column = columns <= 12 ? Math.max(cell, Math.min(fitting / columns, widest(columnLabels) + 8)) : cell;
    const above = placeLabels(columnLabels, column, true, LABEL);
    const wide = column * columns, tall = cell * rows, top = above.room + 8 + (chart.columnTitle ? 18 : 0);
    const titleWidth = chart.columnTitle ? 12 * chart.columnTitle.length : 0;
    const pen = sized(canvas, left + Math.max(wide, titleWidth) + 3, top + tall + 3);
    pen.imageSmoothingEnabled = cell < 1;
    pen.drawImage(picture(bytes, rows, columns, chart.diverging), left, top, wide, tall);
    pen.strokeStyle = ink("line");
    pen.strokeRect(left - 0.5, top - 0.5, wide + 1, tall + 1);
    writeLabels(pen, placeLabels(rowLabels, cell, false, LABEL), false, left - 6, top);
    writeLabels(pen, above, true, left, top - 5);
    pen.font = `${LABEL}px ${FONT}`;
    pen.fillStyle = ink("soft");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    if (chart.columnTitle) pen.fillText(chart.columnTitle, left, 8);
    if (chart.rowTitle) {
      pen.save();
      pen.translate(0, top + tall);
      pen.rotate(-Math.PI / 2);
      pen.fillText(chart.rowTitle, Math.max(0, tall - pen.measureText(chart.rowTitle).width), 8);
      pen.restore();
    }
    box = { left, top, column, cell };
  }

  function show(event) {
    if (!box) return;
    const edges = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - edges.left - box.left) / box.column);
    const r = Math.floor((event.clientY - edges.top - box.top) / box.cell);
    if (r < 0 || c < 0 || r >= rows || c >= columns) return hideTip();
    showCell(event, chart, bytes, r, c);
  }

  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerdown", show);
  canvas.addEventListener("pointerleave", hideTip);
  draw();
  theme.redraws.push(() => canvas.isConnected && draw());
  let drawn = holder.clientWidth;
  new ResizeObserver(() => {
    if (holder.clientWidth === drawn) return;
    drawn = holder.clientWidth;
    draw();
  }).observe(holder);
}

function showCell(event, chart, bytes, r, c) {
  const value = chart.low + (bytes[r * chart.columns.length + c] / 255) * (chart.high - chart.low);
  showTip(event, `${chart.rows[r]} → ${chart.columns[c]}\n${number(value)}`);
}

// A table of thumbnails, layers × heads, with labels of its outer cells where they can be read. `look` is called with
// the layer and head of one that is clicked. Returns the table in its box, and what draws chart and bytes into it.
function thumbnails(holder, rowTitles, columnTitles, name, look) {
  const table = document.createElement("table"), count = columnTitles.length;
  table.className = "thumbs";
  const longest = rowTitles.reduce((most, title) => Math.max(most, title.length), 0);
  let shown = null;
  const canvases = rowTitles.map((rowTitle, n) => columnTitles.map((columnTitle, m) => {
    const button = document.createElement("button"), canvas = document.createElement("canvas");
    button.type = "button";
    button.setAttribute("aria-label", [name, rowTitle, columnTitle].filter(Boolean).join(" · "));
    button.append(canvas);
    button.addEventListener("click", () => {
      for (const other of holder.querySelectorAll("[aria-pressed]")) other.removeAttribute("aria-pressed");
      button.setAttribute("aria-pressed", "true");
      look(n, m, button.getAttribute("aria-label"));
    });
    canvas.addEventListener("pointermove", (event) => {
      const edges = canvas.getBoundingClientRect(), { chart, bytes } = shown;
      const r = Math.floor(((event.clientY - edges.top) / edges.height) * chart.rows.length);
      const c = Math.floor(((event.clientX - edges.left) / edges.width) * chart.columns.length);
      const area = chart.rows.length * chart.columns.length, start = (n * count + m) * area;
      if (r < 0 || c < 0 || r >= chart.rows.length || c >= chart.columns.length) return hideTip();
      showCell(event, chart, bytes.subarray(start, start + area), r, c);
    });
    canvas.addEventListener("pointerleave", hideTip);
    return button;
  }));

  function draw(chart, bytes) {
    shown = { chart, bytes };
    const rows = chart.rows.length, columns = chart.columns.length, area = rows * columns;
    const room = (holder.clientWidth - longest * 8 - 12) / count - 6, most = Math.max(rows, columns);
    const legible = Math.min(26, (room - (placeLabels(chart.rows, 1e6, false, LEAST_LABEL).room + 6) / count) / most);
    const has = legible >= LEAST_LABEL + 1;
    const cell = has ? Math.min(legible, Math.max(LEAST_LABEL + 1, 120 / most)) : Math.max(26, Math.min(120, room)) / most;
    const size = Math.max(LEAST_LABEL, Math.min(LABEL, Math.floor(cell) - 1));
    table.replaceChildren();
    const head = table.createTHead().insertRow(), body = table.createTBody();
    for (const title of has ? ["", "", ...columnTitles] : ["", ...columnTitles]) head.append(textElement("th", title));
    if (has) {
      const above = placeLabels(chart.columns, cell, true, size), line = table.tHead.insertRow();
      line.append(textElement("th", ""), textElement("th", ""));
      columnTitles.forEach(() => {
        const canvas = document.createElement("canvas"), heading = document.createElement("th");
        writeLabels(sized(canvas, columns * cell, above.room + 4), above, true, 0, above.room + 3);
        heading.append(canvas);
        line.append(heading);
      });
    }
    rowTitles.forEach((rowTitle, n) => {
      const line = body.insertRow();
      line.append(textElement("th", rowTitle));
      if (has) {
        const beside = placeLabels(chart.rows, cell, false, size), canvas = document.createElement("canvas");
        const heading = document.createElement("th");
        writeLabels(sized(canvas, beside.room + 4, rows * cell), beside, false, beside.room + 2, 0);
        heading.append(canvas);
        line.append(heading);
      }
      columnTitles.forEach((_, m) => {
        const start = (n * count + m) * area, button = canvases[n][m], canvas = button.firstChild;
        const small = picture(bytes.subarray(start, start + area), rows, columns, chart.diverging);
        canvas.width = columns;
        canvas.height = rows;
        canvas.style.width = `${columns * cell}px`;
        canvas.style.height = `${rows * cell}px`;
        canvas.style.imageRendering = cell < 1 ? "auto" : "pixelated";
        canvas.getContext("2d").drawImage(small, 0, 0);
        line.insertCell().append(button);
      });
    });
  }
  theme.redraws.push(() => shown && draw(shown.chart, shown.bytes));
  return { box: boxed(table), draw };
}

// Thumbnails of all matrices in a table, and room for the one that is enlarged.
function drawGrid(holder, grid) {
  const area = grid.rows.length * grid.columns.length, bytes = bytesOf(grid.data);
  const large = document.createElement("div");
  large.className = "large";
  const table = thumbnails(holder, grid.rowTitles, grid.columnTitles, "", (n, m, title) => {
    const start = (n * grid.columnTitles.length + m) * area;
    large.replaceChildren(textElement("h3", title));
    drawMatrix(large, grid, bytes.subarray(start, start + area));
    large.scrollIntoView({ block: "nearest", behavior: "smooth" });
  });
  const chinese = (holder.closest("[lang]") || document.documentElement).lang.startsWith("zh");
  const hint = textElement("p", chinese ? "点按小图可放大；在图上移动指针可看到数值。" : "Click a map to enlarge it; move over it for the values.");
  hint.className = "note";
  holder.append(hint, table.box, scaleLegend(grid), large);
  table.draw(grid, bytes);
}

function textElement(name, text) {
  const element = document.createElement(name);
  element.textContent = text;
  return element;
}

function showTip(event, text) {
  const tip = document.getElementById("tip");
  tip.textContent = text;
  tip.hidden = false;
  const across = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(4, across)}px`;
  tip.style.top = `${Math.max(4, below)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}
