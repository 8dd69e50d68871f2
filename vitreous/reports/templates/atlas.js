"use strict";
// Searches and orders the clusters, and shows which kept regions are similar to a chosen one.

const panel = document.querySelector(".alike");
const heading = panel.querySelector("h2");
const similar = panel.querySelector(".regions");
let chosen = null;

function openAround(element) {
  const cluster = element?.closest("details.cluster");
  if (cluster) cluster.open = true;
}

// A copy of a tile whose button leads to the tile itself.
function linkedCopy(button, cosine) {
  const figure = button.closest("figure").cloneNode(true);
  const copy = figure.querySelector("button");
  copy.removeAttribute("id");
  copy.removeAttribute("aria-pressed");
  copy.addEventListener("click", () => {
    openAround(button);
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

function search(asked) {
  const clusters = [...document.querySelectorAll(".cluster")];
  for (const cluster of clusters) cluster.hidden = !cluster.dataset.words.includes(asked);
  const found = clusters.filter((cluster) => !cluster.hidden).length;
  tools.querySelector("output").textContent = asked ? `${found} of ${clusters.length} clusters` : "";
}

// A link to a cluster opens it, and shows it even where the search left it out.
function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target?.matches(".cluster")) return;
  target.hidden = false;
  target.open = true;
  target.scrollIntoView();
}

const tools = document.querySelector(".order");
tools.querySelector("select").addEventListener("change", (event) => order(event.target.value));
tools.querySelector("input").addEventListener("input", (event) => search(event.target.value.trim().toLowerCase()));
tools.addEventListener("submit", (event) => event.preventDefault());
tools.hidden = false;
window.addEventListener("hashchange", follow);
follow();
document.documentElement.dataset.ready = "yes";
