"use strict";
// Tokens joined by lines: a pointer over a token shows its lines alone, buttons show and hide a series.

function singleOut(figure, token) {
  const side = token && (token.dataset.left === undefined ? "right" : "left");
  const others = new Set();
  for (const line of figure.querySelectorAll("line")) {
    const shown = !token || line.dataset[side] === token.dataset[side];
    line.style.opacity = shown ? "" : "0.04";
    if (shown && token && !line.parentNode.hasAttribute("hidden")) others.add(line.dataset[side === "left" ? "right" : "left"]);
  }
  for (const text of figure.querySelectorAll("text[data-hover]")) {
    const shown = !token || text === token || (text.dataset[side] === undefined && others.has(text.dataset.left ?? text.dataset.right));
    text.style.opacity = shown ? "" : "0.25";
  }
}

for (const figure of document.querySelectorAll(".token-lines")) {
  for (const kind of ["pointerover", "pointerdown"]) {
    figure.addEventListener(kind, (event) => singleOut(figure, event.target.closest("text[data-hover]")));
  }
  figure.addEventListener("pointerleave", () => singleOut(figure, null));
  for (const button of figure.querySelectorAll("button[data-series]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      button.style.opacity = shown ? "" : "0.35";
      figure.querySelector(`g[data-series="${button.dataset.series}"]`).toggleAttribute("hidden", !shown);
      figure.querySelector(`g[data-series="${button.dataset.series}"]`).style.display = shown ? "" : "none";
    });
  }
}
