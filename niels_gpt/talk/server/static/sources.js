// Sources of an answer: underline what stands in training documents, list the sections that a question finds, and search.
const [panel, words, hits, offers, withNotes, opener] =
  ["find", "words", "hits", "offers", "notes", "opener"].map((id) => document.getElementById(id));
const LETTER = /[\p{L}\p{N}]/u;
const OPENERS = {
  vscode: (path, line) => `vscode://file${path.startsWith("/") ? "" : "/"}${encodeURI(path)}:${line}`,
  obsidian: (path) => `obsidian://open?path=${encodeURIComponent(path)}`,
};

let abilities = {}; // what the server offers: {sources, reads_notes}
let pending = 0; // timer of a search

// Show search box and switches if the server has an index; `request` fetches with the API key.
export function offer(offered, request) {
  abilities = offered ?? {};
  panel.hidden = offers.hidden = !abilities.sources;
  opener.value = stored("opener") ?? "vscode";
  withNotes.checked = stored("notes") === "yes";
  words.oninput = () => { clearTimeout(pending); pending = setTimeout(search, 200, request); };
}

export function wanted() {
  return abilities.sources ? { niels_gpt: { trace: true, notes: withNotes.checked } } : {};
}

// Show the sources of an answer in its article, below the text that `body` already has.
export function showSources(article, { sources }) {
  const body = article.querySelector(".text");
  article.querySelectorAll(".sources").forEach((old) => old.remove());
  if (!sources) return;
  const below = element("div", "sources");
  if (sources.notes) below.append(...sections(sources.notes));
  body.after(below);
  underline(body, sources.trace?.[0] ?? [], below);
}

async function search(request) {
  const typed = words.value.trim();
  try {
    const found = typed ? (await (await request(`/v1/find?q=${encodeURIComponent(typed)}&limit=10`)).json()).data : [];
    if (typed === words.value.trim()) hits.replaceChildren(...found.map(section));
    hits.dataset.none = typed ? "Nothing found." : "";
  } catch (error) {
    hits.replaceChildren();
    hits.dataset.none = error.message;
  }
}

function sections(notes) {
  const list = element("ol", "notes"), line = element("p", "soft");
  list.append(...notes.map(section));
  line.textContent = !notes.length ? "No section of your notes has these words."
    : abilities.reads_notes ? "From your notes:" : "This model cannot read notes; these sections are the answer:";
  return [line, list];
}

function section(found) {
  const item = place(found);
  if (found.headings) item.children[0].after(` ${found.headings}`);
  if (found.shared) item.append(element("span", "shared", "shares words with the answer"));
  return item;
}

// Return a list item for a place: file and line, a link if the file is on this machine, and the line of text.
function place({ source, file, line, context, path }) {
  const item = element("li", ""), name = element(path && opener.value !== "path" ? "a" : "span", "file");
  name.textContent = path && opener.value === "path" ? `${path}:${line}` : `${source}: ${file}:${line}`;
  if (name.tagName === "A") name.href = OPENERS[opener.value](path, line);
  item.append(name, element("div", "context", context));
  return item;
}

// Underline the spans in the rendered text. Only letters and digits are compared, since Markdown drops other characters.
// Where spans overlap, the rarest, which comes first, has the letters.
function underline(body, spans, below) {
  const letters = [], walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    for (let at = 0; at < walker.currentNode.data.length; at += step(walker.currentNode.data, at))
      if (LETTER.test(character(walker.currentNode.data, at))) letters.push({ node: walker.currentNode, at });
  const text = letters.map(({ node, at }) => character(node.data, at));
  let from = 0;
  const starts = new Map([...spans].sort((a, b) => a.start - b.start).map((span) => {
    const wanted = [...span.text].filter((one) => LETTER.test(one)), start = indexOf(text, wanted, from);
    if (start >= 0) from = start + 1;
    return [span, { start, length: wanted.length }];
  }));
  for (const span of spans) {
    const { start, length } = starts.get(span);
    if (start >= 0) letters.slice(start, start + length).forEach((letter) => { letter.span ??= span; });
  }
  const nodes = new Map();
  for (const letter of letters.filter(({ span }) => span)) {
    const runs = nodes.get(letter.node) ?? [], last = runs.at(-1), end = letter.at + step(letter.node.data, letter.at);
    if (last?.span === letter.span) last.end = end;
    else runs.push({ span: letter.span, start: letter.at, end });
    nodes.set(letter.node, runs);
  }
  const seen = new Set();
  for (const [node, runs] of nodes)
    for (const { span, start, end } of runs.reverse()) {
      const mark = element("mark", "traced"), part = node.splitText(start);
      part.splitText(end - start);
      part.replaceWith(mark);
      mark.append(part);
      mark.onclick = () => showPlaces(mark, span, below);
      mark.title = "show where this stands in training documents";
      mark.dataset.span = spans.indexOf(span);
    }
  for (const mark of body.querySelectorAll("mark.traced")) {
    if (seen.has(mark.dataset.span)) continue; // one stop for the keyboard for each span
    seen.add(mark.dataset.span);
    Object.assign(mark, { tabIndex: 0, role: "button", ariaExpanded: "false" });
    mark.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      mark.click();
    };
  }
}

// Show the places of a span below the answer, or hide them if they are shown.
function showPlaces(mark, span, below) {
  const shown = below.querySelector(".places"), marks = mark.closest(".text").querySelectorAll("mark.traced");
  const open = shown?.dataset.span !== mark.dataset.span;
  shown?.remove();
  for (const one of marks) {
    const own = open && one.dataset.span === mark.dataset.span;
    one.classList.toggle("chosen", own);
    if (one.ariaExpanded) one.ariaExpanded = String(own);
  }
  if (!open) return;
  const places = element("div", "places"), list = element("ul", ""), times = element("p", "soft");
  times.textContent = `${span.count === 1 ? "Once" : `${span.count} times`} in training documents:`;
  list.append(...span.places.map(place));
  places.dataset.span = mark.dataset.span;
  places.role = "status";
  places.append(times, list);
  below.prepend(places);
}

function indexOf(text, wanted, from) {
  for (let start = from; start + wanted.length <= text.length; start++)
    if (wanted.every((one, i) => text[start + i] === one)) return start;
  return -1;
}

function character(text, at) {
  return String.fromCodePoint(text.codePointAt(at));
}

function step(text, at) {
  return text.codePointAt(at) > 0xffff ? 2 : 1;
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  if (className === "context") made.dir = "auto";
  return made;
}

function stored(name) {
  try { return localStorage.getItem(`niels_gpt.${name}`); } catch { return null; }
}

function store(name, value) {
  try { localStorage.setItem(`niels_gpt.${name}`, value); } catch { /* storage not allowed: as chosen until reload */ }
}

withNotes.addEventListener("change", () => store("notes", withNotes.checked ? "yes" : "no"));
opener.addEventListener("change", () => store("opener", opener.value));
