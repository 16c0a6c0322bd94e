"use strict";
// Matrices on a canvas: one byte a cell. A single matrix has axes and values on hover; a grid has thumbnails, one of
// which is shown large. Nothing here touches innerHTML: every label is text.

const RAMPS = Object.fromEntries(Object.entries(PALETTES).map(([name, stops]) => [name, ramp(stops)]));
const FONT = getComputedStyle(document.documentElement).getPropertyValue("--fonts") || "sans-serif";

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
  const colours = RAMPS[diverging ? "diverging" : "sequential"];
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

// Draws the matrix with its axes into a canvas in `holder`, as wide as fits; again when its width changes.
function drawMatrix(holder, chart, bytes) {
  const rows = chart.rows.length, columns = chart.columns.length;
  const cells = picture(bytes, rows, columns, chart.diverging);
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d");
  const rowLabels = chart.rows.map((label) => cut(label, 16)), columnLabels = chart.columns.map((label) => cut(label, 16));
  let box = null;
  holder.append(canvas);

  function draw() {
    const room = holder.clientWidth;
    if (!room) return;
    pen.font = `12px ${FONT}`;
    const widest = (labels) => Math.ceil(labels.reduce((most, label) => Math.max(most, pen.measureText(label).width), 0));
    const left = widest(rowLabels) + 10 + (chart.rowTitle ? 20 : 0);
    const columnRoom = widest(columnLabels), fitting = Math.max(1, room - left - 16);
    const cell = Math.max(Math.min(26, fitting / columns, 620 / rows), Math.min(fitting / columns, 1));
    // Few columns are made as wide as their labels, so that these need not be turned.
    const column = columns <= 12 ? Math.min(fitting / columns, Math.max(cell, columnRoom + 8)) : cell;
    const wide = column * columns, tall = cell * rows;
    // Neighbours must not overlap; one long label among short ones (such as <eos>) is no reason to turn them all.
    const widths = columnLabels.map((label) => pen.measureText(label).width);
    const crowded = widths.some((one, at) => at && (one + widths[at - 1]) / 2 + 2 > column);
    const turned = crowded && columnRoom > 16;
    const top = (turned ? columnRoom : 14) + 10 + (chart.columnTitle ? 20 : 0);
    const width = Math.max(left + wide, left + 190) + 14, height = top + tall + 40, ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.imageSmoothingEnabled = cell < 1;
    pen.drawImage(cells, left, top, wide, tall);
    pen.strokeStyle = "#999";
    pen.strokeRect(left - 0.5, top - 0.5, wide + 1, tall + 1);
    pen.font = `12px ${FONT}`;
    pen.fillStyle = "#333";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const rowStep = Math.ceil(13 / cell);
    for (let r = 0; r < rows; r += rowStep) pen.fillText(rowLabels[r], left - 6, top + (r + 0.5) * cell);
    const columnStep = crowded ? Math.ceil((turned ? 13 : Math.max(columnRoom + 4, 13)) / column) : 1;
    for (let c = 0; c < columns; c += columnStep) {
      pen.save();
      pen.translate(left + (c + 0.5) * column, top - 6);
      if (turned) pen.rotate(-Math.PI / 2);
      pen.textAlign = turned ? "left" : "center";
      pen.textBaseline = turned ? "middle" : "bottom";
      pen.fillText(columnLabels[c], 0, 0);
      pen.restore();
    }
    pen.fillStyle = "#555";
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
    const scale = RAMPS[chart.diverging ? "diverging" : "sequential"], at = top + tall + 12;
    for (let i = 0; i < 110; i++) {
      const [red, green, blue] = scale[Math.round((i / 109) * 255)];
      pen.fillStyle = `rgb(${red},${green},${blue})`;
      pen.fillRect(left + 44 + i, at, 1.5, 10);
    }
    pen.strokeStyle = "#ccc";
    pen.strokeRect(left + 43.5, at - 0.5, 111, 11);
    pen.fillStyle = "#555";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillText(number(chart.low), left + 38, at + 5);
    pen.textAlign = "left";
    pen.fillText(number(chart.high), left + 160, at + 5);
    box = { left, top, column, cell };
  }

  function show(event) {
    if (!box) return;
    const edges = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - edges.left - box.left) / box.column);
    const r = Math.floor((event.clientY - edges.top - box.top) / box.cell);
    if (r < 0 || c < 0 || r >= rows || c >= columns) return hideTip();
    const value = chart.low + (bytes[r * columns + c] / 255) * (chart.high - chart.low);
    showTip(event, `${chart.rows[r]} → ${chart.columns[c]}\n${number(value)}`);
  }

  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerdown", show);
  canvas.addEventListener("pointerleave", hideTip);
  draw();
  let drawn = holder.clientWidth;
  new ResizeObserver(() => {
    if (holder.clientWidth === drawn) return;
    drawn = holder.clientWidth;
    draw();
  }).observe(holder);
}

// Thumbnails of all matrices in a table, and room for the one that is enlarged.
function drawGrid(holder, grid) {
  const rows = grid.rows.length, columns = grid.columns.length, area = rows * columns;
  const bytes = bytesOf(grid.data);
  const room = holder.clientWidth, count = grid.columnTitles.length;
  const longest = grid.rowTitles.reduce((most, title) => Math.max(most, title.length), 0);
  const side = Math.max(26, Math.min(120, (room - longest * 8 - 12) / count - 6));
  const shape = side / Math.max(rows, columns);
  const table = document.createElement("table"), large = document.createElement("div");
  table.className = "thumbs";
  large.className = "large";
  const head = table.createTHead().insertRow();
  for (const title of ["", ...grid.columnTitles]) head.append(textElement("th", title));
  const body = table.createTBody();
  grid.rowTitles.forEach((rowTitle, n) => {
    const line = body.insertRow();
    line.append(textElement("th", rowTitle));
    grid.columnTitles.forEach((columnTitle, m) => {
      const part = bytes.subarray((n * count + m) * area, (n * count + m + 1) * area);
      const small = picture(part, rows, columns, grid.diverging);
      small.style.width = `${columns * shape}px`;
      small.style.height = `${rows * shape}px`;
      small.style.imageRendering = shape < 1 ? "auto" : "pixelated";
      const button = document.createElement("button");
      button.type = "button";
      button.title = `${rowTitle} · ${columnTitle}`;
      button.setAttribute("aria-label", button.title);
      button.append(small);
      button.addEventListener("click", () => {
        for (const other of table.querySelectorAll("[aria-pressed]")) other.removeAttribute("aria-pressed");
        button.setAttribute("aria-pressed", "true");
        large.replaceChildren(textElement("h3", button.title));
        drawMatrix(large, grid, part);
        large.scrollIntoView({ block: "nearest", behavior: "smooth" });
      });
      line.insertCell().append(button);
    });
  });
  const around = document.createElement("div");
  around.className = "scroll";
  around.append(table);
  const chinese = (holder.closest("[lang]") || document.documentElement).lang.startsWith("zh");
  const hint = textElement("p", chinese ? "点按小图可放大，在大图上移动指针可看到数值。" : "Click a map to enlarge it; move over it for the values.");
  hint.className = "note";
  holder.append(hint, around, large);
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
