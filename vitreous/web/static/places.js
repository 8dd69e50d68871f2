// Mark a place in the picture, see which examples use it, and keep the marks as a file of regions.

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

class Places {
  constructor() {
    this.request = new Latest();
    this.marks = []; // { region, look, byLook }
    this.frame = make("div", { className: "mark-frame", hidden: true });
    this.sheet = make("div", { className: "mark-sheet", hidden: true }, this.frame);
    document.body.append(this.sheet);
    $("place-named").append(...Object.keys(NAMED).map((name) => new Option(name, name)));
    $("place-mark").addEventListener("click", () => this.switchMarking($("place-mark").getAttribute("aria-pressed") !== "true"));
    $("place-named").addEventListener("change", () => NAMED[$("place-named").value] && this.ask(NAMED[$("place-named").value]));
    $("place-save").addEventListener("click", () => this.save());
    this.sheet.addEventListener("pointerdown", (event) => this.begin(event));
    this.sheet.addEventListener("pointermove", (event) => this.from && this.drag(event));
    this.sheet.addEventListener("pointerup", (event) => this.from && this.end(event));
    this.sheet.addEventListener("pointercancel", () => this.switchMarking(false));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.switchMarking(false));
    window.addEventListener("resize", () => this.switchMarking(false));
    document.addEventListener("picture-shown", (event) => this.turnTo(event.detail));
  }

  // Another picture: its marks are kept, what was found for the last one is not.
  turnTo({ id, findings }) {
    if (id === this.id) return;
    this.id = id;
    this.request.next();
    this.switchMarking(false);
    $("places").hidden = findings;
    $("place-answer").textContent = "";
    $("place-pictures").replaceChildren();
  }

  // A sheet over the picture takes the pointer, so that the page below does not follow it.
  switchMarking(on) {
    $("place-mark").setAttribute("aria-pressed", String(on));
    this.from = null;
    this.sheet.hidden = !on;
    this.frame.hidden = true;
    if (!on) return;
    const box = $("viewer").getBoundingClientRect();
    const place = { left: box.left + window.scrollX, top: box.top + window.scrollY, width: box.width, height: box.height };
    for (const [side, value] of Object.entries(place)) this.sheet.style[side] = `${value}px`;
    $("viewer").scrollIntoView({ block: "nearest" });
  }

  at(event) {
    const box = this.sheet.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share) => Math.min(1, Math.max(0, share)));
  }

  begin(event) {
    event.preventDefault();
    this.sheet.setPointerCapture(event.pointerId);
    this.from = this.at(event);
    this.drag(event);
  }

  boxTo(event) {
    const [x, y] = this.at(event);
    const [left, top] = this.from;
    return [Math.min(left, x), Math.min(top, y), Math.max(left, x), Math.max(top, y)];
  }

  drag(event) {
    const [left, top, right, bottom] = this.boxTo(event);
    Object.assign(this.frame.style, { left: length(left), top: length(top), width: length(right - left), height: length(bottom - top) });
    this.frame.hidden = false;
  }

  end(event) {
    const box = this.boxTo(event).map((side) => Math.round(side * 1000) / 1000);
    this.switchMarking(false);
    if (box[2] - box[0] >= SMALLEST && box[3] - box[1] >= SMALLEST) this.ask(box);
    else $("place-answer").textContent = "That is too small to hide anything: drag a larger box.";
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

new Places();
