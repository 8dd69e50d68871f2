// The page: one picture, what the model says about it, and how that changes. Its parts have files of their own.

import { onOtherView, readView, writeView } from "./address.js";
import { file, get, Latest } from "./api.js";
import { Beside } from "./beside.js";
import { Clusters } from "./clusters.js";
import { $, length, make, makeBar, percent, setColours, signed, skeletons } from "./draw.js";
import { Heads } from "./heads.js";
import { Methods } from "./methods.js";
import { Pictures } from "./pictures.js";
import { Places } from "./places.js";
import { explainTerm, offerKeys, offerTerms } from "./terms.js";
import { modelView, Viewer } from "./viewer.js";

const LISTED = 5; // classes

class Page {
  constructor(model) {
    this.model = model;
    this.request = new Latest(); // for a picture or a class
    this.pinnedMap = null;
    this.hoveredMap = null;
    this.explainsFindings = model.has_findings; // what is explained is a finding, not a class
    this.viewer = new Viewer(this);
    this.clusters = new Clusters(this, model);
    this.methods = new Methods(this, model);
    this.places = new Places(this);
    this.heads = new Heads(this, model);
    this.pictures = new Pictures(this, model);
    this.beside = model.beside ? new Beside(this, `${model.beside.slice(1)}/api`) : null;
    if (this.explainsFindings) this.labelFindings();
    $("report").addEventListener("click", () => this.download());
    $("undo").addEventListener("click", () => this.undo());
    offerKeys({
      o: () => this.viewer.showOriginal(true),
      h: () => this.shown && this.places.switchMarking(true),
      u: () => this.undo(),
      s: () => this.clusters.nextStage(),
      "[": () => this.methods.step(-1),
      "]": () => this.methods.step(1),
      answer: (place) => document.querySelector(`#classes li:nth-child(${place}) button`)?.click(),
    });
    onOtherView((view) => this.open(view));
  }

  // ---- the picture and its classes

  // A view that an address describes.
  open(view) {
    if (!view.picture) return;
    const wanted = view.class ?? String(this.shown?.classes[0]?.number);
    if (view.picture !== this.shown?.id || wanted !== String(this.target)) this.show(this.pictures.find(view.picture), view);
    else this.takeUp(view);
  }

  // A picture: as it is at once, and then what the model says about it.
  show(source, view = {}) {
    this.begin(source);
    this.beside?.show(source, view.beside);
    return this.turnTo(async (signal) => {
      const id = await source.id();
      if (signal.aborted) return null;
      const plain = this.explainsFindings ? null : modelView(id, null);
      const shown = await get(`images/${id}`, {}, signal);
      await this.viewer.arrived;
      const target = shown.classes.some(({ number }) => String(number) === view.class) ? Number(view.class) : (shown.classes[0]?.number ?? null);
      return { source, shown, target, image: await (plain ?? modelView(id, target)) };
    }, view);
  }

  async choose(number) {
    if (number === this.target) return;
    await this.turnTo(async () => ({ target: number, image: this.explainsFindings ? await modelView(this.shown.id, number) : this.image }));
    if (number === this.target) document.querySelector("#classes [aria-pressed=true]")?.focus({ preventScroll: true });
  }

  // Of a detector, a segmenter or a keypoint model: what lies there is explained. Of others, heads are read from there.
  async pointAt(across, down) {
    if (!this.explainsFindings) return void this.heads.readFrom(across, down);
    if (this.target === null) return;
    const { id } = this.shown;
    try {
      const { number } = await get(`images/${id}/pointed`, { x: across.toFixed(4), y: down.toFixed(4) });
      if (number !== null && id === this.shown.id) await this.choose(number);
    } catch (error) {
      this.showError(error);
    }
  }

  // Grey bars and tiles stand where the answers will.
  begin(source) {
    this.clear();
    this.clusters.begin();
    this.methods.reset();
    this.places.turnTo(null);
    $("welcome").hidden = true;
    $("explore").hidden = false;
    $("sentence").replaceChildren(...skeletons("span", 1, "line"));
    $("classes").replaceChildren(...skeletons("li", Math.min(LISTED, this.explainsFindings ? LISTED : this.model.classes), "row"));
    $("explained").textContent = "…";
    $("strip-text").textContent = "…";
    this.viewer.showAtOnce(source);
  }

  // Another picture or class. Only the one that was chosen last is shown, whichever is found first.
  async turnTo(find, view = {}) {
    const signal = this.request.next();
    this.clearError();
    $("answer").setAttribute("aria-busy", "true");
    try {
      const found = await find(signal);
      if (signal.aborted) return;
      Object.assign(this, found);
      this.subject = { id: this.shown.id, target: this.target }; // a new object for every explanation
      this.showPicture();
      if (this.target === null) this.showNothingFound();
      else await this.explain(view);
    } catch (error) {
      if (!signal.aborted) {
        this.showError(error);
        if (error.name !== "AbortError") this.comeBack();
      }
    }
    if (!signal.aborted) $("answer").setAttribute("aria-busy", "false");
  }

  // What was shown before, after something that could not be; its message stays.
  comeBack() {
    const { textContent, hidden } = $("message");
    $("explore").hidden = !this.shown;
    $("welcome").hidden = Boolean(this.shown);
    if (this.shown && $("classes").querySelector(".skeleton")) this.show(this.source);
    Object.assign($("message"), { textContent, hidden });
  }

  showPicture() {
    const { id, name, window } = this.shown;
    if (this.explainsFindings) $("drawing").src = `api/images/${id}/drawing.png`;
    $("file-name").textContent = name;
    this.viewer.settle(this.image, this.explainsFindings ? null : window);
    this.pictures.remember(this.source);
    this.places.turnTo(id);
    this.heads.turnTo(id);
  }

  labelFindings() {
    $("answer-title").textContent = "Found";
    const regions = this.model.task === "segment";
    const numbers = regions ? "the share of the picture that each class covers" : "their scores";
    $("classes").setAttribute("aria-label", `Findings and ${numbers}; choose one to have it explained`);
    $("choose-another").textContent = `Choose another, or click it in the picture.${regions ? " Numbers are shares of the picture." : ""}`;
    $("found").prepend(make("img", { id: "drawing", alt: "Everything that was found, drawn on the picture" }));
    $("found").hidden = false;
  }

  // Nothing of another picture or class stays.
  clear() {
    this.methods.stop();
    Object.assign(this, { pinnedMap: null, hoveredMap: null });
    this.viewer.clearPatch();
  }

  showNothingFound() {
    this.clear();
    this.clusters.empty();
    this.viewer.draw();
    $("sentence").textContent = `Nothing to explain: ${this.shown.nothing}.`;
    $("strip-text").textContent = "Nothing found";
    $("classes").replaceChildren();
    $("explained").textContent = "nothing";
    for (const part of ["clusters", "methods", "places"]) $(part).hidden = true;
    $("report").disabled = true;
    this.remember();
  }

  // The picture and the class are known: show everything about them.
  async explain(view) {
    this.clear();
    this.places.clear();
    $("clusters").hidden = this.model.stages.length === 0;
    for (const part of ["methods", "places"]) $(part).hidden = false;
    $("report").disabled = false;
    this.showPrediction(null);
    this.methods.reset();
    this.viewer.draw();
    const clusters = this.clusters.refresh(view); // requested first, as its answer comes at once
    const maps = this.methods.begin(view.map);
    this.remember();
    if (view.hide) this.places.hide(view.hide.split(",").map(Number));
    await clusters;
    await maps;
  }

  // The same picture and class, seen in another way.
  takeUp(view) {
    if (view.map !== undefined && view.map !== this.methods.method) this.methods.take(view.map);
    this.clusters.takeUp(view);
    if (view.hide) this.places.hide(view.hide.split(",").map(Number));
  }

  // Probabilities, with something changed (some clusters off, a part hidden) or as they are.
  showPrediction(changed, how = "") {
    const rows = changed ? changed.classes : this.shown.classes;
    const own = rows.find((row) => row.number === this.target);
    const best = this.explainsFindings ? own : rows.reduce((a, b) => (b.probability > a.probability ? b : a));
    const text = $("sentence");
    text.replaceChildren(make("b", { textContent: `${best.name} ${percent(best.probability)}` }));
    if (changed) {
      const before = this.shown.classes[0];
      const lost = signed(changed.log_odds - changed.log_odds_before);
      text.append(` ${how}. ${this.changeText(changed.changed, before.name)}; `, explainTerm(make("span", { textContent: "log-odds" }), "log-odds"), ` of the explained ${this.targetNoun} ${lost}.`);
    } else if (this.explainsFindings && this.shown.nothing) {
      text.append(` is not sure: ${this.shown.nothing}.`);
    } else if (this.shown.true !== null) {
      const right = this.shown.true === best.name;
      text.append(", ", make("span", { className: right ? "right" : "wrong", textContent: right ? "right" : `wrong, it is ${this.shown.true}` }));
    }
    $("classes").replaceChildren(...rows.map((row) => this.classRow(row)));
    $("explained").textContent = own?.name ?? "";
    $("strip-text").textContent = `${best.name} ${percent(best.probability)}${changed ? ` ${how}` : ""}`;
    $("undo").disabled = !changed;
  }

  get targetNoun() {
    return this.explainsFindings ? "finding" : "class";
  }

  changeText(changed, before) {
    if (this.explainsFindings) return changed ? "It is lost" : "It is still found, or was not sure before";
    return changed ? `It was ${before}` : "The answer stays";
  }

  classRow(row) {
    const chosen = { type: "button", "aria-pressed": row.number === this.target, onclick: () => this.choose(row.number) };
    const button = makeBar("button", row.name, row.probability, chosen);
    if (row.before !== undefined && percent(row.before) !== percent(row.probability)) {
      const before = percent(row.before);
      button.querySelector(".value").prepend(make("s", { textContent: before, "aria-label": `was ${before}, now` }));
      const mark = make("u");
      mark.style.left = length(row.before);
      button.querySelector(".track").append(mark);
    }
    return make("li", {}, button);
  }

  // Clusters are on again and nothing is hidden.
  undo() {
    if (!this.shown || $("undo").disabled) return;
    this.places.clear();
    this.clusters.switchTo(new Set());
  }

  // ---- the map over the picture

  // A cluster's map. It does not push away the map of a method.
  pin(map, caption) {
    if (this.methods.method) return;
    this.pinnedMap = { map, caption };
    this.viewer.draw();
  }

  preview(map, caption) {
    this.hoveredMap = map && { map, caption: () => caption };
    this.viewer.draw();
  }

  // ---- the address, the report, errors

  remember() {
    if (!this.shown) return;
    const first = this.shown.classes[0]?.number;
    const picture = this.shown.id;
    const beside = this.beside?.source === this.source ? this.beside?.sent : null; // the id it has there
    writeView({ picture, class: this.target === first ? null : this.target, ...this.clusters.view, map: this.methods.taken || null, hide: this.places.box?.join(","), beside });
  }

  async download() {
    $("report").disabled = true;
    try {
      const values = { stage: this.clusters.stage, target: this.target, top_k: Math.min(12, Number($("top").value)) };
      const href = URL.createObjectURL(await file(`images/${this.shown.id}/report.html`, values));
      make("a", { href, download: "report.html" }).click();
      setTimeout(() => URL.revokeObjectURL(href), 60_000);
    } catch (error) {
      this.showError(error);
    }
    $("report").disabled = false;
  }

  showError(error) {
    if (error.name !== "AbortError") showMessage(error.message);
  }

  clearError() {
    $("message").hidden = true;
  }
}

function showMessage(text) {
  $("message").textContent = text;
  $("message").hidden = false;
}

async function start() {
  try {
    const model = await get("model");
    setColours(model.colours);
    document.title = `${model.name} · vitreous serve`;
    $("model").textContent = model.name;
    const size = model.has_findings ? `task ${model.task}` : `pictures of ${model.width} × ${model.height} pixels`;
    $("facts").textContent = `${model.source ? `${model.source}: ` : ""}${model.classes} ${model.classes === 1 ? "class" : "classes"}, ${size}, ${model.methods.length} ways to see what mattered`;
    $("limit").textContent = `or drop or paste one: JPEG, PNG, WebP, BMP or TIFF, up to ${model.upload_bytes / 1e6} MB`;
    document.documentElement.style.setProperty("--view-ratio", model.width / model.height);
    offerTerms();
    new Page(model).open(readView());
  } catch (error) {
    showMessage(error.message);
  }
  document.documentElement.dataset.ready = "yes";
}

start();
