"use strict";
// A film: a slider over steps; thumbnails, the enlarged map and the table of words follow it.

function drawFilm(holder, film) {
  const chinese = (holder.closest("[lang]") || document.documentElement).lang.startsWith("zh");
  const last = film.steps.length - 1;
  const bar = document.createElement("div"), play = document.createElement("button");
  const slider = document.createElement("input"), label = document.createElement("output");
  const large = document.createElement("div"), words = document.createElement("div");
  bar.className = "player";
  play.type = "button";
  slider.type = "range";
  slider.min = "0";
  slider.max = String(last);
  slider.value = String(last);
  slider.setAttribute("aria-label", chinese ? "步数" : "step");
  bar.append(play, slider, label);
  holder.append(bar);

  let chosen = null, timer = 0;
  const canvases = film.parts.map((part) => {
    holder.append(textElement("h3", part.title));
    const longest = part.rowTitles.reduce((most, title) => Math.max(most, title.length), 0);
    const side = Math.max(26, Math.min(110, (holder.clientWidth - longest * 8 - 12) / part.columnTitles.length - 6));
    const table = document.createElement("table"), around = document.createElement("div");
    table.className = "thumbs";
    around.className = "scroll";
    const head = table.createTHead().insertRow();
    for (const title of ["", ...part.columnTitles]) head.append(textElement("th", title));
    const body = table.createTBody();
    const drawn = part.rowTitles.map((rowTitle, n) => {
      const line = body.insertRow();
      line.append(textElement("th", rowTitle));
      return part.columnTitles.map((columnTitle, m) => {
        const button = document.createElement("button"), canvas = document.createElement("canvas");
        button.type = "button";
        button.title = `${part.title} · ${rowTitle} · ${columnTitle}`;
        button.setAttribute("aria-label", button.title);
        canvas.style.width = `${side}px`;
        button.append(canvas);
        button.addEventListener("click", () => {
          for (const other of holder.querySelectorAll("[aria-pressed]")) other.removeAttribute("aria-pressed");
          button.setAttribute("aria-pressed", "true");
          chosen = { part: film.parts.indexOf(part), n, m, title: button.title };
          show();
          large.scrollIntoView({ block: "nearest", behavior: "smooth" });
        });
        line.insertCell().append(button);
        return canvas;
      });
    });
    around.append(table);
    holder.append(around);
    return drawn;
  });
  large.className = "large";
  words.className = "scroll";
  holder.append(large);
  if (film.wordRows.length) holder.append(textElement("h3", film.wordTitle));
  holder.append(words);

  function show() {
    const step = film.steps[Number(slider.value)];
    label.textContent = step.label;
    const decoded = step.maps.map((map) => bytesOf(map.data));
    step.maps.forEach((map, p) => {
      const rows = map.rows.length, columns = map.columns.length, area = rows * columns;
      canvases[p].forEach((line, n) => line.forEach((canvas, m) => {
        const start = (n * line.length + m) * area;
        const small = picture(decoded[p].subarray(start, start + area), rows, columns, false);
        const side = parseFloat(canvas.style.width);
        canvas.width = columns;
        canvas.height = rows;
        canvas.style.height = `${(side * rows) / columns}px`;
        canvas.style.imageRendering = columns > side ? "auto" : "pixelated";
        canvas.getContext("2d").drawImage(small, 0, 0);
      }));
    });
    if (chosen) {
      const map = step.maps[chosen.part], area = map.rows.length * map.columns.length;
      const start = (chosen.n * film.parts[chosen.part].columnTitles.length + chosen.m) * area;
      const chart = { rows: map.rows, columns: map.columns, rowTitle: "", columnTitle: "", low: 0, high: 1, diverging: false };
      const tall = large.offsetHeight;
      large.style.minHeight = `${tall}px`; // so that the page does not jump while the map is redrawn
      large.replaceChildren(textElement("h3", chosen.title));
      drawMatrix(large, chart, decoded[chosen.part].subarray(start, start + area));
      large.style.minHeight = "";
    }
    words.replaceChildren(wordTable(film.wordRows, step));
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = chinese ? "▶ 播放" : "▶ Play";
  }

  play.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(slider.value) === last) slider.value = "0";
    play.textContent = chinese ? "⏸ 暂停" : "⏸ Pause";
    show();
    timer = setInterval(() => {
      slider.value = String(Number(slider.value) + 1);
      show();
      if (Number(slider.value) >= last) stop();
    }, 500);
  });
  slider.addEventListener("input", show);
  stop();
  show();
}

function wordTable(rowLabels, step) {
  const table = document.createElement("table");
  table.className = "words";
  const head = table.insertRow();
  for (const title of ["", ...step.columns]) head.append(textElement("th", title));
  step.words.forEach((cells, r) => {
    const line = table.insertRow();
    line.append(textElement("th", rowLabels[r]));
    for (const [text, byte, hover] of cells) {
      const cell = line.insertCell(), colour = RAMPS.sequential[byte];
      cell.textContent = text;
      cell.style.background = `rgb(${colour.join(",")})`;
      cell.style.color = luminance(colour) < 0.179 ? "#fff" : "#000";
      cell.dataset.hover = hover.join("\n");
    }
  });
  return table;
}

// Relative luminance, as WCAG 2 has it.
function luminance(colour) {
  const [red, green, blue] = colour.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
