// Questions to the server. Each Asker has one question on its way; of those that come meanwhile only the newest is kept,
// so that fast typing never queues up work that nobody will look at.

async function send(question) {
  try {
    const response = await fetch("/ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
    });
    return await response.json();
  } catch {
    return { refused: { code: "no-server", message: "the server does not answer: is `asterism explore` still running?", place: null } };
  }
}

export class Asker {
  #running = false;
  #waiting = null;

  // The reply, {answer} or {refused}; null where a newer question took this one's place.
  ask(question) {
    return new Promise((resolve) => {
      this.#waiting?.resolve(null);
      this.#waiting = { question, resolve };
      if (!this.#running) this.#run();
    });
  }

  async #run() {
    this.#running = true;
    while (this.#waiting) {
      const { question, resolve } = this.#waiting;
      this.#waiting = null;
      resolve(await send(question));
    }
    this.#running = false;
  }
}

export const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

export const number = (value) => Math.round(value).toLocaleString("en-US");

// 1,500,000 as 1.5 M: for axes and readouts.
export function short(value, unit = "") {
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "\u00b5"], [1e-9, "n"]];
  const [scale, prefix] = steps.find(([size]) => Math.abs(value) >= size * 0.9995) ?? [1, ""];
  const text = (value / scale).toPrecision(3).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  const plain = text.includes("e") ? String(Math.round(value / scale)) : text;
  return unit || prefix ? `${plain} ${prefix}${unit}`.trim() : plain;
}

// A function that runs once nothing has called it for so long.
export function settled(milliseconds, run) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(run, milliseconds);
  };
}
