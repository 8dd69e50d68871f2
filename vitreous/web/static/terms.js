// Words of the page in plain English, where the pointer or the focus rests on one; and what the keys do.

import { $, make } from "./draw.js";

const TERMS = {
  clusters: "Instead of comparing every patch with every other, the model sums patches up in a few clusters and lets every patch read those. A cluster has a map: how much of it comes from where.",
  stage: "The model works in stages, each on a coarser grid than the one before. Each has clusters of its own.",
  "gathers from": "Bright: the patches that this cluster is made of. It sums them up.",
  "is read by": "Bright: the patches that take something out of this cluster. They need not be those it is made of.",
  "no load": "All clusters of this stage were replaced with the plain average of all patches, and the answer hardly changed. For this picture they carry nothing, however sharp their maps look.",
  load: "How much the log-odds change when all clusters of this stage are replaced with the plain average of all patches.",
  "log-odds": "How sure the model is, on a scale without ends: the logarithm of the odds. −1 makes the odds 2.7 times worse; from 0.1 on it is worth looking at.",
  logit: "The number that the model gives a class before all of them are turned into probabilities.",
  "ranked by": "How important a cluster is can be measured in several ways. “Ablation” takes it away and looks what is lost; the line below says what the chosen way measures.",
  groups: "Clusters whose maps look alike are taken together: one alone is often replaced by its neighbours, so that switching it off changes nothing.",
  passes: "One run of the model over the picture. A map that needs 30 passes takes about 30 times as long as the answer itself.",
  "insertion − deletion": "How true a map is: what it calls important is shown first, or hidden first, and the answer is watched. Higher is better; a map that knows nothing gets about 0.",
};

const KEYS = {
  "O (hold)": "the picture without a map",
  H: "hide a part: then drag over the picture",
  U: "undo: clusters on, nothing hidden",
  "1 … 9": "explain the first, second, … answer",
  "[ and ]": "the map before, the map after",
  S: "the next stage",
  "← → ↑ ↓": "in the picture: from patch to patch",
  Esc: "leave a patch, or stop drawing",
  "?": "this list",
};

// Marks a word so that its meaning shows.
export function explainTerm(element, term) {
  element.dataset.term = term;
  if (!element.closest("label, button")) element.tabIndex = 0;
  element.setAttribute("aria-describedby", "tip");
  return element;
}

function show(element) {
  const tip = $("tip");
  tip.textContent = TERMS[element.dataset.term];
  tip.hidden = false;
  const box = element.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - 6 : below}px`;
}

const hide = () => { $("tip").hidden = true; };

export function offerTerms() {
  for (const element of document.querySelectorAll("[data-term]")) explainTerm(element, element.dataset.term);
  for (const [begin, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(begin, (event) => {
      const element = event.target.closest?.("[data-term]") ?? event.target.parentElement?.querySelector(":scope > input:focus-visible + [data-term]");
      if (element) show(element);
    });
    document.addEventListener(end, hide);
  }
  addEventListener("scroll", hide, { passive: true });
  const rows = (list) => Object.entries(list).flatMap(([name, text]) => [make("dt", { textContent: name }), make("dd", { textContent: text })]);
  $("shortcut-list").replaceChildren(...rows(KEYS));
  $("term-list").replaceChildren(...rows(TERMS));
  $("help").addEventListener("click", () => $("shortcuts").showModal());
  $("shortcuts-close").addEventListener("click", () => $("shortcuts").close());
}

// `actions` has a function for each key. Keys that somebody types into a field are left alone.
export function offerKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox], [type=radio], [type=range], [type=file]), select, textarea")) return;
    if (event.key === "?") $("shortcuts").showModal();
    else if (/^[1-9]$/.test(event.key)) actions.answer(Number(event.key));
    else actions[event.key.toLowerCase()]?.(event);
  });
}
