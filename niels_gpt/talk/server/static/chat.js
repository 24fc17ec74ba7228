import { markdown } from "./markdown.js";

const [chat, form, problem, editBar, leave, text, send, stop, fresh, unlock, why, keyField, card] =
  ["chat", "ask", "problem", "editing", "leave", "text", "send", "stop", "new", "unlock", "why", "key", "card"]
    .map((id) => document.getElementById(id));
const again = button("Ask again", "ask the last question again: this answer goes", askAgain); // at the last answer alone

// User and assistant by turns: {role, content}; of an answer also how many of the first messages were forgotten by then.
let messages = [];
let answering = null; // an AbortController while an answer is coming
let editing = null; // {at: which message is being edited, draft: what was in the input box}
let key = read("key")?.match(/^[ -~]+$/)?.[0]; // anything else could not be sent

// Ask a question as message number `at`; what came after goes, but only once an answer has begun: a question that is
// refused leaves no trace. False where it was, and is to be given back.
async function ask(question, at) {
  const before = messages, shown = articles();
  const kept = messages.slice(0, at), asked = [...kept, { role: "user", content: question }];
  const answer = { role: "assistant", content: "", forgotten: forgottenBy(kept) };
  const mine = (answering = new AbortController());
  messages = asked;
  chat.replaceChildren(...shown.slice(0, at));
  show(asked.at(-1));
  const article = show(answer);
  article.ariaBusy = "true";
  toEnd();
  busy(true);
  say("");
  let whole = false;
  try {
    // What is forgotten is not sent again, so that a request does not grow with the chat.
    for await (const part of parts(asked.slice(answer.forgotten), mine.signal)) {
      answer.forgotten = forgottenBy(kept) + (part.forgotten_messages ?? 0);
      const piece = part.choices[0].delta.content;
      if (!piece || answering !== mine) continue;
      answer.content += piece;
      messages = [...asked, answer];
      following(() => fill(article, answer));
      if (answer.content === piece) settle();
    }
    whole = true;
  } catch (error) {
    if (answering === mine && error.name !== "AbortError") say(error.message);
  }
  if (answering !== mine) return true; // a new chat was quicker
  article.ariaBusy = null;
  const begun = whole || answer.content !== "";
  messages = begun ? [...asked, answer] : before;
  if (!begun) chat.replaceChildren(...shown);
  answering = null;
  busy(false);
  settle();
  if (!begun) toEnd();
  keep();
  text.focus();
  return begun;
}

function askAgain() {
  stopEditing();
  ask(messages.at(-2).content, messages.length - 2);
}

// The parts of an answer, as they come; an Error has the server's own sentence.
async function* parts(messages, signal) {
  const number = (id) => Number(document.getElementById(id).value);
  const response = await request("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      messages: messages.map(({ role, content }) => ({ role, content })),
      stream: true, temperature: number("temperature"), top_k: number("top_k"), max_tokens: number("max_tokens"),
    }),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server ended in the middle of the answer");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      yield part;
    }
  }
}

async function request(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
    const response = await fetch(path, { ...options, headers }).catch((error) => {
      throw error.name === "AbortError" ? error : new Error("the server cannot be reached: is it still running?");
    });
    if (response.ok) return response;
    const said = await response.json().catch(() => null);
    const sentence = said?.error?.message ?? `the server answered with status ${response.status}`;
    if (response.status !== 401 || !(await askForKey())) throw new Error(sentence);
  }
}

async function askForKey() {
  why.textContent = key ? "The server does not take this key. Is there another?" : "This server asks for its API key.";
  unlock.returnValue = "";
  unlock.showModal();
  await new Promise((resolve) => unlock.addEventListener("close", resolve, { once: true }));
  if (unlock.returnValue !== "use") return false;
  key = keyField.value;
  write("key", key);
  return true;
}

// The chat and the key outlive a reload, not the tab; two tabs have two chats.
function read(name) {
  try { return sessionStorage.getItem(`niels_gpt.${name}`); } catch { return null; }
}

function write(name, value) {
  try { sessionStorage.setItem(`niels_gpt.${name}`, value); } catch { return false; } // full, or not allowed
  return true;
}

function answered() {
  return messages.slice(0, messages.length - (messages.length % 2));
}

function keep() {
  if (!write("chat", JSON.stringify(answered()))) say("the browser has no room for this chat: it will not outlive a reload");
}

function stored() {
  try {
    const found = JSON.parse(read("chat"));
    return found.every(isMessage) && found.length % 2 === 0 ? found : [];
  } catch {
    return []; // nothing, or nothing that this page has written
  }
}

function isMessage({ role, content, forgotten }, i) {
  if (typeof content !== "string" || role !== (i % 2 ? "assistant" : "user")) return false;
  return role === "user" || (Number.isInteger(forgotten) && forgotten >= 0 && forgotten < i);
}

function forgottenBy(messages) {
  return messages.at(-1)?.forgotten ?? 0;
}

function articles() {
  return [...chat.children];
}

function show(message) {
  const article = document.createElement("article");
  article.className = message.role;
  article.ariaLabel = message.role === "user" ? "You" : "The model";
  const body = element("div", "text"), tools = element("div", "tools");
  body.dir = "auto";
  tools.append(
    message.role === "user"
      ? button("Edit", "edit this question and ask again: what came after it goes", () => edit(articles().indexOf(article)))
      : button("Copy", "copy this answer", (event) => copy(message.content, body, event.target)),
  );
  article.append(body, tools);
  fill(article, message);
  chat.append(article);
  return article;
}

function fill(article, { role, content }) {
  article.querySelector(".text").replaceChildren(role === "user" ? content : markdown(content));
}

// After each change of the chat: what is forgotten is grey and said where it was, and the last answer can be asked again.
function settle() {
  chat.querySelectorAll(".forgotten-line").forEach((line) => line.remove());
  articles().forEach((article, i) => {
    article.classList.toggle("forgotten", i < forgottenBy(messages));
    const forgotten = messages[i].forgotten ?? 0;
    if (forgotten <= (messages[i - 2]?.forgotten ?? 0)) return;
    const line = element("p", "forgotten-line");
    line.textContent = `The first ${forgotten} messages no longer fit the context and are forgotten.`;
    article.prepend(line);
  });
  articles().at(-1)?.querySelector(".tools").append(again);
}

// What went wrong, beside the input box until the next question.
function say(sentence) {
  problem.textContent = sentence;
}

function toEnd() {
  chat.scrollTop = chat.scrollHeight;
}

// Write more of an answer, and scroll along unless somebody is reading further up.
function following(write) {
  const atEnd = chat.scrollHeight - chat.scrollTop - chat.clientHeight < 40;
  write();
  if (atEnd) toEnd();
}

function element(tag, className) {
  const made = document.createElement(tag);
  made.className = className;
  return made;
}

function button(label, title, press) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", textContent: label, title, onclick: press });
  return made;
}

function busy(yes) {
  send.hidden = yes;
  stop.hidden = !yes;
  for (const one of [again, ...chat.querySelectorAll("article.user button")]) one.disabled = yes;
}

async function copy(content, body, pressed) {
  try {
    await navigator.clipboard.writeText(content);
    pressed.textContent = "Copied";
  } catch { // browsers give the clipboard to pages of this machine and of https alone
    getSelection().selectAllChildren(body);
    pressed.textContent = "Selected: Ctrl+C copies";
  }
  pressed.focus();
  pressed.addEventListener("blur", () => { pressed.textContent = "Copy"; }, { once: true });
}

function together(...texts) {
  return texts.filter(Boolean).join("\n\n");
}

function edit(at) {
  stopEditing();
  startEditing({ at, draft: text.value }, messages[at].content);
}

function startEditing(which, content) {
  editing = which;
  text.value = content;
  editBar.hidden = false;
  articles().forEach((article, i) => article.classList.toggle("going", i >= which.at));
  text.focus();
}

function stopEditing() {
  if (!editing) return;
  text.value = editing.draft;
  editing = null;
  editBar.hidden = true;
  for (const article of articles()) article.classList.remove("going");
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = text.value, edited = editing;
  if (!question.trim() || answering) return;
  text.value = "";
  stopEditing();
  if (await ask(question, edited?.at ?? messages.length)) return;
  if (edited) startEditing({ at: edited.at, draft: text.value }, question);
  else text.value = together(question, text.value); // what was typed meanwhile
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
stop.addEventListener("click", () => answering?.abort());
leave.addEventListener("click", stopEditing);
fresh.addEventListener("click", () => {
  answering?.abort();
  answering = null;
  stopEditing();
  busy(false);
  messages = [];
  chat.replaceChildren();
  say("");
  keep();
  text.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !unlock.open) answering ? answering.abort() : stopEditing();
  if (event.code === "KeyN" && event.altKey) fresh.click();
});
addEventListener("pagehide", () => {
  const unanswered = messages.slice(answered().length).map(({ content }) => content);
  keep();
  write("draft", together(...unanswered, text.value));
});

messages = stored();
text.value = read("draft") ?? "";
messages.forEach(show);
settle();
toEnd();

try {
  for (const [name, value] of Object.entries(await (await request("/card")).json())) {
    card.appendChild(document.createElement("dt")).textContent = name;
    card.appendChild(document.createElement("dd")).textContent = value;
  }
} catch (error) {
  say(error.message);
}
