// Heat maps over pictures, for reports and for the explorer: the colours, and how a picture and its heat are mixed.

// 256 colours between the stops, which are written as "#rrggbb".
export function colourTable(stops) {
  const rgb = stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, value) => {
    const position = (value / 255) * (rgb.length - 1);
    const below = Math.min(Math.floor(position), rgb.length - 2);
    return rgb[below].map((channel, i) => channel + (rgb[below + 1][i] - channel) * (position - below));
  });
}

// The pixels of an image or canvas, scaled to a size.
export function pixels(image, width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

// The same mixture as `overlay` in Python: mostly grey below, so that a red object is not mistaken for heat.
// `heat` holds the bytes of RGBA pixels, of which red is read.
export function blend(picture, heat, strength, table) {
  const mixed = new ImageData(picture.width, picture.height);
  const fade = 0.7 * Math.min(1, strength);
  for (let i = 0; i < mixed.data.length; i += 4) {
    const grey = 0.299 * picture.data[i] + 0.587 * picture.data[i + 1] + 0.114 * picture.data[i + 2];
    const opacity = Math.min(1, strength * (0.45 + (0.25 * heat[i]) / 255));
    for (let c = 0; c < 3; c += 1) {
      const below = picture.data[i + c] + (grey - picture.data[i + c]) * fade;
      mixed.data[i + c] = below * (1 - opacity) + table[heat[i]][c] * opacity;
    }
    mixed.data[i + 3] = 255;
  }
  return mixed;
}
