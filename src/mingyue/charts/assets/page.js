"use strict";
// Draws each chart when it comes into view, shows the lines of coloured text on hover, switches languages.

const DRAW = {
  vega: (holder, spec) => vegaEmbed(holder, spec, { actions: false, renderer: "svg" }).then(() => (holder.style.minHeight = "")),
  matrix: (holder, chart) => drawMatrix(holder, chart, bytesOf(chart.data)),
  "matrix-grid": drawGrid,
  film: drawFilm,
};

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
addEventListener("beforeprint", () => holders.forEach(draw));

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
