// Hide a part of the picture and see the answer change while you draw; which examples use it; and the marks as a file of regions.

import { get, Latest } from "./api.js";
import { $, length, make, percent } from "./draw.js";

const SMALLEST = 0.02; // side of a mark, in shares of the picture

const NAMED = {
  "upper left": [0, 0, 0.25, 0.25],
  "upper right": [0.75, 0, 1, 0.25],
  "lower left": [0, 0.75, 0.25, 1],
  "lower right": [0.75, 0.75, 1, 1],
  "top edge": [0, 0, 1, 0.125],
  "bottom edge": [0, 0.875, 1, 1],
  "left edge": [0, 0, 0.125, 1],
  "right edge": [0.875, 0, 1, 1],
};

export class Places {
  // `page` knows what is explained, and shows predictions and errors.
  constructor(page) {
    this.page = page;
    this.request = new Latest(); // about all examples
    this.answering = new Latest(); // about this picture
    this.marks = []; // { region, look, byLook }
    this.box = null; // what is hidden: left, top, right, bottom in shares of what the model sees
    this.frame = $("mark-frame");
    this.sheet = this.frame.parentElement;
    $("place-named").append(...Object.keys(NAMED).map((name) => new Option(name, name)));
    $("place-mark").addEventListener("click", () => this.switchMarking($("place-mark").getAttribute("aria-pressed") !== "true"));
    $("place-named").addEventListener("change", () => this.hide(NAMED[$("place-named").value]));
    $("place-examples").addEventListener("click", () => this.ask(this.box));
    $("place-save").addEventListener("click", () => this.save());
    this.sheet.addEventListener("pointerdown", (event) => this.begin(event));
    this.sheet.addEventListener("pointermove", (event) => this.from && this.drag(event));
    this.sheet.addEventListener("pointerup", (event) => this.from && this.end(event));
    this.sheet.addEventListener("pointercancel", () => this.clear());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.switchMarking(false));
    for (const id of ["place-examples", "place-save"]) $(id).hidden = page.explainsFindings;
    if (page.model.examples.length === 0) $("place-examples").textContent = "Keep it as a region";
  }

  // Another picture: its marks are kept, what was found for the last one is not.
  turnTo(id) {
    if (id === this.id) return;
    this.id = id;
    this.clear();
  }

  // A sheet over the picture takes the pointer, so that patches do not follow it. It stays as long as something is hidden.
  switchMarking(on) {
    $("place-mark").setAttribute("aria-pressed", String(on));
    this.from = null;
    this.sheet.hidden = !on && !this.box;
    this.sheet.classList.toggle("marking", on);
    if (on) $("frame").scrollIntoView({ block: "nearest" });
  }

  // Nothing is hidden any more; the prediction is another's business.
  clear() {
    this.request.next();
    this.answering.next();
    if (!this.frame.hidden) this.page.beside?.hide(null);
    this.box = this.asked = null;
    this.frame.hidden = true;
    this.switchMarking(false);
    $("place-named").value = "";
    $("place-examples").disabled = true;
    $("place-answer").textContent = "";
    $("place-pictures").replaceChildren();
  }

  at(event) {
    const box = this.sheet.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share) => Math.min(1, Math.max(0, share)));
  }

  begin(event) {
    if (!this.sheet.classList.contains("marking")) return;
    event.preventDefault();
    this.sheet.setPointerCapture(event.pointerId);
    this.from = this.at(event);
  }

  boxTo(event) {
    const [x, y] = this.at(event);
    const [left, top] = this.from;
    return [Math.min(left, x), Math.min(top, y), Math.max(left, x), Math.max(top, y)].map((side) => Math.round(side * 1000) / 1000);
  }

  drag(event) {
    const box = this.boxTo(event);
    this.showFrame(box);
    if (isLarge(box)) this.answer(box);
  }

  showFrame([left, top, right, bottom]) {
    Object.assign(this.frame.style, { left: length(left), top: length(top), width: length(right - left), height: length(bottom - top) });
    this.frame.hidden = this.sheet.hidden = false;
  }

  end(event) {
    const box = this.boxTo(event);
    this.switchMarking(false);
    if (isLarge(box)) this.hide(box);
    else {
      this.clear();
      this.page.showPrediction(null);
      $("place-answer").textContent = "That is too small to hide anything: drag a larger box.";
    }
  }

  // This box, for good: it is in the address, and the examples can be asked.
  hide(box) {
    if (!box || box.length !== 4 || !box.every(Number.isFinite) || !isLarge(box)) return;
    this.page.clusters.forget();
    this.box = box;
    this.showFrame(box);
    $("place-examples").disabled = false;
    this.page.remember();
    this.answer(box);
  }

  // What the model says without it. While one question is on its way, only the latest of the others is asked next.
  async answer(box) {
    this.wanted = box;
    if (this.asked) return;
    const signal = this.answering.next();
    try {
      while (this.asked?.join() !== this.wanted.join()) {
        this.asked = this.wanted;
        this.page.beside?.hide(this.asked);
        const { id, target } = this.page.subject;
        const found = await get(`images/${id}/hidden`, { box: this.asked.join(","), target }, signal);
        this.page.showPrediction(found, `with the ${found.name} hidden`);
      }
    } catch (error) {
      this.page.showError(error);
    }
    if (!signal.aborted) this.asked = null;
  }

  async ask(box) {
    const signal = this.request.next();
    $("place-answer").textContent = "Hiding it in all examples …";
    $("place-pictures").replaceChildren();
    try {
      const found = await get(`images/${this.id}/place`, { box: box.join(",") }, signal);
      this.marks.push({ region: found.region, look: found.look, byLook: false });
      this.showMarks();
      this.show(found);
    } catch (error) {
      if (!signal.aborted) $("place-answer").textContent = error.message;
    }
  }

  show({ name, own, pictures, changed }) {
    const here = own.changed ? `becomes ${own.becomes}` : `stays ${own.answer}`;
    const others = pictures.length ? `Of ${pictures.length} examples ${changed} ${changed === 1 ? "changes its answer" : "change their answers"}; those that lose most come first.` : "";
    $("place-answer").textContent = `Without the ${name} this picture ${here} (${percent(own.before)} to ${percent(own.after)}). ${others}`;
    $("place-pictures").replaceChildren(...pictures.map((row) => this.row(row)));
  }

  row({ id, name, answer, before, after, becomes, changed }) {
    const text = changed ? `${answer} → ${becomes}` : `stays ${answer}`;
    return make(
      "li",
      { className: changed ? "changed" : "" },
      make("img", { src: `api/images/${id}/picture.png`, alt: name, title: name }),
      make("span", { textContent: text }),
      make("span", { className: "quiet small", textContent: `${percent(before)} to ${percent(after)}` }),
    );
  }

  showMarks() {
    $("place-marks").replaceChildren(...this.marks.map((mark, number) => this.markRow(mark, number)));
    $("place-save").disabled = this.marks.length === 0;
  }

  markRow(mark, number) {
    const { region, look } = mark;
    const by = make("select", { "aria-label": `How region ${number + 1} is found`, onchange: () => (mark.byLook = by.value === "look") });
    by.append(new Option("at this place in every picture", "place"));
    if (look) by.append(new Option("wherever it looks like this", "look"));
    by.value = mark.byLook ? "look" : "place";
    const remove = () => {
      this.marks.splice(number, 1);
      this.showMarks();
    };
    return make("li", {}, make("b", { textContent: region.name }), " ", by, " ", make("button", { type: "button", textContent: "Remove", onclick: remove }));
  }

  save() {
    const regions = this.marks.map(({ region, look, byLook }) => (byLook && look ? look : region));
    const content = new Blob([JSON.stringify({ regions }, null, 1)], { type: "application/json" });
    const link = make("a", { href: URL.createObjectURL(content), download: "regions.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

const isLarge = ([left, top, right, bottom]) => right - left >= SMALLEST && bottom - top >= SMALLEST;
