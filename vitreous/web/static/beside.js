// Another model, asked about the same picture, and about it with the same part hidden.

import { Latest, modelAt } from "./api.js";
import { $, makeBar, paint, percent, skeletons, spaced, unpack } from "./draw.js";
import { modelView } from "./viewer.js";

const MAP_WIDTH = 200; // pixels
const QUICK_PASSES = 20;
const LISTED = 5; // classes

export class Beside {
  // `page` knows the picture and its own model; `base` is where the other one answers.
  constructor(page, base) {
    Object.assign(this, { page, base, server: modelAt(base) });
    this.request = new Latest(); // for a picture
    this.changing = new Latest(); // for what is hidden
    $("beside").hidden = false;
  }

  // The same picture for it; examples have the same place in both lists, and a link says under which id it has another.
  async show(source, linked) {
    const signal = this.request.next();
    this.changing.next();
    Object.assign(this, { source, sent: null, shown: null });
    $("beside-classes").replaceChildren(...skeletons("li", LISTED, "row"));
    $("beside-sentence").textContent = "…";
    try {
      this.model ??= await this.server.get("model");
      $("beside-title").textContent = `Beside: ${this.model.name}${this.model.source ? ` (${this.model.source})` : ""}`;
      const place = this.page.pictures.examples.indexOf(source);
      const example = this.model.examples[place]?.id;
      if (!example && !source.file && !linked) return this.say("This link does not say which picture the other model was shown; choose it again.");
      const id = example ?? (source.file ? (await this.server.upload(source.file, source.name)).id : linked);
      const shown = await this.server.get(`images/${id}`, {}, signal);
      const image = await modelView(id, null, this.base);
      if (signal.aborted) return null;
      Object.assign(this, { shown, image, sent: example ? null : id });
      if (this.page.source === source) this.page.remember();
      this.showAnswer(shown.classes, "");
      return await this.showMap(signal);
    } catch (error) {
      return signal.aborted ? null : this.say(error.message);
    }
  }

  say(text) {
    $("beside-classes").replaceChildren();
    $("beside-sentence").textContent = text;
  }

  showAnswer(rows, how) {
    const best = rows.length ? rows.reduce((a, b) => (b.probability > a.probability ? b : a)) : null;
    $("beside-sentence").textContent = best ? `${best.name} ${percent(best.probability)}${how}` : "Nothing found";
    $("beside-classes").replaceChildren(...rows.map(({ name, probability }) => makeBar("li", name, probability)));
  }

  // The map of the method that is shown for the first model, if both have it and it is quick; else the best quick one.
  get method() {
    const { methods, chosen, refinement } = this.model;
    const wanted = [this.page.methods.method, chosen.method, ...refinement.toReversed(), "grad_cam"];
    const quick = methods.filter(({ passes, target }) => passes <= QUICK_PASSES && target);
    return wanted.map((name) => quick.find((method) => method.name === name)).find(Boolean) ?? quick[0];
  }

  async showMap(signal) {
    const { method } = this;
    paint($("beside-map"), this.image, null, { width: MAP_WIDTH });
    if (!method || !this.shown.classes.length) return;
    const { map } = await this.server.get(`images/${this.shown.id}/heat`, { method: method.name }, signal);
    const { rows, columns, data } = unpack(map);
    paint($("beside-map"), this.image, { rows, columns, values: data }, { width: MAP_WIDTH });
    $("beside-map").title = spaced(method.name);
  }

  // `box` lies in what the first model sees; null shows everything again.
  async hide(box) {
    if (!this.shown) return;
    const signal = this.changing.next();
    if (!box) return void this.showAnswer(this.shown.classes, "");
    const own = moved(box, this.page.shown.window, this.shown.window);
    try {
      const { classes, name } = await this.server.get(`images/${this.shown.id}/hidden`, { box: own.join(",") }, signal);
      this.showAnswer(classes, ` with the ${name} hidden`);
    } catch (error) {
      if (!signal.aborted) $("beside-sentence").textContent = error.message;
    }
  }
}

// A box in shares of one part of the picture, as shares of another.
function moved([left, top, right, bottom], from, to) {
  if (!from || !to) return [left, top, right, bottom];
  const along = (share, i) => (from[i] + share * (from[i + 2] - from[i]) - to[i]) / (to[i + 2] - to[i]);
  return [along(left, 0), along(top, 1), along(right, 0), along(bottom, 1)].map((share) => Math.min(1, Math.max(0, share)).toFixed(3));
}
