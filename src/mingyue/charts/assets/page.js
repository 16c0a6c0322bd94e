"use strict";
// Draws each chart when it comes into view, in light or dark colours; shows the lines of coloured text on hover;
// switches languages.

const DRAW = {
  vega: drawVega,
  matrix: (holder, chart) => drawMatrix(holder, chart, bytesOf(chart.data)),
  "matrix-grid": drawGrid,
  film: drawFilm,
};

// Axes, lines and letters follow the colours of the page; names below the x axis fit its width.
function drawVega(holder, spec) {
  const drawing = document.createElement("div");
  holder.append(drawing);
  const show = () =>
    vegaEmbed(drawing, themed(fitted(structuredClone(spec), holder.clientWidth)), { actions: false, renderer: "svg" })
      .then(() => (holder.style.minHeight = ""));
  theme.redraws.push(show);
  return show();
}

const SLANTED = 21;  // pixels between slanted names that do not touch

const TEXTS = new Set(["data", "text", "title", "domain", "labelExpr", "values"]);

function themed(part) {
  if (!theme.dark) return part;
  if (typeof part === "string") return DARK[part] ?? part;
  if (Array.isArray(part)) return part.map(themed);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([name, one]) => [name, TEXTS.has(name) ? one : themed(one)]));
}

// Names below the x axis: side by side, in a few lines, or slanted with room at the left for the first. Numbers there
// do not touch: some are left out on a narrow page, as is the last one where it has no room.
function fitted(spec, width) {
  for (const { encoding } of spec.layer) {
    if (encoding?.x?.type !== "quantitative") continue;
    Object.assign(encoding.x.axis, { labelOverlap: "greedy", labelSeparation: 6, labelBound: 12 });
    spec.padding = { left: 5, right: 14, top: 5, bottom: 5 };
  }
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `12px ${FONT}`;
  const wide = (text) => pen.measureText(text).width;
  const names = [...new Set(spec.data.values.map((row) => String(row.x)))];
  const beside = spec.layer.flatMap(({ encoding }) => (encoding?.x?.value === "width" ? encoding.text.value : []));
  const band = (width - 70 - Math.max(0, ...beside.map(wide))) / Math.max(1, names.length);
  const room = Math.max(band - 6, Math.min(band - 1, 13));  // in a narrow band at least a Chinese character
  const lines = names.map((name) => brokenLines(name, room, wide));
  const flat = lines.every((one) => one.length <= 4 && one.every((line) => wide(line) <= room));
  for (const { encoding } of spec.layer) {
    const axis = encoding?.x?.type === "nominal" && encoding.x.axis;
    if (!axis) continue;
    axis.labelAngle = flat ? 0 : band < SLANTED ? -90 : -35;
    const texts = Object.fromEntries(names.map((name, n) => [name, lines[n].length > 1 ? lines[n] : name]));
    if (flat) Object.assign(axis, { labelExpr: `(${JSON.stringify(texts)})[datum.label]`, labelLineHeight: 13 });
    else if (band >= SLANTED) spec.padding = { left: 5 + Math.max(0, ...names.map((name, n) => wide(name) * 0.82 - band * (n + 0.5) - 50)), right: 5, top: 5, bottom: 5 };
  }
  return spec;
}

// A text in lines of at most `room` pixels, broken at spaces and between Chinese characters.
function brokenLines(text, room, wide) {
  const lines = [""];
  for (const part of text.match(/[\u2e80-\u9fff\uff00-\uffef][，。、；：）]?|[^\s\u2e80-\u9fff\uff00-\uffef]+\s*|\s+/g) ?? [text]) {
    if (lines.at(-1) && wide((lines.at(-1) + part).trimEnd()) > room) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines.map((line) => line.trim());
}

// Cells and running text have the colours of light pages in their HTML.
function paintTexts() {
  for (const element of document.querySelectorAll("[data-byte]")) paint(element, Number(element.dataset.byte));
}

function showTheme(dark) {
  if (theme.dark === dark) return;
  theme.dark = dark;
  paintTexts();
  for (const redraw of theme.redraws) redraw();
}

const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => showTheme(system.matches));
addEventListener("afterprint", () => showTheme(system.matches));
if (theme.dark) paintTexts();

function draw(holder) {
  if (holder.dataset.drawn || !holder.offsetParent) return;
  holder.dataset.drawn = "yes";
  const data = holder.querySelector("script");
  const chart = JSON.parse(data.textContent);
  data.remove();
  const kind = Object.keys(DRAW).find((name) => holder.classList.contains(name));
  DRAW[kind](holder, chart);
}

const holders = document.querySelectorAll(Object.keys(DRAW).map((name) => `.${name}`).join(","));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "400px" });
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  holders.forEach(draw);
  showTheme(false);
});

for (const kind of ["pointerover", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const mark = event.target.closest("[data-hover]");
    if (mark) showTip(event, mark.dataset.hover);
    else if (event.target.tagName !== "CANVAS") hideTip();
  });
}

// Shows one language; a reader who is in the middle of the page stays at the same section.
function showLanguage(language) {
  const sections = (body) => Array.from(body.querySelectorAll("section"));
  const before = document.querySelector("main[data-language]:not([hidden])");
  const passed = before ? sections(before).findLastIndex((section) => section.getBoundingClientRect().top < 120) : -1;
  for (const body of document.querySelectorAll("main[data-language]")) {
    body.hidden = body.dataset.language !== language;
  }
  const shown = document.querySelector("main[data-language]:not([hidden])");
  document.documentElement.lang = shown.lang;
  if (shown !== before && passed >= 0 && scrollY > 0) sections(shown)[passed].scrollIntoView({ behavior: "instant" });
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.to === language));
}

const buttons = document.querySelectorAll(".languages button");
buttons.forEach((button) => button.addEventListener("click", () => showLanguage(button.dataset.to)));
if (buttons.length) {
  const known = Array.from(buttons, (button) => button.dataset.to);
  const named = location.hash.slice(1, 3);  // of a link to a section: #zh-lens
  showLanguage(known.includes(named) ? named : known[0]);
}

// What is in sight now is drawn at once; the rest when it comes near.
for (const holder of holders) {
  if (holder.offsetParent && holder.getBoundingClientRect().top < innerHeight) draw(holder);
  else watcher.observe(holder);
}
