// Where pictures come from: files, the clipboard, a camera, the examples, and those of this visit.
// A source is { name, url, id() }: what can be shown at once, and how the server comes to know the picture.

import { upload } from "./api.js";
import { $, make } from "./draw.js";

const MOST_VISITED = 24;

export class Pictures {
  constructor(page, { upload_bytes: limit, examples }) {
    Object.assign(this, { page, limit, visited: [] });
    this.examples = examples.map(({ id, name }) => ({ name, url: `api/images/${id}/sharp.jpg`, id: async () => id, known: id }));
    $("examples").replaceChildren(...this.examples.map((source) => this.button(source, `api/images/${source.known}/picture.png`)));
    $("examples").hidden = examples.length === 0;
    $("no-examples").hidden = examples.length > 0;
    $("file").addEventListener("change", () => {
      this.take($("file").files[0]);
      $("file").value = "";
    });
    document.addEventListener("paste", (event) => this.take([...event.clipboardData.files][0]));
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      document.body.classList.add("over");
    });
    for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => document.body.classList.remove("over"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event.dataTransfer.files[0]);
    });
    this.offerCamera();
  }

  // A file of the user's: shown before it is sent.
  take(file) {
    if (!file) return;
    const name = file.name || "pasted picture";
    if (file.size > this.limit) {
      this.page.showError(new Error(`“${name}” has ${(file.size / 1e6).toFixed(1)} MB; at most ${this.limit / 1e6} MB are accepted.`));
      return;
    }
    // Sent again each time, as the server may have forgotten it; a picture that it knows gets the same id.
    const source = { name, url: URL.createObjectURL(file), file, id: async () => (source.known = (await upload(file, name)).id) };
    this.page.show(source);
  }

  // The picture with this id, if it is on the page; else what the server has of it.
  find(id) {
    return [...this.visited, ...this.examples].find(({ known }) => known === id) ?? { name: "", url: null, id: async () => id, known: id };
  }

  // The server has taken a picture: it goes to the shelf.
  remember(source) {
    for (const button of document.querySelectorAll(".examples button")) button.setAttribute("aria-pressed", String(button.dataset.id === source.known));
    if (!source.file || this.visited.some(({ known }) => known === source.known)) return;
    this.visited.unshift(source);
    for (const old of this.visited.splice(MOST_VISITED)) URL.revokeObjectURL(old.url);
    const tiff = () => `api/images/${source.known}/picture.png`;
    const item = this.button(source, source.url);
    item.querySelector("img").addEventListener("error", ({ target }) => { target.src = tiff(); }, { once: true });
    item.querySelector("button").setAttribute("aria-pressed", "true");
    $("visit").prepend(item);
    [...$("visit").children].slice(MOST_VISITED).forEach((old) => old.remove());
    $("visit").hidden = false;
    $("no-examples").hidden = true;
    $("shelf").scrollLeft = 0;
  }

  button(source, src) {
    const image = make("img", { src, alt: source.name, title: source.name, width: 52, height: 52 });
    const properties = { type: "button", "data-id": source.known, "aria-pressed": "false", onclick: () => this.page.show(source) };
    return make("li", {}, make("button", properties, image));
  }

  // ---- a camera; browsers give one only to pages of this machine, or over https

  offerCamera() {
    $("camera").hidden = !navigator.mediaDevices?.getUserMedia;
    $("camera").addEventListener("click", () => this.openCamera());
    $("camera-close").addEventListener("click", () => $("camera-dialog").close());
    $("camera-dialog").addEventListener("close", () => {
      for (const track of $("camera-view").srcObject?.getTracks() ?? []) track.stop();
      $("camera-view").srcObject = null;
    });
    $("camera-take").addEventListener("click", () => this.takeFrame());
  }

  async openCamera() {
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      $("camera-view").srcObject = stream;
      $("camera-dialog").showModal();
    } catch {
      this.page.showError(new Error("No camera could be opened; allow it for this page, or choose a file."));
    }
  }

  takeFrame() {
    const view = $("camera-view");
    const canvas = make("canvas", { width: view.videoWidth, height: view.videoHeight });
    if (!canvas.width) return; // nothing has arrived yet
    canvas.getContext("2d").drawImage(view, 0, 0);
    const name = `camera ${new Date().toLocaleTimeString("en-GB")}.jpg`;
    canvas.toBlob((blob) => this.take(new File([blob], name)), "image/jpeg", 0.92);
    $("camera-dialog").close();
  }
}
