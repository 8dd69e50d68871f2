// The clusters of one stage: their cards, their order, which are switched off, and which a patch attends to.

import { get, Latest } from "./api.js";
import { $, cellCount, length, make, mapOf, paint, sentence, signed, skeletons, spaced, summedMap, unpack } from "./draw.js";
import { explainTerm } from "./terms.js";

const THUMBNAIL_WIDTH = 138; // pixels
const IDLE_WIDTH = 380;
const SHOWN_AT_FIRST = 12;
const EXPECTED = 5; // tiles before it is known whether there will be any: a row, as high as what stands there if not
// The same for all pictures and models: where a bar is full, and below what a score changes nothing that one would see.
const LOG_ODDS = { full: 3, matters: 0.1, text: "Bars are full at 3, which makes the odds 20 times worse; grey below 0.1, which moves no probability by more than 2.5 points." };
const SHARES = { full: 1, matters: 0.01, text: "Bars are full at 1; grey below 0.01." };

export class Clusters {
  // `page` knows what is explained (picture, target), shows maps and predictions, and reports errors.
  constructor(page, model) {
    this.page = page;
    this.model = model;
    this.stage = model.stages.at(-1)?.stage ?? null;
    this.off = new Set();
    this.loads = null;
    this.insisted = false; // clusters that carry nothing are to be shown all the same
    this.pinned = null;
    this.chosen = null;
    this.cards = [];
    this.stageRequest = new Latest();
    this.rankingRequest = new Latest();
    this.ablationRequest = new Latest();
    this.pressed = false;
    if (this.stage === null) return;
    $("clusters").hidden = false;
    this.buildStages();
    $("ranking").replaceChildren(...model.rankings.map((r) => new Option(spaced(r.name), r.name)));
    $("ranking").value = "ablation";
    this.suitRankings();
    $("ranking").addEventListener("change", () => this.rank());
    $("top").addEventListener("input", () => this.arrange());
    $("unit").addEventListener("change", () => this.build());
    $("side").addEventListener("change", () => this.build());
    $("all-on").addEventListener("click", () => this.switchTo(new Set()));
    $("show-anyway").addEventListener("click", () => this.insist());
    $("cards").addEventListener("mouseleave", () => this.page.preview(null));
    $("cards").addEventListener("pointerdown", () => { this.pressed = true; });
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => setTimeout(() => this.release())); // after its click
  }

  buildStages() {
    const choices = this.model.stages.map(({ stage, name, readout, clusters }) => {
      const input = make("input", { type: "radio", name: "stage", value: stage, checked: stage === this.stage });
      return make("label", {}, input, make("span", {}, `${readout ? name : stage} · ${clusters} clusters `, make("small", { id: `load-${stage}` })));
    });
    $("stages").append(...choices);
    $("stages").addEventListener("change", (event) => this.turnTo(Number(event.target.value)));
  }

  turnTo(stage) {
    document.querySelector(`[name=stage][value="${stage}"]`).checked = true;
    const opened = this.open(stage);
    this.page.methods.stageChanged();
    this.page.remember();
    return opened;
  }

  nextStage() {
    if (!this.data || this.model.stages.length < 2) return;
    const place = this.model.stages.indexOf(this.about);
    this.turnTo(this.model.stages[(place + 1) % this.model.stages.length].stage);
  }

  // What an address tells about them.
  get view() {
    if (this.stage === null) return {};
    return { stage: this.otherStage, off: [...this.off].sort((a, b) => a - b).join(","), cluster: this.chosen?.members[0] };
  }

  // As an address says: a stage, the cluster whose map is shown, and clusters that are off.
  async takeUp({ stage, off, cluster }) {
    if (this.stage === null) return;
    const known = this.model.stages.some((each) => String(each.stage) === stage);
    const wanted = known ? Number(stage) : this.model.stages.at(-1).stage;
    if (wanted !== this.stage) await this.turnTo(wanted);
    const numbers = new Set((off ?? "").split(",").filter((word) => /^\d{1,6}$/.test(word)).map(Number));
    const item = this.cards.map((card) => card.item).find(({ members }) => members.includes(Number(cluster)));
    if (cluster && item) this.take(item);
    if (numbers.size || this.off.size) await this.switchTo(numbers);
  }

  // Which clusters these are, in words; those that the classifier reads have contributions.
  get about() {
    return this.model.stages.find(({ stage }) => stage === this.stage);
  }

  // Contributions first where there are any, and nowhere else.
  suitRankings() {
    const { readout } = this.about;
    for (const option of $("ranking").options) option.hidden = this.model.rankings.find((r) => r.name === option.value).readout && !readout;
    if (readout) $("ranking").value = "contribution";
    else if ($("ranking").selectedOptions[0].hidden) $("ranking").value = "ablation";
  }

  // Bars that add up to the logit: each begins where the one before ends. Clusters that are off add nothing. All bars together
  // stand for 3 at least, as a single one does elsewhere.
  showSum() {
    const parts = this.data?.parts;
    $("sum").hidden = !parts;
    if (!parts) return;
    const order = parts.values.map((value, number) => ({ name: `cluster ${number}`, value, off: this.off.has(number) })).sort((a, b) => b.value - a.value);
    const rows = [{ name: "bias", value: parts.bias }, ...(parts.others ? [{ name: "other stages", value: parts.others }] : []), ...order];
    let [end, whole] = [0, 0];
    const reached = [0]; // with all clusters too, so that bars keep their length when one is switched off
    for (const row of rows) {
      [row.from, row.to] = [end, (end += row.off ? 0 : row.value)];
      reached.push(end, (whole += row.value));
    }
    rows.push({ name: "logit", value: end, from: 0, to: end, total: true });
    const [low, high] = atLeast(LOG_ODDS.full, Math.min(...reached), Math.max(...reached));
    const share = (value) => length((value - low) / (high - low));
    $("sum-rows").replaceChildren(
      ...rows.map((row) => {
        const bar = make("i", { className: row.to < row.from ? "loss" : "" });
        bar.style.left = share(Math.min(row.from, row.to));
        bar.style.width = length(Math.abs(row.to - row.from) / (high - low));
        const value = make("span", { className: "value" }, row.off ? make("s", {}, signed(row.value)) : signed(row.value));
        return make("li", { className: row.total ? "total" : "" }, make("span", { className: "name" }, row.off ? `${row.name} (off)` : row.name), make("div", { className: "signed" }, bar), value);
      }),
    );
  }

  // The stage if it is not the one methods take by themselves, else null.
  get otherStage() {
    return this.stage === this.model.stages.at(-1)?.stage ? null : this.stage;
  }

  get grouped() {
    return document.querySelector("[name=unit]:checked").value === "groups";
  }

  get side() {
    return document.querySelector("[name=side]:checked").value;
  }

  // Answers that are still on their way are about something else.
  cancel() {
    for (const request of [this.rankingRequest, this.ablationRequest]) request.next();
    return this.stageRequest.next();
  }

  // A picture without anything to explain.
  empty() {
    this.cancel();
    this.data = null;
    this.pinned = null;
    this.off.clear();
  }

  // A picture about which nothing is known yet.
  begin() {
    this.empty();
    if (this.stage === null) return;
    $("clusters").setAttribute("aria-busy", "true");
    this.showSkeletons();
  }

  // A new picture or class: everything is requested again.
  async refresh(view) {
    this.loads = null;
    this.insisted = false;
    this.off.clear();
    if (this.stage === null) return;
    const known = this.model.stages.find(({ stage }) => String(stage) === view.stage);
    if (known) document.querySelector(`[name=stage][value="${known.stage}"]`).checked = true;
    await this.open(known?.stage ?? this.stage);
    if (view.off || view.cluster) await this.takeUp({ ...view, stage: String(this.stage) });
  }

  showSkeletons() {
    const { clusters, readout } = this.about;
    this.cards = [];
    $("load").textContent = "";
    for (const { stage } of this.model.stages) $(`load-${stage}`).replaceChildren();
    $("idle").hidden = true;
    $("cluster-body").hidden = false;
    $("sum").hidden = !readout;
    if (readout) $("sum-rows").replaceChildren(...skeletons("li", clusters + 2, "part"));
    $("ranking-text").textContent = "";
    $("cards").replaceChildren(...skeletons("li", Math.min(EXPECTED, clusters), "tile"));
  }

  // Quick scores first; then whether the stages matter at all; then the exact order.
  async open(stage) {
    this.stage = stage;
    this.data = null;
    this.pinned = null;
    this.chosen = null;
    const signal = this.cancel();
    $("clusters").setAttribute("aria-busy", "true");
    this.showSkeletons();
    const changed = this.off.size > 0;
    this.off.clear();
    if (changed) this.page.showPrediction(null);
    try {
      const { id, target } = this.page.subject;
      const answer = await get(`images/${id}/stages/${stage}`, { target }, signal);
      this.data = { ...answer, maps: unpack(answer.maps), attention: { ...unpack(answer.attention), highest: answer.attention.highest } };
      this.importance = answer.importance;
      this.suitRankings();
      if (this.about.readout) this.showCards();
      if (!this.loads) this.loads = (await get(`images/${id}/load`, { target }, signal)).stages;
      this.showLoads();
      $("clusters").setAttribute("aria-busy", "false");
      if (this.isIdle) this.showIdle();
      else {
        if (!this.about.readout) this.showCards();
        await this.rank();
      }
    } catch (error) {
      this.page.showError(error);
    }
  }

  showCards() {
    $("idle").hidden = true;
    $("cluster-body").hidden = false;
    this.showSum();
    this.showRankingText();
    this.build();
  }

  // Clusters of this stage carry nothing of the answer, and nobody has asked to see them all the same.
  get isIdle() {
    return !this.insisted && !this.about.readout && !this.loads.find(({ stage }) => stage === this.stage).carries;
  }

  // One sentence and the best other map, in place of tiles that mean nothing.
  async showIdle() {
    const { stage, data } = this;
    const working = this.loads.filter(({ carries }) => carries).map(({ stage: other }) => this.model.stages.find((each) => each.stage === other).name);
    $("cluster-body").hidden = true;
    $("idle").hidden = false;
    $("show-anyway").textContent = `Show its ${this.about.clusters} clusters anyway`;
    const elsewhere = working.length ? ` Clusters that do carry something: ${working.join(", ")}.` : "";
    $("idle-text").textContent = `So their maps are left out.${elsewhere} The best other map follows …`;
    $("idle-map").classList.add("skeleton");
    const show = (found, more) => {
      if (!found || data !== this.data || stage !== this.stage) return;
      $("idle-text").textContent = `So their maps are left out.${elsewhere} Look at ${spaced(found.name)} instead: ${sentence(found.summary)}${more}`;
      $("idle-map").classList.remove("skeleton");
      paint($("idle-map"), this.page.image, found.map, { width: IDLE_WIDTH });
    };
    show(await this.page.methods.best((found) => show(found, " Others are being compared with it …")), "");
  }

  async insist() {
    this.insisted = true;
    this.showCards();
    $("ranking").focus();
    await this.rank();
  }

  get scale() {
    return this.model.rankings.find((ranking) => ranking.name === this.importance.by).share ? SHARES : LOG_ODDS;
  }

  // How the cards are ordered; while another order is chosen than the one shown, that it is on its way.
  showRankingText() {
    const by = $("ranking").value;
    const { summary } = this.model.rankings.find((ranking) => ranking.name === by);
    $("ranking-text").textContent =
      by === this.importance.by ? `${spaced(by)}: ${summary}. ${this.scale.text}` : `Quick estimate by gradient; scores by ${spaced(by)} follow …`;
  }

  async rank() {
    if (!this.data) return; // follows when the stage has arrived
    const signal = this.rankingRequest.next();
    const by = $("ranking").value;
    if (by !== this.importance.by) {
      this.showRankingText();
      try {
        const { id, target } = this.page.subject;
        this.importance = await get(`images/${id}/stages/${this.stage}/importance`, { by, target }, signal);
      } catch (error) {
        this.page.showError(error);
        return;
      }
    }
    this.showRankingText();
    this.arrange();
  }

  showLoads() {
    for (const load of this.loads) {
      const text = make("span", { textContent: load.carries ? signed(-load.uniform) : "no load" });
      $(`load-${load.stage}`).replaceChildren(explainTerm(text, load.carries ? "load" : "no load"));
    }
    const load = this.loads.find((l) => l.stage === this.stage);
    if (this.about.readout) {
      $("load").classList.remove("warning");
      $("load").textContent = `The classifier reads these clusters and nothing else: without them only the bias is left, which changes the log-odds by ${signed(-load.attention_off)}.`;
      return;
    }
    $("load").classList.toggle("warning", !load.carries);
    const change = `changes the log-odds by ${signed(-load.uniform)}`;
    const answer = load.uniform_flips ? "and the answer with it" : "but not the answer";
    $("load").textContent = load.carries
      ? `Replacing every cluster of this stage with the plain average of all patches ${change}, ${answer}: what they find matters here.`
      : `For this picture the clusters of this stage carry nothing: replacing every one with the plain average of all patches only ${change}, however sharp their maps look.`;
  }

  // What a card stands for: { name, members }.
  items() {
    if (!this.grouped) return this.data.groups.map((_, number) => ({ name: `cluster ${number}`, members: [number], index: number }));
    const groups = [];
    this.data.groups.forEach((group, number) => {
      groups[group] ??= { name: "", members: [], index: group };
      groups[group].members.push(number);
    });
    for (const group of groups) group.name = group.members.length === 1 ? `cluster ${group.members[0]}` : `${group.members.length} clusters: ${group.members.join(", ")}`;
    return groups;
  }

  score(item) {
    if (!this.grouped) return this.importance.values[item.index];
    return this.importance.groups ? this.importance.groups[item.index] : null;
  }

  map(item) {
    const stack = this.data[this.side];
    const values = summedMap(stack, item.members);
    const highest = this.side === "attention" ? Math.max(1, ...values) : 255;
    return { rows: stack.rows, columns: stack.columns, values: values.map((value) => Math.round((255 * value) / highest)) };
  }

  describe(item) {
    const score = this.score(item);
    const scoreText = score === null ? "no score for groups" : `score ${signed(score)}`;
    const where = this.side === "maps" ? "bright where it gathers from" : "bright where patches read it";
    const spread = item.members.length === 1 ? `; entropy ${this.data.entropy[item.index].toFixed(2)}, a flat map has ${this.data.flat_entropy.toFixed(2)}` : "";
    return sentence(`${item.name}, ${this.about.name}: ${scoreText}; ${where}${spread}`);
  }

  build() {
    if (!this.data) return;
    this.cards = this.items().map((item) => ({ item, element: this.card(item) }));
    $("top").max = this.cards.length;
    $("top").value = Math.min(SHOWN_AT_FIRST, this.cards.length);
    for (const option of $("ranking").options) {
      option.disabled = this.grouped && !this.model.rankings.find((r) => r.name === option.value).groups;
    }
    this.updateSwitches();
    if (this.chosen) this.chosen = this.items().find((item) => item.members.includes(this.chosen.members[0]));
    this.arrange();
  }

  card(item) {
    const element = document.createElement("li");
    element.innerHTML =
      '<button type="button" class="map-button" aria-pressed="false"><canvas aria-hidden="true"></canvas></button>' +
      '<div class="facts"><b class="name"></b><span class="score"></span></div>' +
      '<div class="signed" aria-hidden="true"><i></i></div>' +
      '<label class="switch"><input type="checkbox" role="switch" checked><span></span></label>';
    const button = element.querySelector(".map-button");
    element.querySelector(".name").textContent = item.members.length === 1 ? item.name : `${item.members.length} clusters`;
    element.querySelector(".name").title = item.name;
    paint(element.querySelector("canvas"), this.page.image, this.map(item), { width: THUMBNAIL_WIDTH });
    element.addEventListener("mouseenter", () => this.page.preview(this.map(item), this.describe(item)));
    button.addEventListener("focus", () => this.page.preview(this.map(item), this.describe(item)));
    button.addEventListener("blur", () => this.page.preview(null));
    button.addEventListener("click", () => this.take(item));
    const box = element.querySelector("input");
    box.setAttribute("aria-label", `${item.name} on`);
    box.addEventListener("change", () => this.toggle(item, box.checked));
    return element;
  }

  take(item) {
    this.chosen = this.pinned = item;
    this.page.methods.take("");
  }

  // Cards that moved between press and release would lose the click, so a new order waits for the release.
  release() {
    if (!this.pressed) return;
    this.pressed = false;
    this.arrange();
  }

  // Cards in the order of the scores, as many as the slider says; those that are switched off stay in sight.
  arrange() {
    if (!this.data || this.pressed || !this.cards.length) return;
    const order = [...this.cards].sort((a, b) => (this.score(b.item) ?? 0) - (this.score(a.item) ?? 0));
    const { full, matters } = this.scale;
    const count = Number($("top").value);
    $("top-value").textContent = `${count} of ${order.length}`;
    order.forEach(({ item, element }, place) => {
      const score = this.score(item);
      element.hidden = place >= count && !item.members.some((m) => this.off.has(m));
      element.querySelector(".score").textContent = score === null ? "" : signed(score);
      const bar = element.querySelector(".signed i");
      const share = Math.min(1, Math.abs(score ?? 0) / full) / 2;
      element.classList.toggle("faint", Math.abs(score ?? 0) < matters);
      bar.style.left = length(score < 0 ? 0.5 - share : 0.5);
      bar.style.width = length(share);
      bar.classList.toggle("loss", score < 0);
      element.querySelector(".map-button").setAttribute("aria-label", `Rank ${place + 1}, ${this.describe(item)} Show its map`);
    });
    const elements = order.map(({ element }) => element);
    const focused = elements.findIndex((element) => element.contains(document.activeElement));
    if (focused < 0) $("cards").replaceChildren(...elements);
    else {
      elements[focused].before(...elements.slice(0, focused)); // taken out, it would lose the focus and a key that is down
      elements[focused].after(...elements.slice(focused + 1));
    }
    this.pin(this.chosen ?? order[0].item);
  }

  // The map that stays in the large picture: the one that was clicked, or else the most important.
  pin(item) {
    this.pinned = item;
    for (const { item: other, element } of this.cards) {
      element.querySelector(".map-button").setAttribute("aria-pressed", String(other.index === item.index));
    }
    this.page.pin(this.map(item), () => this.describe(item));
  }

  toggle(item, on) {
    const off = new Set(this.off);
    for (const member of item.members) on ? off.delete(member) : off.add(member);
    this.switchTo(off);
  }

  async switchTo(off) {
    const before = this.off;
    this.off = off;
    if (off.size) this.page.places.clear();
    this.updateSwitches();
    this.page.remember();
    const signal = this.ablationRequest.next();
    try {
      if (off.size === 0) {
        this.page.showPrediction(null);
        return;
      }
      const { id, target } = this.page.subject;
      const values = { off: [...off].sort((a, b) => a - b).join(","), target };
      const answer = await get(`images/${id}/stages/${this.stage}/ablation`, values, signal);
      this.page.showPrediction(answer, `without ${answer.off.length} of ${this.about.clusters} clusters of ${this.about.name}`);
    } catch (error) {
      if (error.name !== "AbortError") {
        this.off = before;
        this.updateSwitches();
        this.page.remember();
      }
      this.page.showError(error);
    }
  }

  // All are on, because something else is changed; the prediction follows from that.
  forget() {
    this.ablationRequest.next();
    this.off = new Set();
    this.updateSwitches();
  }

  updateSwitches() {
    this.showSum();
    $("all-on").disabled = this.off.size === 0;
    for (const { item, element } of this.cards) {
      const removed = item.members.filter((m) => this.off.has(m)).length;
      const box = element.querySelector("input");
      box.checked = removed === 0;
      box.indeterminate = removed > 0 && removed < item.members.length;
      element.querySelector(".switch span").textContent = removed === 0 ? "on" : removed === item.members.length ? "off" : "partly off";
      element.classList.toggle("off", removed === item.members.length);
    }
  }

  // Attention of one patch over the clusters, strongest first.
  attentionOf(patch) {
    const stack = this.data.attention;
    const place = patch.row * stack.columns + patch.column;
    const shares = this.data.groups.map((_, m) => (mapOf(stack, m)[place] / 255) * stack.highest);
    return shares.map((share, number) => ({ number, share })).sort((a, b) => b.share - a.share);
  }

  get grid() {
    return this.data && this.cards.length && cellCount(this.data.attention) ? this.data.attention : null;
  }

  highlight(numbers) {
    for (const { item, element } of this.cards) element.classList.toggle("read", item.members.some((m) => numbers.includes(m)));
  }
}

// A range around zero, made as wide as this on its longer side if it is narrower: bars of small numbers are to look small.
function atLeast(width, low, high) {
  if (high - low >= width) return [low, high];
  return high >= -low ? [low, low + width] : [high - width, high];
}
