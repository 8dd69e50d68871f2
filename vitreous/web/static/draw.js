// Elements of the page, numbers as text, and maps on pictures.
// A stack of maps is { rows, columns, data }, data holding one byte for every cell of every map.

import { colourTable, pixels } from "./heat.js";

const STRENGTH = 0.75; // of a map over a picture, as long as nobody chooses another

let table = [];

export const $ = (id) => document.getElementById(id);

// A new element with properties, or attributes where the name has a hyphen.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// As many grey rows or tiles as will come.
export function skeletons(tag, count, className) {
  return Array.from({ length: count }, () => make(tag, { className: `skeleton ${className}`, "aria-hidden": "true" }));
}

// A name, a share of one, and the share as a bar.
export function makeBar(tag, name, share, properties = {}) {
  const bar = make("i");
  bar.style.width = length(share);
  const texts = [make("span", { className: "name", textContent: name }), make("span", { className: "value", textContent: percent(share) })];
  return make(tag, properties, ...texts, make("span", { className: "track", "aria-hidden": "true" }, bar));
}

export const percent = (value) => `${(100 * value).toFixed(1)} %`;
export const length = (share) => `${100 * Math.min(Math.max(share, 0), 1)}%`;

export function signed(value) {
  const size = Math.abs(value);
  const digits = size < 1 ? 3 : size < 100 ? 2 : 0;
  return (value < 0 ? "−" : "+") + size.toFixed(digits);
}

export const minus = (text) => text.replaceAll("-", "−");
export const fixed = (value) => minus(value.toFixed(2));

export const spaced = (name) => name.replaceAll("_", " ");

export function sentence(text) {
  return text[0].toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
}

export function setColours(stops) {
  table = colourTable(stops);
}

export function unpack(packed) {
  const text = atob(packed.values);
  return { rows: packed.rows, columns: packed.columns, data: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
}

export function cellCount(stack) {
  return stack.rows * stack.columns;
}

export function mapOf(stack, number) {
  return stack.data.subarray(number * cellCount(stack), (number + 1) * cellCount(stack));
}

// Several maps as one, added and stretched to the full range again.
export function summedMap(stack, numbers) {
  if (numbers.length === 1) return mapOf(stack, numbers[0]);
  const sum = new Float32Array(cellCount(stack));
  for (const number of numbers) mapOf(stack, number).forEach((value, i) => { sum[i] += value; });
  const low = Math.min(...sum);
  const span = Math.max(...sum) - low || 1;
  return Uint8Array.from(sum, (value) => Math.round((255 * (value - low)) / span));
}

function enlarged({ values, columns, rows }, width, height) {
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const grey = new ImageData(columns, rows);
  values.forEach((value, i) => grey.data.set([value, value, value, 255], 4 * i));
  small.getContext("2d").putImageData(grey, 0, 0);
  return pixels(small, width, height).data;
}

// The picture with a map, in one canvas; `map` is { rows, columns, values } or null for the bare picture.
export function paint(canvas, picture, map, { width, strength = STRENGTH }) {
  const height = Math.max(1, Math.round((width * picture.naturalHeight) / picture.naturalWidth));
  Object.assign(canvas, { width, height });
  const bare = pixels(picture, width, height);
  if (map) fade(bare.data, greyUnder(strength));
  const context = canvas.getContext("2d");
  context.putImageData(bare, 0, 0);
  if (!map) return;
  const over = document.createElement("canvas");
  paintOver(over, map, { width, height, strength });
  context.drawImage(over, 0, 0);
}

// How grey the picture is under a map, so that a red object is not mistaken for heat.
export const greyUnder = (strength) => 0.6 * strength;

function fade(data, share) {
  for (let i = 0; i < data.length; i += 4) {
    const grey = 0.213 * data[i] + 0.715 * data[i + 1] + 0.072 * data[i + 2]; // as the browser's own filter
    for (let c = 0; c < 3; c += 1) data[i + c] += (grey - data[i + c]) * share;
  }
}

// The map alone, to lie over a picture: clear where it is cold. `patch` is { row, column } of a grid; `boxes` can be clicked.
export function paintOver(canvas, map, { width, height, strength, patch = null, grid = null, boxes = [] }) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  if (map) {
    const heat = enlarged(map, width, height);
    const image = new ImageData(width, height);
    for (let i = 0; i < heat.length; i += 4) {
      const share = heat[i] / 255;
      image.data.set(table[heat[i]], i);
      image.data[i + 3] = 255 * strength * (0.2 + 0.75 * share);
    }
    context.putImageData(image, 0, 0);
  }
  context.setLineDash([6, 5]);
  for (const [left, top, right, bottom] of boxes) outline(context, left * width, top * height, (right - left) * width, (bottom - top) * height, 1.5);
  context.setLineDash([]);
  if (!patch) return;
  const across = width / grid.columns;
  const down = height / grid.rows;
  outline(context, patch.column * across, patch.row * down, across, down, 2);
}

// White on black, to be seen on anything.
function outline(context, left, top, width, height, line) {
  for (const [colour, wide] of [["#000000", line + 3], ["#ffffff", line]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.strokeRect(left, top, width, height);
  }
}
