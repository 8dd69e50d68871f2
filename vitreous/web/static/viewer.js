// The large picture: sharp, as the user has it, with a map over the part that the model sees, and its patches to point at.

import { $, greyUnder, make, makeBar, paint, paintOver, percent } from "./draw.js";

const MAP_WIDTH = 640; // pixels of the map over the picture; it is smooth, so that more would show nothing new
const STRIP_WIDTH = 56;
const PATCH_CLUSTERS = 6;
const WHOLE = [0, 0, 1, 1];

export class Viewer {
  // `page` knows the clusters, what is explained and which map is shown.
  constructor(page) {
    this.page = page;
    this.patch = null;
    const [viewer, original] = [$("viewer"), $("original")];
    $("sharp").addEventListener("load", () => this.fit());
    $("opacity").addEventListener("input", () => this.draw());
    viewer.addEventListener("pointermove", (event) => this.movePatch(event));
    viewer.addEventListener("pointerdown", (event) => this.movePatch(event));
    viewer.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.clearPatch());
    viewer.addEventListener("keydown", (event) => this.moveByKey(event));
    viewer.addEventListener("blur", () => this.clearPatch());
    viewer.addEventListener("click", (event) => this.page.pointAt(...this.shareOf(event)));
    const held = { pointerdown: true, pointerup: false, pointerleave: false, blur: false };
    for (const [name, on] of Object.entries(held)) original.addEventListener(name, () => this.showOriginal(on));
    original.addEventListener("keydown", (event) => [" ", "Enter"].includes(event.key) && this.showOriginal(true));
    document.addEventListener("keyup", () => this.showOriginal(false));
    new IntersectionObserver(([seen]) => { $("strip").hidden = seen.isIntersecting || !this.page.shown; }).observe($("answer"));
  }

  // The picture before anything is known about it.
  showAtOnce({ name, url }) {
    this.patch = null;
    $("file-name").textContent = name;
    $("file-name").title = name;
    $("caption").textContent = "";
    $("frame").classList.add("waiting");
    this.placeMap(WHOLE);
    this.arrived = this.load(url);
    paintOver($("viewer"), null, { width: 1, height: 1 });
  }

  // Whether the browser can show it; TIFF, for one, it cannot.
  async load(url) {
    this.isSharp = false;
    if (!url) return;
    const sharp = make("img", { src: url });
    try {
      await sharp.decode();
      $("sharp").src = url;
      this.isSharp = true;
    } catch {
      // The server's picture takes its place.
    }
  }

  // What the model sees of it is known: `window` in shares of the picture, or null where the sharp one does not show it.
  settle(image, window) {
    const sharp = window && this.isSharp;
    if (!sharp && $("sharp").src !== image.src) $("sharp").src = image.src;
    $("frame").classList.remove("waiting");
    this.placeMap(sharp ? window : WHOLE);
    $("cropped").hidden = !sharp || (window[2] - window[0]) * (window[3] - window[1]) > 0.99;
  }

  placeMap(window) {
    const [left, top, right, bottom] = window;
    for (const element of [$("viewer"), document.querySelector(".mark-sheet")]) {
      Object.assign(element.style, { left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%` });
    }
  }

  // The frame has the proportions of the picture, within a height that does not depend on it.
  fit() {
    const { naturalWidth, naturalHeight } = $("sharp");
    $("frame").style.setProperty("--ratio", naturalWidth / naturalHeight);
    this.draw();
  }

  showOriginal(on) {
    $("frame").classList.toggle("bare", on);
  }

  draw() {
    const { page } = this;
    if (!page.image || $("frame").classList.contains("waiting")) return;
    const shown = page.hoveredMap ?? page.pinnedMap;
    const strength = Number($("opacity").value) / 100;
    const grid = page.clusters.grid;
    const boxes = page.shown.classes.filter(({ box, number }) => box && number !== page.target).map(({ box }) => box);
    const height = Math.max(1, Math.round((MAP_WIDTH * page.image.naturalHeight) / page.image.naturalWidth));
    paintOver($("viewer"), shown?.map ?? null, { width: MAP_WIDTH, height, strength, patch: grid && this.patch, grid, boxes });
    $("sharp").style.filter = shown ? `grayscale(${greyUnder(strength)})` : "";
    paint($("strip-map"), page.image, shown?.map ?? null, { width: STRIP_WIDTH, strength });
    const caption = this.patch && grid ? this.patchText() : (shown?.caption() ?? "");
    if ($("caption").textContent !== caption) $("caption").textContent = caption;
    $("viewer").setAttribute("aria-label", `${page.shown.name}. ${shown?.caption() ?? "The picture without a map"}`);
  }

  // ---- patches

  shareOf(event) {
    const box = $("viewer").getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  movePatch(event) {
    const grid = this.page.clusters.grid;
    if (!grid) return;
    const [across, down] = this.shareOf(event);
    this.moveTo(Math.floor(down * grid.rows), Math.floor(across * grid.columns));
  }

  moveByKey(event) {
    const grid = this.page.clusters.grid;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") this.clearPatch();
    if (!grid || !step) return;
    event.preventDefault();
    const from = this.patch ?? { row: Math.floor(grid.rows / 2), column: Math.floor(grid.columns / 2) };
    this.moveTo(from.row + step[0], from.column + step[1]);
  }

  // To this place of the grid, or the nearest one that is in it.
  moveTo(down, across) {
    const { clusters } = this.page;
    const { rows, columns } = clusters.grid;
    const [row, column] = [[down, rows], [across, columns]].map(([place, count]) => Math.min(count - 1, Math.max(0, place)));
    if (this.patch && row === this.patch.row && column === this.patch.column) return;
    this.patch = { row, column };
    const read = clusters.attentionOf(this.patch).slice(0, PATCH_CLUSTERS);
    $("patch-help").hidden = true;
    $("patch-clusters").replaceChildren(...read.map(({ number, share }) => makeBar("li", `cluster ${number}`, share)));
    clusters.highlight(read.slice(0, 3).map(({ number }) => number));
    this.draw();
  }

  patchText() {
    const read = this.page.clusters.attentionOf(this.patch).slice(0, 3);
    const clusters = read.map(({ number, share }) => `cluster ${number} (${percent(share)})`).join(", ");
    return `Patch in row ${this.patch.row + 1}, column ${this.patch.column + 1} looks most at ${clusters}.`;
  }

  clearPatch() {
    if (!this.patch) return;
    this.patch = null;
    $("patch-help").hidden = false;
    $("patch-clusters").replaceChildren();
    this.page.clusters.highlight([]);
    this.draw();
  }
}

// The picture as the model sees it; of a finding, with it outlined.
export async function modelView(id, target, base = "api") {
  const image = make("img", { src: `${base}/images/${id}/picture.png${target === null ? "" : `?target=${target}`}` });
  await image.decode();
  return image;
}
