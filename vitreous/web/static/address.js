// What is shown, in the address: a link to it shows the same again, as far as the server still has the picture.

export function readView() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

// A view is { picture, class, stage, cluster, off, map, hide, beside }; what is null is left out. Another picture is a step in the history of the browser.
export function writeView(view) {
  const values = Object.entries(view).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const hash = `#${new URLSearchParams(values).toString().replaceAll("%2C", ",")}`;
  if (hash === location.hash) return;
  const another = readView().picture !== view.picture;
  history[another ? "pushState" : "replaceState"](null, "", hash);
}

export function onOtherView(show) {
  addEventListener("popstate", () => show(readView()));
}
