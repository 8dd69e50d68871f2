"use strict";
// Values under the pointer or the arrow keys, and runs that can be hidden. Without this script the page still shows
// the charts and the table.

const SVG = document.querySelector("svg").namespaceURI;

function svgElement(kind, attributes) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return x - points[low][0] <= points[high][0] - x ? points[low] : points[high];
}

function formatted(value, unit) {
  return Number(value.toPrecision(4)) + unit;
}

function activate(figure, chart) {
  const area = figure.querySelector(".area");
  const tip = figure.querySelector(".tip");
  const cursor = area.appendChild(svgElement("g", { class: "cursor" }));
  const [left, right] = chart.x;
  const [bottom, top] = chart.y;
  const across = (x) => (100 * (x - left)) / (right - left) + "%";
  const down = (y) => (100 * (top - y)) / (top - bottom) + "%";
  const hidden = () => new Set([...document.querySelectorAll(".legend input:not(:checked)")].map((box) => box.value));
  let at = null;

  // A curve is read only where it is: not beyond its ends.
  function visible() {
    const off = hidden();
    return chart.series.filter((series) => !off.has(series.group) && series.points.length);
  }

  function places() {
    return [...new Set(visible().flatMap((series) => series.points.map((point) => point[0])))].sort((a, b) => a - b);
  }

  function show(x) {
    at = x;
    const slack = (right - left) / 50;
    const read = visible()
      .filter(({ points }) => x >= points[0][0] - slack && x <= points[points.length - 1][0] + slack)
      .map((series) => ({ series, point: nearest(series.points, x) }));
    cursor.replaceChildren(svgElement("line", { x1: across(x), x2: across(x), y1: "0", y2: "100%" }));
    const list = document.createElement("dl");
    for (const { series, point } of read) {
      cursor.append(svgElement("circle", { cx: across(point[0]), cy: down(point[1]), r: 5, fill: series.colour }));
      const swatch = svgElement("svg", { "aria-hidden": "true" });
      const line = { x1: 0, x2: 14, y1: 2, y2: 2, stroke: series.colour, "stroke-width": 3 };
      swatch.append(svgElement("line", series.dashed ? { ...line, "stroke-dasharray": "5 3" } : line));
      const name = document.createElement("dt");
      const value = document.createElement("dd");
      name.textContent = series.name;
      value.textContent = formatted(point[1], chart.unit);
      list.append(swatch, name, value);
    }
    tip.replaceChildren(chart.label + " " + formatted(x, ""), list);
    tip.hidden = false;
    // Beside the line, on the side where there is more room, and never beyond the figure.
    const box = area.getBoundingClientRect();
    const line = box.left - figure.getBoundingClientRect().left + ((x - left) / (right - left)) * box.width;
    const beside = line < figure.clientWidth / 2 ? line + 16 : line - 16 - tip.offsetWidth;
    tip.style.left = Math.max(12, Math.min(figure.clientWidth - tip.offsetWidth - 12, beside)) + "px";
  }

  function hide() {
    at = null;
    tip.hidden = true;
    cursor.replaceChildren();
  }

  function point(event) {
    const box = area.getBoundingClientRect();
    const x = left + ((event.clientX - box.left) / box.width) * (right - left);
    const all = places();
    if (all.length) show(nearest(all.map((place) => [place]), x)[0]);
  }

  figure.addEventListener("pointermove", point);
  figure.addEventListener("pointerdown", point);
  figure.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const all = places();
    const last = all.length - 1;
    const now = at === null ? -1 : all.indexOf(at);
    const next = { ArrowRight: Math.min(now + 1, last), ArrowLeft: Math.max(now - 1, 0), Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    if (next === undefined || last < 0) return;
    event.preventDefault();
    show(all[next]);
  });
  return hide;
}

function start() {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const resets = [...document.querySelectorAll(".chart")].map((figure, index) => activate(figure, charts[index]));
  for (const box of document.querySelectorAll(".legend input")) {
    box.disabled = false;
    box.addEventListener("change", () => {
      for (const part of document.querySelectorAll("[data-group]")) {
        if (part.dataset.group === box.value) part.classList.toggle("off", !box.checked);
      }
      resets.forEach((reset) => reset());
    });
  }
  document.querySelector(".help").hidden = false;
  document.documentElement.dataset.ready = "yes";
}

start();
