// Elements of the page, numbers as text, and maps on pictures.
// A stack of maps is { rows, columns, data }, data holding one byte for every cell of every map.

import { blend, colourTable, pixels } from "./heat.js";

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

// `map` is { rows, columns, values } or null for the bare picture; `patch` is { row, column } of that or another grid.
export function paint(canvas, picture, map, { width, strength = 1, patch = null, grid = map }) {
  canvas.width = width;
  canvas.height = Math.max(1, Math.round((width * picture.naturalHeight) / picture.naturalWidth));
  const bare = pixels(picture, canvas.width, canvas.height);
  const image = map ? blend(bare, enlarged(map, canvas.width, canvas.height), strength, table) : bare;
  const context = canvas.getContext("2d");
  context.putImageData(image, 0, 0);
  if (!patch) return;
  const across = canvas.width / grid.columns;
  const down = canvas.height / grid.rows;
  for (const [colour, line] of [["#000000", 5], ["#ffffff", 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(patch.column * across, patch.row * down, across, down);
  }
}
