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
  const tables = film.parts.map((part, p) => {
    holder.append(textElement("h3", part.title));
    const table = thumbnails(holder, part.rowTitles, part.columnTitles, part.title, (n, m, title) => {
      chosen = { part: p, n, m, title };
      show();
      large.scrollIntoView({ block: "nearest", behavior: "smooth" });
    });
    holder.append(table.box);
    return table;
  });
  holder.append(scaleLegend({ low: 0, high: 1 }));
  large.className = "large";
  words.className = "scroll";
  holder.append(large);
  if (film.wordRows.length) holder.append(textElement("h3", film.wordTitle));
  holder.append(words);

  function show() {
    const step = film.steps[Number(slider.value)];
    label.textContent = step.label;
    const maps = step.maps.map((map) => ({ chart: { ...map, rowTitle: "", columnTitle: "", low: 0, high: 1 }, bytes: bytesOf(map.data) }));
    maps.forEach(({ chart, bytes }, p) => tables[p].draw(chart, bytes));
    if (chosen) {
      const { chart, bytes } = maps[chosen.part], area = chart.rows.length * chart.columns.length;
      const start = (chosen.n * film.parts[chosen.part].columnTitles.length + chosen.m) * area;
      const tall = large.offsetHeight;
      large.style.minHeight = `${tall}px`; // so that the page does not jump while the map is redrawn
      large.replaceChildren(textElement("h3", chosen.title));
      drawMatrix(large, chart, bytes.subarray(start, start + area));
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
  theme.redraws.push(show);
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
      const cell = line.insertCell();
      cell.textContent = text;
      if (byte !== null) paint(cell, byte);
      if (hover.length) cell.dataset.hover = hover.join("\n");
    }
  });
  return table;
}

// The colours of a cell of text: those of its value, and letters that can be read on it.
function paint(element, byte) {
  const colour = scaleOf(false)[byte];
  element.style.background = `rgb(${colour.join(",")})`;
  element.style.color = luminance(colour) < 0.179 ? "#fff" : "#000";
}

// Relative luminance, as WCAG 2 has it.
function luminance(colour) {
  const [red, green, blue] = colour.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
