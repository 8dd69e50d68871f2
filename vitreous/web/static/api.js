// Requests to the server. A busy server is asked again a few times; every refusal becomes an Error with its message.

const MOST_TRIES = 6;

async function ask(path, options) {
  for (let trial = 1; ; trial += 1) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is it still running?");
    }
    if (response.ok) return response;
    if (response.status !== 503 || trial === MOST_TRIES) throw new Error(await sentence(response));
    await new Promise((go) => setTimeout(go, 1000 * Number(response.headers.get("Retry-After") || 1)));
  }
}

async function sentence(response) {
  try {
    const { error } = await response.json();
    return error[0].toUpperCase() + error.slice(1);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

// Questions to one of the models of the server, which answers under `base`.
export function modelAt(base) {
  const address = (path, values = {}) => {
    const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== undefined));
    return `${base}/${path}${query.size ? `?${query}` : ""}`;
  };

  async function get(path, values, signal) {
    const answer = await (await ask(address(path, values), { signal })).json();
    signal?.throwIfAborted(); // cancelled when it had already arrived
    return answer;
  }

  async function file(path, values) {
    return (await ask(address(path, values))).blob();
  }

  async function upload(picture, name) {
    const options = { method: "POST", body: picture, headers: { "Content-Type": "application/octet-stream" } };
    return (await ask(address("images", { name }), options)).json();
  }

  return { address, get, file, upload };
}

export const { address, get, file, upload } = modelAt("api");

// Of several requests for the same part of the page only the last one counts: `latest.next()` cancels the others.
export class Latest {
  next() {
    this.controller?.abort();
    this.controller = new AbortController();
    return this.controller.signal;
  }
}
