"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const make = (tag, text = "", properties = {}) =>
    Object.assign(document.createElement(tag), { textContent: text, ...properties });

  // Colours: the system's choice unless a person chose. Storage may be forbidden (a sandboxed frame).
  const theme = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  const remember = (value) => { try { localStorage.setItem("sameshot-theme", value); } catch { /* only not remembered */ } };
  const remembered = () => { try { return localStorage.getItem("sameshot-theme"); } catch { return null; } };
  const paint = (value) => {
    if (value === "auto") delete root.dataset.theme; else root.dataset.theme = value;
    theme.textContent = `Colours: ${value}`;
    theme.value = value;
  };
  paint(themes.includes(remembered()) ? remembered() : "auto");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(theme.value) + 1) % 3];
    paint(next);
    remember(next);
  });

  // Tables: rows beyond the first few rest in a <template> until they are wanted.
  const tables = new Map();
  const exact = new Intl.NumberFormat("en");
  for (const box of all(".table")) {
    const first = Number(box.dataset.first);
    const body = box.querySelector("tbody");
    const rest = box.querySelector("template");
    const more = box.querySelector(".more");
    let rows = [...body.rows];
    let read = !rest;
    let sorted = null;
    let whole = false;
    let wanted = "";
    let texts = new Map();
    const load = () => {
      if (read) return;
      rows = [...rows, ...all("tr", document.importNode(rest.content, true))];
      rest.remove();
      read = true;
    };
    const show = () => {
      let found = rows;
      if (wanted) {
        for (const row of rows) if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
        // A name and its number end where the number ends: "rank 1" is not "rank 10".
        const exactly = /\d$/.test(wanted);
        const hit = (text) => {
          for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + 1))
            if (!exactly || !/\d/.test(text[at + wanted.length] ?? "")) return true;
          return false;
        };
        found = rows.filter((row) => hit(texts.get(row)));
      }
      const shown = whole ? found : found.slice(0, first);
      body.replaceChildren(...shown);
      const total = read ? found.length : Number(box.dataset.rows);
      if (more) {
        more.replaceChildren(total > shown.length ? `${shown.length} of ${exact.format(total)} rows. ` : `${exact.format(total)} rows. `);
        if (total > first) {
          const button = make("button", total > shown.length ? `Show all ${exact.format(total)}` : "Show fewer", { type: "button" });
          button.addEventListener("click", () => { load(); whole = !whole; show(); more.querySelector("button")?.focus(); });
          more.append(button);
        }
      }
    };
    const order = (index, head) => {
      load();
      const numeric = head.classList.contains("n");
      const descending = sorted?.index === index ? !sorted.descending : numeric;
      sorted = { index, descending };
      const key = (row) => {
        const cell = row.cells[index];
        if (!cell) return null;
        if (!numeric) return cell.dataset.v ?? cell.textContent;
        return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      };
      const collator = new Intl.Collator("en", { numeric: true });
      const keyed = rows.map((row) => [key(row), row]);
      keyed.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // unknown comes last either way
        const found = numeric ? a - b : collator.compare(a, b);
        return descending ? -found : found;
      });
      rows = keyed.map(([, row]) => row);
      for (const other of all("thead th", box)) other.setAttribute("aria-sort", other === head ? (descending ? "descending" : "ascending") : "none");
      show();
    };
    const heads = all("thead th", box);
    if (Number(box.dataset.rows) > 1) {
      heads.forEach((head, index) => {
        if (head.querySelector(".unseen")) return;
        const button = make("button", head.textContent, { type: "button" });
        if (head.title) button.title = head.title;
        head.replaceChildren(button);
        head.setAttribute("aria-sort", "none");
        button.addEventListener("click", () => order(index, head));
      });
    }
    let find = () => {};
    if (Number(box.dataset.rows) > 12) {
      const tools = make("div", "", { className: "tools" });
      const input = make("input", "", { type: "search", placeholder: "Filter rows" });
      input.setAttribute("aria-label", `Filter: ${box.querySelector(".scroll").getAttribute("aria-label")}`);
      const search = () => { load(); wanted = input.value.trim().toLowerCase(); show(); };
      input.addEventListener("input", search);
      tools.append(input);
      box.prepend(tools);
      find = (text) => { input.value = text; search(); };
    }
    tables.set(box.id, find);
    show();
    // The exact number behind a rounded one.
    body.addEventListener("pointerover", (event) => {
      const cell = event.target.closest?.("[data-v]");
      const unit = cell && heads[cell.cellIndex]?.dataset.u;
      if (unit && !cell.title) cell.title = `${exact.format(Number(cell.dataset.v))} ${unit}`;
      const name = event.target.closest?.(".name");
      if (name && !name.title) name.title = name.textContent;
    });
  }

  // A link to evidence looks for the rank it is about. (Browsers open the <details> that a fragment lies in.)
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link) tables.get(decodeURIComponent(link.hash.slice(1)))?.(link.dataset.find ?? "");
  });
  addEventListener("beforeprint", () => { for (const details of all("details")) details.open = true; });

  // Pictures: what is under the pointer, or under a cursor that the arrow keys move.
  let first = true;
  for (const figure of all(".picture")) {
    const image = figure.querySelector("img");
    const area = figure.querySelector(".canvas");
    const lanes = figure.dataset.lanes.split("\n");
    const colours = all(".legend li", figure).map((item) => {
      const [r, g, b, a] = getComputedStyle(item.firstElementChild).backgroundColor.match(/[\d.]+/g).map(Number);
      return { r, g, b, a: a === undefined ? 255 : Math.round(a * 255), title: item.textContent };
    });
    const said = make("p", first ? "Point at the picture, or focus it and use the arrow keys." : "", { className: "readout" });
    first = false;
    said.setAttribute("aria-live", "polite");
    figure.append(said);
    const cursor = make("i", "", { className: "cursor", hidden: true });
    area.append(cursor);
    area.tabIndex = 0;
    area.setAttribute("role", "application");
    area.setAttribute("aria-label", `${image.alt} Arrow keys read it lane by lane.`);
    let pixels = null;
    const decode = () => {
      if (pixels || !image.naturalWidth) return pixels;
      const canvas = make("canvas", "", { width: image.naturalWidth, height: image.naturalHeight });
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      pixels = context.getImageData(0, 0, canvas.width, canvas.height);
      return pixels;
    };
    const duration = (ns) => ns >= 1e9 ? `${(ns / 1e9).toFixed(2)} s` : ns >= 1e6 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e3).toFixed(1)} µs`;
    const at = { x: 0, y: 0 };
    const tell = () => {
      if (!decode()) return;
      const height = pixels.height / lanes.length;
      const lane = Math.min(Math.floor(at.y / height), lanes.length - 1);
      const from = 4 * (at.y * pixels.width + at.x);
      const [r, g, b, a] = pixels.data.slice(from, from + 4);
      const near = (c) => Math.abs(c.a - a) * 2 + (Math.abs(c.r - r) + Math.abs(c.g - g) + Math.abs(c.b - b));
      const part = a && colours.reduce((best, c) => (near(c) < near(best) ? c : best), colours[0]);
      said.textContent = `${lanes[lane]} at ${duration((at.x / pixels.width) * Number(figure.dataset.span))}: ${part ? part.title : "nothing recorded"}`;
    };
    area.addEventListener("pointermove", (event) => {
      if (!decode()) return;
      const box = image.getBoundingClientRect();
      at.x = Math.max(0, Math.min(pixels.width - 1, Math.floor(((event.clientX - box.left) / box.width) * pixels.width)));
      at.y = Math.max(0, Math.min(pixels.height - 1, Math.floor(((event.clientY - box.top) / box.height) * pixels.height)));
      cursor.hidden = true;
      tell();
    });
    area.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const move = moves[event.key];
      if (!move || !decode()) return;
      event.preventDefault();
      const height = pixels.height / lanes.length;
      const step = Math.max(1, Math.round(pixels.width / (event.shiftKey ? 12 : 120)));
      at.x = Math.max(0, Math.min(pixels.width - 1, at.x + move[0] * step));
      const lane = Math.max(0, Math.min(lanes.length - 1, Math.floor(at.y / height) + move[1] * (event.shiftKey ? 10 : 1)));
      at.y = Math.floor(lane * height + height / 2.5);
      Object.assign(cursor.style, { left: `${(100 * at.x) / pixels.width}%`, top: `${(100 * lane) / lanes.length}%`, width: "5px", height: `${100 / lanes.length}%` });
      cursor.hidden = false;
      tell();
    });
  }
})();
