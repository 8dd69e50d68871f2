"use strict";
// Orders the clusters, and shows which kept regions are similar to a chosen one.

const panel = document.querySelector(".alike");
const heading = panel.querySelector("h2");
const similar = panel.querySelector(".regions");
let chosen = null;

// A copy of a tile whose button leads to the tile itself.
function linkedCopy(button, cosine) {
  const figure = button.closest("figure").cloneNode(true);
  const copy = figure.querySelector("button");
  copy.removeAttribute("id");
  copy.removeAttribute("aria-pressed");
  copy.addEventListener("click", () => {
    button.scrollIntoView({ block: "center" });
    choose(button);
    button.focus({ preventScroll: true });
  });
  if (cosine) {
    const note = figure.querySelector("figcaption .quiet");
    note.textContent = `cluster ${button.dataset.cluster}, ${cosine}`;
  }
  return figure;
}

function choose(button) {
  if (chosen) chosen.setAttribute("aria-pressed", "false");
  chosen = button;
  button.setAttribute("aria-pressed", "true");
  const pairs = button.dataset.alike.split(" ").filter(Boolean).map((pair) => pair.split(":"));
  heading.textContent = pairs.length
    ? `What cluster ${button.dataset.cluster} read here, and where clusters read alike in other images (cosine)`
    : "No region of another image was kept.";
  const others = pairs.map(([place, cosine]) => linkedCopy(document.getElementById(`region-${place}`), cosine));
  similar.replaceChildren(linkedCopy(button), ...others);
  panel.hidden = false;
}

function close() {
  panel.hidden = true;
  if (!chosen) return;
  chosen.setAttribute("aria-pressed", "false");
  chosen.focus();
  chosen = null;
}

function order(key) {
  const clusters = [...document.querySelectorAll(".cluster")];
  clusters.sort((a, b) => Number(b.dataset[key]) - Number(a.dataset[key]));
  document.getElementById("clusters").append(...clusters);
}

for (const button of document.querySelectorAll(".show")) {
  button.addEventListener("click", () => (button === chosen ? close() : choose(button)));
}
panel.querySelector("button").addEventListener("click", close);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !panel.hidden) close();
});
const select = document.querySelector(".order select");
select.addEventListener("change", () => order(select.value));
select.closest(".order").hidden = false;
document.documentElement.dataset.ready = "yes";
