// Maps on pictures. A stack of maps is { rows, columns, data }, data holding one byte for every cell of every map.

let table = [];

export function setColours(stops) {
  const rgb = stops.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  table = Array.from({ length: 256 }, (_, value) => {
    const place = (value / 255) * (rgb.length - 1);
    const below = Math.min(Math.floor(place), rgb.length - 2);
    return rgb[below].map((c, i) => c + (rgb[below + 1][i] - c) * (place - below));
  });
}

export function unpack(packed) {
  const text = atob(packed.values);
  return { rows: packed.rows, columns: packed.columns, data: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
}

export function cells(stack) {
  return stack.rows * stack.columns;
}

export function oneOf(stack, number) {
  return stack.data.subarray(number * cells(stack), (number + 1) * cells(stack));
}

// Several maps as one, added and stretched to the full range again.
export function together(stack, numbers) {
  if (numbers.length === 1) return oneOf(stack, numbers[0]);
  const sum = new Float32Array(cells(stack));
  for (const number of numbers) oneOf(stack, number).forEach((value, i) => { sum[i] += value; });
  const low = Math.min(...sum);
  const span = Math.max(...sum) - low || 1;
  return Uint8Array.from(sum, (value) => Math.round((255 * (value - low)) / span));
}

function blank(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return [canvas, canvas.getContext("2d", { willReadFrequently: true })];
}

function enlarged(values, columns, rows, width, height) {
  const [small, context] = blank(columns, rows);
  const grey = new ImageData(columns, rows);
  values.forEach((value, i) => grey.data.set([value, value, value, 255], 4 * i));
  context.putImageData(grey, 0, 0);
  const [, large] = blank(width, height);
  large.imageSmoothingQuality = "high";
  large.drawImage(small, 0, 0, width, height);
  return large.getImageData(0, 0, width, height).data;
}

function pixels(picture, width, height) {
  const [, context] = blank(width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

// The same mixture as in the report: mostly grey below, so that a red object is not mistaken for heat.
function blend(below, heat, strength) {
  const fade = 0.7 * Math.min(1, strength);
  for (let i = 0; i < below.data.length; i += 4) {
    const grey = 0.299 * below.data[i] + 0.587 * below.data[i + 1] + 0.114 * below.data[i + 2];
    const opacity = Math.min(1, strength * (0.45 + (0.25 * heat[i]) / 255));
    for (let c = 0; c < 3; c += 1) {
      const base = below.data[i + c] + (grey - below.data[i + c]) * fade;
      below.data[i + c] = base * (1 - opacity) + table[heat[i]][c] * opacity;
    }
  }
}

// `map` is { rows, columns, values } or null for the bare picture; `patch` is { row, column } of that or another grid.
export function paint(canvas, picture, map, { width, strength = 1, patch = null, grid = map }) {
  canvas.width = width;
  canvas.height = Math.max(1, Math.round((width * picture.naturalHeight) / picture.naturalWidth));
  const image = pixels(picture, canvas.width, canvas.height);
  if (map) blend(image, enlarged(map.values, map.columns, map.rows, canvas.width, canvas.height), strength);
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
