"use strict";
// Sorts a table by the column whose heading is pressed, and shows the rows that hold what is searched for. Without this
// script the tables are in the order in which they were written.

function valueOf(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = Number.parseFloat(text.replaceAll(",", ""));
  return { text, number };
}

// Numbers by their size, what is none after them, and text by the alphabet.
function compare(a, b, numeric) {
  if (!numeric) return a.text.localeCompare(b.text, "en", { numeric: true });
  if (Number.isNaN(a.number) || Number.isNaN(b.number)) return Number.isNaN(a.number) - Number.isNaN(b.number);
  return a.number - b.number;
}

function sortBy(table, heading) {
  const column = heading.cellIndex;
  const numeric = heading.classList.contains("number");
  const down = heading.getAttribute("aria-sort") ? heading.getAttribute("aria-sort") === "ascending" : numeric;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row, valueOf(row, column)]);
  const unknown = (value) => numeric && Number.isNaN(value.number);
  rows.sort(([, a], [, b]) => (down && !unknown(a) && !unknown(b) ? compare(b, a, numeric) : compare(a, b, numeric)));
  body.append(...rows.map(([row]) => row));
}

function activateTable(table) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading));
  }
}

function activateSearch(form) {
  const rows = [...document.getElementById(form.dataset.table).tBodies[0].rows];
  const said = form.querySelector("output");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("input").addEventListener("input", (event) => {
    const asked = event.target.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(asked);
    said.textContent = asked ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  });
}

document.querySelectorAll("table.sortable").forEach(activateTable);
document.querySelectorAll(".search[data-table]").forEach(activateSearch);
document.documentElement.dataset.ready = "yes";
