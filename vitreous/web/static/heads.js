// What the heads of an attention layer read: of the whole picture, or from the place that was clicked.

import { get, Latest } from "./api.js";
import { $, make, mapOf, paint, skeletons, unpack } from "./draw.js";

const TILE_WIDTH = 138; // pixels

export class Heads {
  // `page` knows the picture, and shows maps and errors.
  constructor(page, model) {
    Object.assign(this, { page, layers: model.attention, point: null });
    this.request = new Latest();
    $("heads").hidden = this.layers.length === 0;
    $("layer").replaceChildren(...this.layers.map(({ name }, number) => new Option(name, number)));
    $("layer").value = this.layers.length - 1; // the last says most about the answer
    $("layer").addEventListener("change", () => this.show());
    $("heads").addEventListener("toggle", () => this.show());
    $("head-tiles").addEventListener("mouseleave", () => this.page.preview(null));
  }

  turnTo(id) {
    if (id === this.id) return;
    this.id = id;
    this.request.next();
    this.point = null;
    $("head-tiles").replaceChildren();
    this.show();
  }

  readFrom(across, down) {
    if (!$("heads").open) return;
    this.point = [across, down];
    this.show();
  }

  get layer() {
    return this.layers[$("layer").value];
  }

  // Nothing is computed while the section is closed.
  async show() {
    if (!this.layers.length || !$("heads").open || !this.id) return;
    const signal = this.request.next();
    const point = this.layer.places ? this.point : null;
    $("head-text").textContent = this.text(point);
    if (!$("head-tiles").children.length) $("head-tiles").replaceChildren(...skeletons("li", 4, "tile"));
    try {
      const [x, y] = point?.map((share) => share.toFixed(3)) ?? [];
      const answer = await get(`images/${this.id}/heads`, { view: $("layer").value, x, y }, signal);
      const stack = unpack(answer.map);
      $("head-tiles").replaceChildren(...Array.from({ length: answer.heads }, (_, head) => this.tile(stack, head)));
    } catch (error) {
      this.page.showError(error);
    }
  }

  text(point) {
    if (!this.layer.places) return "What the class token, or its like, reads, head by head.";
    return point
      ? `What each head reads for the place ${Math.round(100 * point[0])} % across and ${Math.round(100 * point[1])} % down. Click another.`
      : "How much every place is read, head by head. Click a place in the picture to see what is read from there.";
  }

  tile(stack, head) {
    const map = { rows: stack.rows, columns: stack.columns, values: mapOf(stack, head) };
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, this.page.image, map, { width: TILE_WIDTH });
    const show = () => this.page.preview(map, `Head ${head + 1} of ${this.layer.name}. It says where was looked, not what decided.`);
    const shows = { onmouseenter: show, onfocus: show, onblur: () => this.page.preview(null) };
    const button = make("button", { type: "button", className: "map-button", "aria-label": `Show head ${head + 1}`, ...shows }, canvas);
    return make("li", {}, button, make("div", { className: "facts" }, make("b", { className: "name", textContent: `head ${head + 1}` })));
  }
}
