// The page: choose a picture, see the prediction and the maps. Clusters have a file of their own.

import { file, get, Latest, upload } from "./api.js";
import { Clusters } from "./clusters.js";
import { $, fixed, length, make, makeBar, minus, paint, percent, sentence, setColours, signed, spaced, unpack } from "./draw.js";

const VIEWER_WIDTH = 460; // pixels
const CARD_WIDTH = 138;
const PATCH_CLUSTERS = 6;
const QUICK_PASSES = 20; // through the network; a method that takes more is computed in the background, or when it is chosen
const AT_ONCE_PASSES = 3; // maps that are asked for together when a picture arrives

const passesText = ({ passes }) => `${passes} ${passes === 1 ? "pass" : "passes"}`;

class Page {
  constructor(model) {
    this.model = model;
    this.request = new Latest(); // for a picture or a class
    this.patch = null;
    this.method = ""; // whose map the large picture shows; "" is the chosen cluster
    this.choice = 0; // how many times a map was chosen: an answer to an older choice is not shown
    this.refining = new Latest(); // maps that follow by themselves, until a person chooses one
    this.pinnedMap = null;
    this.hoveredMap = null;
    this.heatMaps = new Map();
    this.explainsFindings = model.has_findings; // what is explained is a finding, not a class
    this.clusters = new Clusters(this, model);
    if (this.explainsFindings) this.labelFindings();
    this.buildMethods();
    $("opacity").addEventListener("input", () => this.draw());
    $("show").addEventListener("change", () => this.takeMap($("show").value));
    $("compute").addEventListener("click", () => this.computeQuick());
    $("report").addEventListener("click", () => this.download());
    $("viewer-help").hidden = model.stages.length === 0;
    const viewer = $("viewer");
    viewer.addEventListener("pointermove", (event) => this.movePatch(event));
    viewer.addEventListener("pointerdown", (event) => this.movePatch(event));
    viewer.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.clearPatch());
    viewer.addEventListener("keydown", (event) => this.moveByKey(event));
    viewer.addEventListener("blur", () => this.clearPatch());
  }

  // ---- the picture and its classes

  open(id) {
    return this.turnTo(async (signal) => {
      const plain = this.explainsFindings ? null : this.load(id, null);
      const shown = await get(`images/${id}`, {}, signal);
      const target = shown.classes[0]?.number ?? null;
      return { shown, target, image: await (plain ?? this.load(id, target)) };
    });
  }

  async choose(number) {
    if (number === this.target) return;
    await this.turnTo(async () => ({ target: number, image: this.explainsFindings ? await this.load(this.shown.id, number) : this.image }));
    if (number === this.target) document.querySelector("#classes [aria-pressed=true]")?.focus();
  }

  // Another picture or class. Only the one that was chosen last is shown, whichever is found first.
  async turnTo(find) {
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
      else await this.explain();
    } catch (error) {
      if (!signal.aborted) this.showError(error);
    }
    if (!signal.aborted) $("answer").setAttribute("aria-busy", "false");
  }

  showPicture() {
    const { id } = this.shown;
    if (this.explainsFindings) $("drawing").src = `api/images/${id}/drawing.png`;
    for (const button of document.querySelectorAll("#examples button")) {
      button.setAttribute("aria-pressed", String(button.dataset.id === id));
    }
    $("explore").hidden = false;
    document.dispatchEvent(new CustomEvent("picture-shown", { detail: { id, findings: this.explainsFindings } }));
  }

  // The picture, with the finding that is explained outlined.
  async load(id, target) {
    const image = make("img", { src: `api/images/${id}/picture.png${this.explainsFindings && target !== null ? `?target=${target}` : ""}` });
    await image.decode();
    return image;
  }

  labelFindings() {
    $("answer-title").textContent = "Found";
    const regions = this.model.task === "segment";
    const numbers = regions ? "the share of the picture that each class covers" : "their scores";
    $("classes").setAttribute("aria-label", `Findings and ${numbers}; choose one to have it explained`);
    $("choose-another").textContent = `Choose another finding to explain that one.${regions ? " Numbers are shares of the picture." : ""}`;
    $("found").prepend(make("img", { id: "drawing", alt: "Everything that was found, drawn on the picture" }));
    $("found").hidden = false;
  }

  // Nothing of another picture or class stays.
  clear() {
    this.stopRefining();
    Object.assign(this, { patch: null, pinnedMap: null, hoveredMap: null });
    this.heatMaps.clear();
    $("patch").hidden = true;
  }

  showNothingFound() {
    this.clear();
    this.clusters.empty();
    this.draw();
    $("sentence").textContent = `Nothing to explain: ${this.shown.nothing}.`;
    $("classes").replaceChildren();
    $("explained").textContent = "nothing";
    for (const part of ["clusters", "methods"]) $(part).hidden = true;
    $("report").disabled = true;
  }

  // The picture and the class are known: show everything about them.
  async explain() {
    const { subject } = this;
    this.clear();
    $("clusters").hidden = this.model.stages.length === 0;
    $("methods").hidden = false;
    $("report").disabled = false;
    this.showPrediction(null);
    this.resetMethods();
    this.draw();
    const clusters = this.clusters.refresh(); // requested first, as its answer comes at once
    const first = this.chooseMap(this.firstMap);
    const { choice } = this;
    this.refine(first); // nobody waits for it
    await first;
    await clusters;
    if (this.model.stages.length === 0 && subject === this.subject) await this.computeQuick(choice);
  }

  // Probabilities, after some clusters were switched off (`ablated`) or as they are.
  showPrediction(ablated, where) {
    const rows = ablated ? ablated.classes : this.shown.classes;
    const own = rows.find((row) => row.number === this.target);
    const best = this.explainsFindings ? own : rows.reduce((a, b) => (b.probability > a.probability ? b : a));
    const text = $("sentence");
    text.replaceChildren(make("b", { textContent: `${best.name} ${percent(best.probability)}` }));
    if (ablated) {
      const before = this.shown.classes[0];
      const lost = ablated.log_odds - ablated.log_odds_before;
      text.append(
        ` without ${ablated.off.length} of ${this.clusters.data.groups.length} clusters of ${where}. `,
        `${this.changeText(ablated.changed, before.name)}; log-odds of the explained ${this.targetNoun} ${signed(lost)}.`,
      );
    } else if (this.explainsFindings && this.shown.nothing) {
      text.append(` is not sure: ${this.shown.nothing}.`);
    } else if (this.shown.true !== null) {
      const right = this.shown.true === best.name;
      text.append(", ", make("span", { className: right ? "right" : "wrong", textContent: right ? "right" : `wrong, it is ${this.shown.true}` }));
    }
    $("classes").replaceChildren(...rows.map((row) => this.classRow(row)));
    $("explained").textContent = own?.name ?? "";
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

  // ---- the large picture

  // A cluster's map. It does not push away the map of a method.
  pin(map, caption) {
    if (this.method) return;
    this.pinnedMap = { map, caption };
    this.draw();
  }

  show(map, caption) {
    this.hoveredMap = map && { map, caption: () => caption };
    this.draw();
  }

  draw() {
    if (!this.image) return;
    const shown = this.hoveredMap ?? this.pinnedMap;
    const strength = Number($("opacity").value) / 100;
    const grid = this.clusters.grid;
    paint($("viewer"), this.image, shown?.map ?? null, { width: VIEWER_WIDTH, strength, patch: grid && this.patch, grid });
    const caption = this.patch && grid ? this.patchText() : (shown?.caption() ?? "");
    if ($("caption").textContent !== caption) $("caption").textContent = caption;
    $("viewer").setAttribute("aria-label", `${this.shown.name}. ${shown?.caption() ?? "The picture without a map"}`);
  }

  movePatch(event) {
    const grid = this.clusters.grid;
    if (!grid) return;
    const box = $("viewer").getBoundingClientRect();
    this.moveTo(
      Math.floor(((event.clientY - box.top) / box.height) * grid.rows),
      Math.floor(((event.clientX - box.left) / box.width) * grid.columns),
    );
  }

  moveByKey(event) {
    const grid = this.clusters.grid;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") this.clearPatch();
    if (!grid || !step) return;
    event.preventDefault();
    const from = this.patch ?? { row: Math.floor(grid.rows / 2), column: Math.floor(grid.columns / 2) };
    this.moveTo(from.row + step[0], from.column + step[1]);
  }

  // To this place of the grid, or the nearest one that is in it.
  moveTo(down, across) {
    const { rows, columns } = this.clusters.grid;
    const [row, column] = [[down, rows], [across, columns]].map(([place, count]) => Math.min(count - 1, Math.max(0, place)));
    if (this.patch && row === this.patch.row && column === this.patch.column) return;
    this.patch = { row, column };
    const read = this.clusters.attentionOf(this.patch).slice(0, PATCH_CLUSTERS);
    $("patch").hidden = false;
    $("patch-clusters").replaceChildren(...read.map(({ number, share }) => makeBar("li", `cluster ${number}`, share)));
    this.clusters.highlight(read.slice(0, 3).map(({ number }) => number));
    this.draw();
  }

  patchText() {
    const read = this.clusters.attentionOf(this.patch).slice(0, 3);
    const clusters = read.map(({ number, share }) => `cluster ${number} (${percent(share)})`).join(", ");
    return `Patch in row ${this.patch.row + 1}, column ${this.patch.column + 1} looks most at ${clusters}.`;
  }

  clearPatch() {
    if (!this.patch) return;
    this.patch = null;
    this.clusters.highlight([]);
    this.draw();
  }

  // ---- other methods

  buildMethods() {
    const { methods, stages, inside } = this.model;
    $("show").replaceChildren(
      ...(stages.length ? [new Option("chosen cluster", "")] : []),
      ...methods.map((method) => new Option([spaced(method.name), ...method.labels].join(" · "), method.name)),
    );
    $("default-method").textContent = this.defaultMethodText();
    $("inside").textContent = inside;
    $("inside").hidden = !inside;
    $("methods").open = stages.length === 0;
    $("method-count").textContent = methods.length;
    $("method-cards").replaceChildren(...methods.map((method) => this.methodCard(method)));
  }

  methodCard(method) {
    const { name, labels, target } = method;
    const show = { "aria-label": `Show ${[spaced(name), ...labels].join(", ")}`, onclick: () => this.takeMap(name) };
    return make(
      "li",
      { "data-method": name },
      make("button", { type: "button", className: "map-button", "aria-pressed": "false", ...show }),
      make("div", { className: "facts" }, make("b", { className: "name", textContent: spaced(name) }), make("span", { className: "score" })),
      make("p", { className: "labels" }, ...labels.map((text) => this.label(method, text))),
      make("p", { className: "summary", textContent: sentence(method.summary) + (target ? "" : ` Does not know the ${this.targetNoun}.`) }),
    );
  }

  // The run's default, which comes first in the list, and why it is the default.
  defaultMethodText() {
    const { methods, chosen } = this.model;
    if (chosen.method === null) return chosen.reason;
    if (this.model.refinement.length) return `${sentence(`${spaced(chosen.method)} is the default`)} ${chosen.reason}`;
    const { passes } = methods[0];
    const when = passes > QUICK_PASSES ? `takes ${passes} passes, so it is computed only when you choose it` : "is shown first";
    return `${sentence(`${spaced(chosen.method)} ${when}`)} ${chosen.reason}`;
  }

  label(method, text) {
    const best = method.name === this.model.chosen.method && text === method.labels[0];
    return make("span", { className: best ? "label" : "label doubt", textContent: text });
  }

  // The map shown first of a new picture: the default of the lowest budget, or of the run, unless it takes many passes; else
  // clusters, if there are any.
  get firstMap() {
    const { methods, stages, chosen, refinement } = this.model;
    const first = refinement[0] ?? chosen.method;
    if (first !== null && this.about(first).passes <= QUICK_PASSES) return first;
    return stages.length ? "" : methods.find((method) => method.passes <= QUICK_PASSES).name;
  }

  resetMethods() {
    for (const method of this.model.methods) {
      const cost = `compute (${passesText(method)})`;
      this.mapButton(method.name).replaceChildren(make("span", { className: "empty", textContent: cost }));
      this.card(method.name).querySelector(".score").textContent = "";
    }
    $("method-cards").append(...this.model.methods.map((method) => this.card(method.name))); // in their own order again
    $("default-method").textContent = this.defaultMethodText();
  }

  // The only place that says whose map is shown; the list and the cards follow.
  setMethod(name) {
    this.method = name;
    this.choice += 1;
    $("show").value = name;
    for (const card of $("method-cards").children) {
      card.querySelector(".map-button").setAttribute("aria-pressed", String(card.dataset.method === name));
    }
  }

  card(name) {
    return document.querySelector(`[data-method="${CSS.escape(name)}"]`);
  }

  mapButton(name) {
    return this.card(name).querySelector(".map-button");
  }

  about(name) {
    return this.model.methods.find((method) => method.name === name);
  }

  // Methods with a stage to choose follow the clusters to theirs.
  stageOf(name) {
    return this.about(name).staged ? this.clusters.otherStage : null;
  }

  // With a signal the map is computed in the background, until it is aborted.
  async heat(name, signal = null) {
    const { subject } = this;
    const stage = this.stageOf(name);
    const key = `${name} ${stage}`;
    if (!this.heatMaps.has(key)) {
      this.mapButton(name).setAttribute("aria-busy", "true");
      try {
        const values = { method: name, stage, target: subject.target, background: signal && true };
        const answer = await get(`images/${subject.id}/heat`, values, signal);
        if (subject !== this.subject) return null;
        const stack = unpack(answer.map);
        this.heatMaps.set(key, { ...answer, stage, map: { rows: stack.rows, columns: stack.columns, values: stack.data } });
      } finally {
        this.mapButton(name).setAttribute("aria-busy", "false");
      }
    }
    if (stage !== this.stageOf(name)) return null; // the card is for the map of another stage now
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, this.image, this.heatMaps.get(key).map, { width: CARD_WIDTH });
    this.mapButton(name).replaceChildren(canvas);
    return this.heatMaps.get(key);
  }

  // A person's choice, which stays.
  takeMap(name) {
    this.stopRefining();
    this.clearError();
    return this.chooseMap(name);
  }

  async chooseMap(name) {
    this.setMethod(name);
    this.showStatus();
    if (!name) {
      if (this.clusters.pinned) this.clusters.pin(this.clusters.pinned);
      return;
    }
    const { choice } = this;
    try {
      const found = await this.heat(name);
      if (!found || choice !== this.choice) return;
      const unlike = this.model.chosen.method === null ? "" : " (its faithfulness was measured at another)";
      const where = found.stage === null ? "" : `, stage ${found.stage}${unlike}`;
      const against = found.low < 0 ? `; what speaks against the ${this.targetNoun} is dark` : "";
      const range = `Values from ${minus(found.low.toPrecision(2))} to ${minus(found.high.toPrecision(2))}${against}.`;
      const caption = `${sentence(`${spaced(name)}${where}: ${found.summary}`)} ${range}`;
      this.pinnedMap = { map: found.map, caption: () => caption };
      this.draw();
    } catch (error) {
      this.showError(error);
    }
  }

  // The clusters are of another stage now, and so is the map if its method has a stage to choose.
  stageChanged() {
    if (this.method && this.about(this.method).staged) this.chooseMap(this.method);
  }

  // ---- better maps that follow by themselves

  // The defaults of growing budgets: those of few passes are asked for at once, the others one by one in the background.
  async refine(first) {
    const signal = this.refining.next();
    const left = this.model.refinement.filter((name) => name !== this.method);
    const cheap = new Map(left.filter((name) => this.about(name).passes <= AT_ONCE_PASSES).map((name) => [name, this.heat(name)]));
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
        await this.chooseMap(name);
      }
    } catch (error) {
      this.showError(error);
    }
  }

  stopRefining() {
    this.refining.next();
    this.coming = null;
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

  async computeQuick(choice = this.choice) {
    const { subject } = this;
    $("compute").disabled = true;
    try {
      for (const method of this.model.methods) {
        if (subject !== this.subject) break;
        if (method.passes <= QUICK_PASSES) await this.heat(method.name);
      }
      if (this.model.chosen.method === null) await this.measureQuick(subject, choice);
    } catch (error) {
      this.showError(error);
    }
    $("compute").disabled = false;
  }

  // With no measurement for the model, the most faithful map on this picture goes first.
  async measureQuick(subject, choice) {
    const measured = [];
    for (const { name, passes } of this.model.methods) {
      if (passes > QUICK_PASSES) continue;
      const { difference } = await get(`images/${subject.id}/faithfulness`, { method: name, target: subject.target });
      if (subject !== this.subject) return;
      this.card(name).querySelector(".score").textContent = signed(difference);
      measured.push({ name, difference });
    }
    measured.sort((a, b) => b.difference - a.difference);
    $("method-cards").prepend(...measured.map(({ name }) => this.card(name)));
    const best = measured[0];
    $("default-method").textContent = `${sentence(`${spaced(best.name)} is the most faithful of the quick ones on this picture: insertion − deletion ${signed(best.difference)}`)} ${this.model.chosen.reason}`;
    if (this.method && choice === this.choice) await this.chooseMap(best.name); // unless something else was chosen
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

  // ---- errors

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

function acceptPictures(page, limit) {
  const open = async (picture) => {
    if (!picture) return;
    page.clearError();
    if (picture.size > limit) {
      showMessage(`“${picture.name}” has ${(picture.size / 1e6).toFixed(1)} MB; at most ${limit / 1e6} MB are accepted.`);
      return;
    }
    try {
      await page.open((await upload(picture)).id);
    } catch (error) {
      page.showError(error);
    }
  };
  $("file").addEventListener("change", () => {
    open($("file").files[0]);
    $("file").value = "";
  });
  document.addEventListener("paste", (event) => open([...event.clipboardData.files][0]));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("over");
  });
  for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => document.body.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    open(event.dataTransfer.files[0]);
  });
}

function showExamples(page, examples) {
  $("examples-part").hidden = examples.length === 0;
  const buttons = examples.map(({ id, name }) => {
    const image = make("img", { src: `api/images/${id}/picture.png`, alt: name, title: name });
    return make("li", {}, make("button", { type: "button", "data-id": id, "aria-pressed": "false", onclick: () => page.open(id) }, image));
  });
  $("examples").replaceChildren(...buttons);
}

async function start() {
  try {
    const model = await get("model");
    setColours(model.colours);
    document.title = `${model.name} · vitreous serve`;
    $("model").textContent = model.name;
    const size = model.has_findings ? `task ${model.task}` : `pictures of ${model.width} × ${model.height} pixels`;
    $("facts").textContent = `${model.classes} ${model.classes === 1 ? "class" : "classes"}, ${size}, ${model.methods.length} ways to see what mattered`;
    $("limit").textContent = `JPEG, PNG, WebP, BMP or TIFF, up to ${model.upload_bytes / 1e6} MB`;
    const page = new Page(model);
    acceptPictures(page, model.upload_bytes);
    showExamples(page, model.examples);
  } catch (error) {
    showMessage(error.message);
  }
  document.documentElement.dataset.ready = "yes";
}

start();
