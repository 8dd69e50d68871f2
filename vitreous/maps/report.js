"use strict";
// Draws any cluster's map over the picture when its row is chosen. Without this script the page still shows the
// pictures, the most important clusters and the numbers.

function colourTable(stops) {
  const rgb = stops.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, value) => {
    const place = (value / 255) * (rgb.length - 1);
    const below = Math.min(Math.floor(place), rgb.length - 2);
    return rgb[below].map((c, i) => c + (rgb[below + 1][i] - c) * (place - below));
  });
}

function pixels(image, width, height, crop) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(image, ...(crop || []), 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

// The cell is copied to a canvas of its own first: smoothing across its edge would mix in the neighbouring map.
function heatOf(atlas, cluster, columns, rows, width, height) {
  const cell = document.createElement("canvas");
  cell.width = columns;
  cell.height = rows;
  cell.getContext("2d").drawImage(atlas, 0, cluster * rows, columns, rows, 0, 0, columns, rows);
  return pixels(cell, width, height, [0, 0, columns, rows]).data;
}

// The same mixture as in the still pictures: mostly grey below, so that a red object is not mistaken for heat.
function blend(picture, heat, strength, table) {
  const out = new ImageData(picture.width, picture.height);
  const fade = 0.7 * Math.min(1, strength);
  for (let i = 0; i < out.data.length; i += 4) {
    const grey = 0.299 * picture.data[i] + 0.587 * picture.data[i + 1] + 0.114 * picture.data[i + 2];
    const opacity = Math.min(1, strength * (0.45 + (0.25 * heat[i]) / 255));
    for (let c = 0; c < 3; c += 1) {
      const below = picture.data[i + c] + (grey - picture.data[i + c]) * fade;
      out.data[i + c] = below * (1 - opacity) + table[heat[i]][c] * opacity;
    }
    out.data[i + 3] = 255;
  }
  return out;
}

function activate(section, table) {
  const original = section.querySelector(".original");
  const atlas = section.querySelector(".atlas");
  const viewer = section.querySelector(".viewer");
  const canvas = viewer.querySelector("canvas");
  const caption = viewer.querySelector("figcaption");
  const strength = viewer.querySelector("input");
  const buttons = [...section.querySelectorAll("button[data-cluster]")];
  const rows = Number(atlas.dataset.rows);
  canvas.width = original.naturalWidth;
  canvas.height = original.naturalHeight;
  const picture = pixels(original, canvas.width, canvas.height);
  let chosen = 0;

  function draw() {
    const cluster = Number(buttons[chosen].dataset.cluster);
    const heat = heatOf(atlas, cluster, atlas.naturalWidth, rows, canvas.width, canvas.height);
    canvas.getContext("2d").putImageData(blend(picture, heat, Number(strength.value) / 100, table), 0, 0);
  }

  function choose(index) {
    chosen = (index + buttons.length) % buttons.length;
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
    caption.textContent = buttons[chosen].dataset.caption;
    canvas.setAttribute("aria-label", "Heat map: " + buttons[chosen].dataset.caption);
    draw();
  }

  buttons.forEach((button, i) => {
    button.addEventListener("click", () => choose(i));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(i + step);
      buttons[chosen].focus();
    });
  });
  viewer.querySelector(".previous").addEventListener("click", () => choose(chosen - 1));
  viewer.querySelector(".next").addEventListener("click", () => choose(chosen + 1));
  strength.addEventListener("input", draw);
  viewer.hidden = false;
  choose(0);
}

async function start() {
  const table = colourTable(document.body.dataset.colours.split(" "));
  for (const section of document.querySelectorAll(".image")) {
    await Promise.all([...section.querySelectorAll(".original, .atlas")].map((image) => image.decode()));
    activate(section, table);
  }
  document.documentElement.dataset.ready = "yes";
}

start();
