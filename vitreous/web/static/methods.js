// Maps by other methods: which one is shown, which are computed without being asked for, and what the others cost.

import { get, Latest } from "./api.js";
import { $, fixed, make, minus, paint, sentence, signed, spaced, unpack } from "./draw.js";

const CARD_WIDTH = 138; // pixels
const QUICK_PASSES = 20; // through the network; a method that takes more is computed in the background, or when it is chosen
const CHEAP_PASSES = 3; // computed for every picture, without being asked for

const passesText = ({ passes }) => `${passes} ${passes === 1 ? "pass" : "passes"}`;

export class Methods {
  // `page` knows what is explained, and shows maps and errors.
  constructor(page, model) {
    Object.assign(this, { page, model });
    this.method = ""; // whose map the large picture shows; "" is the chosen cluster
    this.taken = null; // what a person has chosen, for the address
    this.choice = 0; // how many times a map was chosen: an answer to an older choice is not shown
    this.refining = new Latest(); // maps that follow by themselves, until a person chooses one
    this.cheap = new Latest(); // maps that fill the list
    this.comparing = new Latest(); // how faithful they are
    this.heatMaps = new Map();
    this.build();
    $("show").addEventListener("change", () => this.take($("show").value));
    $("compute").addEventListener("click", () => this.computeQuick());
  }

  build() {
    const { methods, stages, inside } = this.model;
    $("show").replaceChildren(
      ...(stages.length ? [new Option("chosen cluster", "")] : []),
      ...methods.map((method) => new Option([spaced(method.name), ...method.labels].join(" · "), method.name)),
    );
    $("default-method").textContent = this.defaultText();
    $("inside").textContent = inside;
    $("inside").hidden = !inside;
    this.cards = new Map(methods.map((method) => [method.name, this.makeCard(method)]));
    $("method-list").replaceChildren(...this.cards.values());
  }

  makeCard(method) {
    const { name, labels, target } = method;
    const show = { onclick: () => this.take(name) };
    return make(
      "li",
      { "data-method": name },
      make("button", { type: "button", className: "map-button", "aria-pressed": "false", ...show }),
      make("div", { className: "facts" }, make("b", { className: "name", textContent: spaced(name) }), make("span", { className: "score" })),
      make("p", { className: "labels" }, ...labels.map((text) => this.label(method, text))),
      make("p", { className: "summary", textContent: sentence(method.summary) + (target ? "" : ` Does not know the ${this.page.targetNoun}.`) }),
    );
  }

  // For those who hear the page.
  nameButton({ name, labels }, price = "") {
    this.mapButton(name).setAttribute("aria-label", [price || `Show ${spaced(name)}`, ...(price ? [spaced(name)] : []), ...labels].join(", "));
  }

  label(method, text) {
    const best = method.name === this.model.chosen.method && text === method.labels[0];
    return make("span", { className: best ? "label" : "label doubt", textContent: text });
  }

  // The run's default, which comes first in the list, and why it is the default.
  defaultText() {
    const { methods, chosen } = this.model;
    if (chosen.method === null) return chosen.reason;
    if (this.model.refinement.length) return `${sentence(`${spaced(chosen.method)} is the default`)} ${chosen.reason}`;
    const { passes } = methods[0];
    const when = passes > QUICK_PASSES ? `takes ${passes} passes, so it is computed only when you choose it` : "is shown first";
    return `${sentence(`${spaced(chosen.method)} ${when}`)} ${chosen.reason}`;
  }

  // Passes, and seconds where one pass has been timed.
  price(method) {
    const seconds = method.passes * (this.page.shown?.pass_seconds ?? 0);
    if (!seconds) return passesText(method);
    return `${passesText(method)}, about ${seconds < 1 ? "a second" : seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`}`;
  }

  // Without clusters and without a measurement, the quick ones are compared on the picture.
  get comparesOnPicture() {
    return this.model.stages.length === 0 && this.model.chosen.method === null;
  }

  about(name) {
    return this.model.methods.find((method) => method.name === name);
  }

  mapButton(name) {
    return this.cards.get(name).querySelector(".map-button");
  }

  // ---- a picture or class

  // The map shown first: the default of the lowest budget, or of the run, unless it takes many passes; else clusters, if any.
  get first() {
    const { methods, stages, chosen, refinement } = this.model;
    const first = refinement[0] ?? chosen.method;
    if (first !== null && this.about(first).passes <= QUICK_PASSES) return first;
    return stages.length ? "" : methods.find((method) => method.passes <= QUICK_PASSES).name;
  }

  // Nothing of another picture or class stays, and nothing more is computed for it.
  stop() {
    this.stopRefining();
    for (const request of [this.cheap, this.comparing]) request.next();
    this.heatMaps.clear();
    this.taken = this.found = null;
  }

  // Tiles for what is computed by itself, a price for everything else.
  reset() {
    const most = this.comparesOnPicture ? QUICK_PASSES : CHEAP_PASSES;
    for (const method of this.model.methods) {
      const cheap = method.passes <= most;
      const price = cheap ? "" : `Compute: ${this.price(method)}`;
      this.mapButton(method.name).replaceChildren(make("span", { className: cheap ? "empty skeleton" : "price", textContent: price }));
      this.nameButton(method, price);
      this.cards.get(method.name).querySelector(".score").textContent = "";
      $(cheap ? "method-cards" : "method-list").append(this.cards.get(method.name));
    }
    this.showDear();
    $("default-method").textContent = this.defaultText();
  }

  showDear() {
    const left = this.model.methods.filter(({ name }) => this.cards.get(name).parentElement === $("method-list"));
    $("dear").hidden = left.length === 0;
    $("dear-count").textContent = left.length;
    $("compute").parentElement.hidden = !left.some(({ passes }) => passes <= QUICK_PASSES);
  }

  // Everything that comes by itself, `wanted` or the best that is quick first.
  async begin(wanted) {
    const { subject } = this.page;
    if (wanted !== undefined && (wanted === "" || this.about(wanted))) await this.take(wanted);
    else {
      const first = this.choose(this.first);
      this.refine(first); // nobody waits for it
      await first;
    }
    if (subject !== this.page.subject) return;
    if (this.comparesOnPicture) await this.best();
    else this.computeCheap();
  }

  // The only place that says whose map is shown; the list and the cards follow.
  setMethod(name) {
    this.method = name;
    this.choice += 1;
    $("show").value = name;
    for (const [other, card] of this.cards) card.querySelector(".map-button").setAttribute("aria-pressed", String(other === name));
  }

  // Methods with a stage to choose follow the clusters to theirs.
  stageOf(name) {
    return this.about(name).staged ? this.page.clusters.otherStage : null;
  }

  // With a signal the map is computed in the background, until it is aborted.
  async heat(name, signal = null) {
    const { page } = this;
    const { subject } = page;
    const stage = this.stageOf(name);
    const key = `${name} ${stage}`;
    const button = this.mapButton(name);
    if (!this.heatMaps.has(key)) {
      button.setAttribute("aria-busy", "true");
      if (!button.querySelector("canvas")) button.replaceChildren(make("span", { className: "empty skeleton" }));
      this.nameButton(this.about(name));
      if (this.cards.get(name).parentElement !== $("method-cards")) $("method-cards").append(this.cards.get(name));
      this.showDear();
      try {
        const values = { method: name, stage, target: subject.target, background: signal && true };
        const answer = await get(`images/${subject.id}/heat`, values, signal);
        if (subject !== page.subject) return null;
        const stack = unpack(answer.map);
        this.heatMaps.set(key, { ...answer, name, stage, map: { rows: stack.rows, columns: stack.columns, values: stack.data } });
      } finally {
        button.setAttribute("aria-busy", "false");
      }
    }
    if (stage !== this.stageOf(name)) return null; // the card is for the map of another stage now
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, page.image, this.heatMaps.get(key).map, { width: CARD_WIDTH });
    button.replaceChildren(canvas);
    return this.heatMaps.get(key);
  }

  // A person's choice, which stays.
  take(name) {
    this.stopRefining();
    this.page.clearError();
    this.taken = name;
    this.page.remember();
    return this.choose(name);
  }

  // The map before or after the one that is shown, among those that are there.
  step(by) {
    const names = ["", ...[...$("method-cards").children].map((card) => card.dataset.method)].filter((name) => name || this.model.stages.length);
    if (this.page.shown) this.take(names[(names.indexOf(this.method) + by + names.length) % names.length]);
  }

  async choose(name) {
    const { page } = this;
    this.setMethod(name);
    this.showStatus();
    if (!name) {
      if (page.clusters.pinned) page.clusters.pin(page.clusters.pinned);
      return;
    }
    const { choice } = this;
    try {
      const found = await this.heat(name);
      if (!found || choice !== this.choice) return;
      const unlike = this.model.chosen.method === null ? "" : " (its faithfulness was measured at another)";
      const where = found.stage === null ? "" : `, stage ${found.stage}${unlike}`;
      const against = found.low < 0 ? `; what speaks against the ${page.targetNoun} is dark` : "";
      const range = `Values from ${minus(found.low.toPrecision(2))} to ${minus(found.high.toPrecision(2))}${against}.`;
      const caption = `${sentence(`${spaced(name)}${where}: ${found.summary}`)} ${range}`;
      page.pinnedMap = { map: found.map, caption: () => caption };
      page.viewer.draw();
    } catch (error) {
      page.showError(error);
    }
  }

  // The clusters are of another stage now, and so is the map if its method has a stage to choose.
  stageChanged() {
    if (this.method && this.about(this.method).staged) this.choose(this.method);
  }

  // ---- better maps that follow by themselves

  // The defaults of growing budgets: those of few passes are asked for at once, the others one by one in the background.
  async refine(first) {
    const signal = this.refining.next();
    const left = this.model.refinement.filter((name) => name !== this.method);
    const cheap = new Map(left.filter((name) => this.about(name).passes <= CHEAP_PASSES).map((name) => [name, this.heat(name)]));
    for (const asked of cheap.values()) asked.catch(() => {}); // told when its turn comes
    this.coming = left;
    try {
      this.showStatus();
      await first;
      for (const name of left) {
        let found = await cheap.get(name);
        while (!found && !signal.aborted) found = await this.heat(name, signal); // again, if the stage changed meanwhile
        if (signal.aborted) return;
        this.coming = this.coming.slice(1);
        await this.choose(name);
      }
    } catch (error) {
      this.page.showError(error);
    }
  }

  stopRefining() {
    this.refining.next();
    this.coming = null;
  }

  // Those of few passes, when nothing else is to be done.
  async computeCheap() {
    const signal = this.cheap.next();
    try {
      for (const { name, passes } of this.model.methods) {
        if (passes <= CHEAP_PASSES) await this.heat(name, signal);
        if (signal.aborted) return;
      }
    } catch (error) {
      this.page.showError(error);
    }
  }

  // Which map is shown, what the data have shown about it, and what is still to come.
  showStatus() {
    const { refinement, chosen } = this.model;
    if (!refinement.length) return;
    const shown = this.method ? this.methodText(this.method) : "a cluster";
    const better = this.coming?.[0];
    const best = this.briefText(chosen.method);
    let text = `Shown: ${shown}. `;
    if (better) text += `${refinement.includes(this.method) ? "A more faithful map" : "A map"} is being computed: ${this.briefText(better)}\u00a0…`;
    else if (this.coming === null) text = `Your choice: ${shown}. ${this.method === chosen.method ? chosen.reason : `The most faithful map was ${best}.`}`;
    else if (this.method === chosen.method) text += chosen.reason;
    else text += `More faithful, and computed when you choose it: ${best}.`;
    $("default-method").textContent = text;
  }

  methodText(name) {
    const { measured, labels } = this.about(name);
    const { chosen } = this.model;
    const doubts = labels.slice(name === chosen.method ? 1 : 0).map((text) => `, ${text}`).join("");
    if (!measured || name === chosen.method || this.stageOf(name) !== null) return `${this.nameText(name)}${doubts}`;
    const [mean, low, high] = [measured.mean, measured.low, measured.high].map(fixed);
    return `${this.nameText(name)}, insertion − deletion ${mean} (${low} to ${high}) on ${chosen.measured_on}${doubts}`;
  }

  briefText(name) {
    const { measured } = this.about(name);
    return `${this.nameText(name)}${measured ? ` (${fixed(measured.mean)})` : ""}`;
  }

  nameText(name) {
    return `${spaced(name)}, ${passesText(this.about(name))}`;
  }

  async computeQuick() {
    const { subject } = this.page;
    $("compute").disabled = true;
    try {
      for (const { name, passes } of this.model.methods) {
        if (subject !== this.page.subject) break;
        if (passes <= QUICK_PASSES) await this.heat(name);
      }
    } catch (error) {
      this.page.showError(error);
    }
    $("compute").disabled = false;
  }

  // ---- the best map where clusters tell nothing

  // The map of the most faithful method that is quick: on the data, or else on this picture. It is shown unless one was chosen.
  // `early` is given another one while they are compared.
  best(early = () => {}) {
    this.found ??= this.findBest(early);
    return this.found;
  }

  async findBest(early) {
    const { subject } = this.page;
    const { method } = this;
    const { chosen, refinement } = this.model;
    try {
      const known = [chosen.method, ...refinement.toReversed()].find((name) => name && this.about(name).passes <= QUICK_PASSES);
      if (known) {
        if (!method) await this.choose(known);
        return await this.heat(known);
      }
      const first = this.model.methods.find(({ passes, target }) => passes <= CHEAP_PASSES && target);
      if (first && !method && this.taken === null) await this.choose(first.name);
      const { choice } = this;
      if (first) early(await this.heat(first.name));
      if (this.comparesOnPicture) await this.computeQuick();
      const name = await this.mostFaithful(subject);
      if (!name) return null;
      if (choice === this.choice && this.taken === null) await this.choose(name); // unless something else was chosen
      return await this.heat(name);
    } catch (error) {
      this.page.showError(error);
      return null;
    }
  }

  // With no measurement for the model: those that are computed by themselves, measured on this picture, the best one first.
  async mostFaithful(subject) {
    const most = this.comparesOnPicture ? QUICK_PASSES : CHEAP_PASSES;
    const signal = this.comparing.next();
    const measured = [];
    for (const { name, passes, target } of this.model.methods) {
      if (passes > most || (!target && !this.comparesOnPicture)) continue;
      const values = { method: name, target: subject.target, background: true };
      const { difference } = await get(`images/${subject.id}/faithfulness`, values, signal);
      if (subject !== this.page.subject) return null;
      this.cards.get(name).querySelector(".score").textContent = signed(difference);
      measured.push({ name, difference });
    }
    measured.sort((a, b) => b.difference - a.difference);
    $("method-cards").prepend(...measured.map(({ name }) => this.cards.get(name)));
    const best = measured[0];
    $("default-method").textContent = `${sentence(`${spaced(best.name)} is the most faithful of the quick ones on this picture: insertion − deletion ${signed(best.difference)}`)} ${this.model.chosen.reason}`;
    return best.name;
  }
}
