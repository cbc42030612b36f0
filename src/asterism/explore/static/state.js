// What the page shows, and its form as the fragment of the address, which restores all of it.

const DEFAULTS = {
  a: "bigbird()", b: null, n: 4096, layerA: 0, headA: 0, layerB: 0, headB: 0, view: null, theme: "auto",
  open: "", heads: 8, dtype: "float32", direction: "forward", proof: 256, shown: "Star", reach: 0,
  t: null, file: 0, layerM: 0, headM: 0, query: null, viewM: null,
};
// Of a model: its text, or whether it reads its file; layer; head, of which 0 is the mean of all; query; view.
const MOST_IN_ADDRESS = 2000;
const VIEWS = ["view", "viewM"];
const NUMBERS = { n: [1, 2 ** 20], layerA: [0, 2 ** 30], layerB: [0, 2 ** 30], headA: [0, 4096], headB: [0, 4096], heads: [1, 4096],
  proof: [16, 4096], reach: [0, 254], file: [0, 1], layerM: [0, 2 ** 16], headM: [0, 2 ** 16], query: [0, 2 ** 20] };
const CHOICES = { theme: ["auto", "light", "dark"], dtype: ["float32", "bfloat16"], direction: ["forward", "training"] };

export const state = { ...DEFAULTS };

export function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, DEFAULTS);
  for (const [name, value] of given) {
    if (name in NUMBERS) {
      const [least, most] = NUMBERS[name];
      const parsed = Number(value);
      if (Number.isInteger(parsed) && parsed >= least && parsed <= most) state[name] = parsed;
    } else if (name in CHOICES) {
      if (CHOICES[name].includes(value)) state[name] = value;
    } else if (VIEWS.includes(name)) {
      const parts = value.split(",").map(Number);
      if (parts.length === 3 && parts.every(Number.isFinite) && parts[2] >= 1) {
        state[name] = { q: parts[0], k: parts[1], side: parts[2] };
      }
    } else if (name in DEFAULTS) {
      state[name] = value;
    }
  }
}

export function write() {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === DEFAULTS[name] || value === null || (name === "t" && value.length > MOST_IN_ADDRESS)) continue;
    told.set(name, VIEWS.includes(name) ? [value.q, value.k, value.side].map((one) => Math.round(one)).join(",") : value);
  }
  const hash = `#${told}`;
  if (hash !== location.hash) history.replaceState(null, "", hash === "#" ? location.pathname : hash);
}
