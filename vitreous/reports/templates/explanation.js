// Draws any map over the picture when it is pointed at or chosen, and lists the clusters a place attends to. Without this
// script the page still shows the pictures, the most important maps and all numbers. Stands behind heat.js.

const LISTED_CLUSTERS = 5;

// The cell is copied to a canvas of its own first: smoothing across its edge would mix in the neighbouring map.
function cellOf(atlas, index) {
  const rows = Number(atlas.dataset.rows);
  const cell = document.createElement("canvas");
  cell.width = atlas.naturalWidth;
  cell.height = rows;
  cell.getContext("2d").drawImage(atlas, 0, index * rows, cell.width, rows, 0, 0, cell.width, rows);
  return cell;
}

// Outlines of the places of a grid for which `chosen` holds.
function outline(canvas, rows, columns, chosen) {
  const context = canvas.getContext("2d");
  const [width, height] = [canvas.width / columns, canvas.height / rows];
  context.clearRect(0, 0, canvas.width, canvas.height);
  for (const [stroke, thickness] of [["#000c", 4], ["#fff", 2]]) {
    context.strokeStyle = stroke;
    context.lineWidth = thickness;
    context.beginPath();
    for (let r = 0; r < rows; r += 1) {
      for (let c = 0; c < columns; c += 1) {
        if (!chosen(r, c)) continue;
        const sides = [
          [r === 0 || !chosen(r - 1, c), c, r, c + 1, r],
          [r === rows - 1 || !chosen(r + 1, c), c, r + 1, c + 1, r + 1],
          [c === 0 || !chosen(r, c - 1), c, r, c, r + 1],
          [c === columns - 1 || !chosen(r, c + 1), c + 1, r, c + 1, r + 1],
        ];
        for (const [border, x, y, toX, toY] of sides) {
          if (!border) continue;
          context.moveTo(x * width, y * height);
          context.lineTo(toX * width, toY * height);
        }
      }
    }
    context.stroke();
  }
}

function activateViewer(section, table) {
  const original = section.querySelector(".original");
  const viewer = section.querySelector(".viewer");
  const canvas = viewer.querySelector(".heat");
  const places = section.querySelector(".places");
  const caption = viewer.querySelector("figcaption");
  const strength = viewer.querySelector("input");
  const buttons = [...section.querySelectorAll(".show"), ...document.querySelectorAll(`.show[data-for="${section.id}"]`)];
  const atlases = Object.fromEntries([...viewer.querySelectorAll(".atlas")].map((a) => [a.dataset.stack, a]));
  for (const one of [canvas, places]) {
    if (!one) continue;
    one.width = original.naturalWidth;
    one.height = original.naturalHeight;
  }
  const picture = pixels(original, canvas.width, canvas.height);
  let chosen = 0;
  let shown = 0;

  function draw() {
    const { stack, cell } = buttons[shown].dataset;
    const small = cellOf(atlases[stack], Number(cell));
    const heat = pixels(small, canvas.width, canvas.height).data;
    canvas.getContext("2d").putImageData(blend(picture, heat, Number(strength.value) / 100, table), 0, 0);
    if (places && stack === "clusters") {
      const values = pixels(small, small.width, small.height).data;
      outline(places, small.height, small.width, (r, c) => values[4 * (r * small.width + c)] >= 128);
    } else if (places) {
      outline(places, 1, 1, () => false);
    }
  }

  function show(index) {
    shown = index;
    caption.textContent = buttons[index].dataset.caption;
    canvas.setAttribute("aria-label", "Heat map: " + buttons[index].dataset.caption);
    draw();
  }

  function choose(index) {
    chosen = (index + buttons.length) % buttons.length;
    const { stack, cell } = buttons[chosen].dataset;
    buttons.forEach((button) => {
      const same = button.dataset.stack === stack && button.dataset.cell === cell;
      button.setAttribute("aria-pressed", String(same));
    });
    show(chosen);
  }

  buttons.forEach((button, i) => {
    button.addEventListener("click", () => choose(i));
    button.addEventListener("pointerenter", () => show(i));
    button.addEventListener("pointerleave", () => show(chosen));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(i + step);
      buttons[chosen].focus();
    });
  });
  viewer.querySelector(".previous").addEventListener("click", () => choose(chosen - 1));
  viewer.querySelector(".next").addEventListener("click", () => choose(chosen + 1));
  strength.addEventListener("input", draw);
  viewer.hidden = false;
  choose(Math.max(0, buttons.findIndex((button) => button.dataset.first === "yes")));
  return { buttons, restore: () => show(chosen) };
}

// A place of the picture: its outline, and how its attention is spread over the clusters.
function activatePlaces(section, view) {
  const places = section.querySelector(".places");
  if (!places) return;
  const attention = section.querySelector(".attention");
  const list = section.querySelector(".attended");
  const rows = Number(attention.dataset.rows);
  const columns = attention.naturalWidth;
  const clusters = Number(attention.dataset.clusters);
  const values = pixels(attention, columns, rows * clusters).data;
  const highest = Number(attention.dataset.highest);
  let at = [Math.floor(rows / 2), Math.floor(columns / 2)];

  function showPlace(row, column) {
    at = [row, column];
    outline(places, rows, columns, (r, c) => r === row && c === column);
    const spread = Array.from({ length: clusters }, (_, m) => {
      return [m, (values[4 * ((m * rows + row) * columns + column)] / 255) * highest];
    });
    const most = spread.sort((a, b) => b[1] - a[1]).slice(0, LISTED_CLUSTERS);
    const heading = document.createElement("p");
    heading.textContent = `Row ${row + 1}, column ${column + 1} looks at`;
    list.replaceChildren(heading, ...most.map(([m, share]) => attentionRow(m, share, most[0][1])));
    highlight(new Set(most.filter(([, share]) => share >= most[0][1] / 2).map(([m]) => String(m))));
  }

  function attentionRow(m, share, largest) {
    const row = document.createElement("div");
    const [name, track, bar, figure] = ["span", "span", "i", "span"].map((tag) => document.createElement(tag));
    name.textContent = `cluster ${m}`;
    bar.style.width = `${Math.max(2, (100 * share) / (largest || 1))}%`;
    track.append(bar);
    figure.textContent = `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
    row.append(name, track, figure);
    return row;
  }

  function highlight(numbers) {
    for (const button of view.buttons) {
      const attended = button.dataset.stack === "clusters" && numbers.has(button.dataset.cell);
      button.classList.toggle("highlighted", attended);
    }
  }

  function clearPlace() {
    list.replaceChildren();
    highlight(new Set());
    view.restore();
  }

  places.addEventListener("pointermove", (event) => {
    const box = places.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    showPlace(Math.min(Math.max(row, 0), rows - 1), Math.min(Math.max(column, 0), columns - 1));
  });
  places.addEventListener("pointerleave", clearPlace);
  places.addEventListener("focus", () => showPlace(...at));
  places.addEventListener("blur", clearPlace);
  places.addEventListener("keydown", (event) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    showPlace(Math.min(Math.max(at[0] + step[0], 0), rows - 1), Math.min(Math.max(at[1] + step[1], 0), columns - 1));
  });
}

async function start() {
  const table = colourTable(document.body.dataset.colours.split(" "));
  for (const section of document.querySelectorAll(".image")) {
    if (!section.querySelector(".viewer")) continue;
    const images = [...section.querySelectorAll(".original, .atlas, .attention")];
    await Promise.all(images.map((image) => image.decode()));
    activatePlaces(section, activateViewer(section, table));
  }
  document.documentElement.dataset.ready = "yes";
}

start();
