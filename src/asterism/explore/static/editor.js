// The text of a pattern, with completion of names and arguments, as a combobox.

const WORD = /[A-Za-z_][A-Za-z_0-9]*$/;

export class Editor {
  constructor(input, list, words, changed) {
    Object.assign(this, { input, list, words, changed, options: [], active: -1 });
    input.addEventListener("input", () => {
      if (input.value.length < 20_000) this.#offer();
      changed();
    });
    input.addEventListener("keydown", (event) => this.#key(event));
    input.addEventListener("blur", () => this.#close());
    list.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the input keeps the focus
      const item = event.target.closest("li");
      if (item) this.#take(Number(item.dataset.at));
    });
  }

  #offer() {
    const before = this.input.value.slice(0, this.input.selectionStart);
    const word = before.match(WORD)?.[0] ?? "";
    const call = enclosing(before.slice(0, before.length - word.length));
    const known = this.words.find((one) => one.name === call?.name);
    const used = new Set([...(call?.inside ?? "").matchAll(/([a-z_]+)\s*=/g)].map((match) => match[1]));
    const isValue = /=\s*$/.test(before.slice(0, before.length - word.length));
    const named = (known?.arguments ?? []).filter((one) => one.includes("=") || !/^\*|^(patterns|inner|parts)/.test(one));
    const ofCall = isValue ? [] : named
      .filter((one) => one.startsWith(word) && !used.has(one.split("=")[0]) && (word || /[(,]\s*$/.test(before)))
      .map((one) => ({ insert: `${one.split("=")[0]}=`, label: one, meaning: `argument of ${known.name}` }));
    const ofNames = word === "" || isValue ? [] : this.words
      .filter((one) => one.name.startsWith(word))
      .map((one) => ({ insert: `${one.name}(`, label: `${one.name}(${one.arguments.join(", ")})`, meaning: one.meaning }));
    this.options = [...ofCall, ...ofNames].filter((one) => one.insert !== word).slice(0, 12);
    this.word = word;
    this.#render(-1);
  }

  #render(active) {
    this.active = active;
    this.list.hidden = this.options.length === 0;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.list.replaceChildren(...this.options.map(({ label, meaning }, at) => {
      const item = document.createElement("li");
      Object.assign(item, { id: `${this.list.id}-${at}`, role: "option", ariaSelected: String(at === active) });
      item.dataset.at = at;
      item.append(Object.assign(document.createElement("code"), { textContent: label }),
        Object.assign(document.createElement("small"), { textContent: meaning }));
      return item;
    }));
    if (active < 0) this.input.removeAttribute("aria-activedescendant");
    else {
      this.input.setAttribute("aria-activedescendant", `${this.list.id}-${active}`);
      this.list.children[active].scrollIntoView({ block: "nearest" });
    }
  }

  #close() {
    this.options = [];
    this.#render(-1);
  }

  #take(at) {
    const { insert } = this.options[at];
    const { selectionStart: end, value } = this.input;
    const start = end - this.word.length;
    const rest = value.slice(end);
    const follows = insert.endsWith("(") && rest.startsWith("(") ? insert.slice(0, -1) : insert;
    this.input.value = value.slice(0, start) + follows + rest;
    this.input.setSelectionRange(start + follows.length, start + follows.length);
    this.#offer();
    this.changed();
  }

  #key(event) {
    const count = this.options.length;
    if (!count) return;
    if (event.key === "ArrowDown") this.#render((this.active + 1) % count);
    else if (event.key === "ArrowUp") this.#render((this.active - 1 + count) % count);
    else if (event.key === "Enter" && this.active >= 0) this.#take(this.active);
    else if (event.key === "Escape") this.#close();
    else return;
    event.preventDefault();
  }
}

// The call in whose parentheses the end of a text stands: its name, and what it holds so far.
function enclosing(text) {
  let depth = 0;
  for (let at = text.length - 1; at >= 0; at--) {
    if (text[at] === ")") depth++;
    else if (text[at] === "(" && depth-- === 0) {
      return { name: text.slice(0, at).match(WORD)?.[0] ?? "", inside: text.slice(at + 1) };
    }
  }
  return null;
}
