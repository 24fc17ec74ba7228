import { chatOf, keyOf, newChat, read, remove, save, savedChats, write } from "./chats.js";
import { markdown } from "./markdown.js";
import { offer, showSources, wanted } from "./sources.js";

const [chat, form, problem, editBar, leave, text, send, stop, fresh, unlock, why, keyField, card, system, list, room, menu] =
  ["chat", "ask", "problem", "editing", "leave", "text", "send", "stop", "new", "unlock", "why", "key", "card", "system",
    "list", "room", "menu"].map((id) => document.getElementById(id));
const narrow = matchMedia("(max-width: 60rem)"); // as in style.css: the side panel covers the chat
const again = button("Ask again", "ask the last question again; replaces this answer", askAgain); // below the last answer only

let current = newChat(); // the chat on display, as last saved
let messages = []; // its messages on display
let waiting = null; // {before: messages, question} until the first token of the answer arrives
let context = 0; // context length in tokens; 0 until known
let served = {}; // {id, name} of the model, once known
let answering = null; // an AbortController while an answer is streamed
let editing = null; // {at: index of the edited message, draft: previous text of the input box}
let key = read("key")?.match(/^[ -~]+$/)?.[0]; // other characters cannot be sent in a header

// Ask a question as message number `at`. Later messages are removed only once an answer has begun, so that a rejected
// question leaves no trace. Return false if it was rejected, so that the caller restores the input.
async function ask(question, at) {
  const before = messages, shown = articles();
  const kept = messages.slice(0, at), asked = [...kept, { role: "user", content: question }];
  const answer = { role: "assistant", content: "", forgotten: forgottenBy(kept) };
  const mine = (answering = new AbortController()), limit = document.getElementById("max_tokens").value;
  waiting = { before, question: before[at]?.content === question ? "" : question };
  messages = asked;
  chat.replaceChildren(...shown.slice(0, at));
  show(asked.at(-1));
  const article = show(answer);
  article.ariaBusy = "true";
  toEnd();
  busy(true);
  say("");
  let whole = false, drawing = 0;
  // Once a frame at most: each time the whole answer is laid out, and tokens may come faster than that.
  const draw = () => {
    drawing = 0;
    if (answering === mine) following(() => fill(article, answer));
  };
  try {
    // Messages outside the context are not sent again, so that requests do not grow with the chat.
    for await (const part of parts(asked.slice(answer.forgotten), mine.signal)) {
      answer.forgotten = forgottenBy(kept) + (part.forgotten_messages ?? 0);
      answer.model = part.model === served.id ? served.name : part.model;
      answer.cut = part.cut_tokens ?? 0;
      if (part.usage) answer.tokens = part.usage.total_tokens;
      if (part.niels_gpt && answering === mine) {
        answer.sources = { ...answer.sources, ...part.niels_gpt };
        drawing ||= requestAnimationFrame(draw);
      }
      if (part.choices[0]?.finish_reason === "length") answer.stopped = `at ${limit} tokens, the maximum`;
      const piece = part.choices[0]?.delta.content;
      if (!piece || answering !== mine) continue;
      answer.content += piece;
      waiting = null;
      messages = [...asked, answer];
      drawing ||= requestAnimationFrame(draw);
      if (answer.content === piece) settle();
    }
    whole = true;
  } catch (error) {
    answer.stopped = error.name === "AbortError" ? "by you" : "by an error";
    if (answering === mine && error.name !== "AbortError") say(error.message);
  }
  if (answering !== mine) return true; // the user has opened another chat meanwhile
  cancelAnimationFrame(drawing);
  draw();
  article.ariaBusy = null;
  const begun = whole || answer.content !== "";
  messages = begun ? [...asked, answer] : before;
  if (!begun) chat.replaceChildren(...shown);
  answering = waiting = null;
  busy(false);
  settle();
  if (!begun) toEnd();
  keep();
  text.focus();
  if (begun && !context) introduce();
  return begun;
}

function askAgain() {
  stopEditing();
  ask(messages.at(-2).content, messages.length - 2);
}

// Yield the parts of an answer as they arrive; throw an Error with the server's message.
async function* parts(messages, signal) {
  const number = (id) => Number(document.getElementById(id).value);
  const first = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
  const response = await request("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      messages: [...first, ...messages].map(({ role, content }) => ({ role, content })),
      stream: true, stream_options: { include_usage: true },
      temperature: number("temperature"), top_k: number("top_k"), max_tokens: number("max_tokens"), ...wanted(),
    }),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection was closed in the middle of the answer");
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
  why.textContent = key ? "The server rejected this key. Enter another one." : "This server needs an API key.";
  unlock.returnValue = "";
  unlock.showModal();
  await new Promise((resolve) => unlock.addEventListener("close", resolve, { once: true }));
  if (unlock.returnValue !== "use") return false;
  key = keyField.value;
  write("key", key);
  return true;
}

// Return the messages without a question that has no answer yet.
function answered() {
  return waiting ? waiting.before : messages;
}

// Save this tab's chat so that it survives a reload; once it has an answer, also in the list of chats.
function keep() {
  const now = { ...current, system: system.value, messages: answered() };
  const said = (one) => JSON.stringify([one.system, one.messages]);
  if (now.messages.length && said(now) !== said(current)) {
    now.when = Date.now();
    if (save(now)) current = now;
    else say("browser storage is full: this chat is not saved; delete older ones under Chats");
    fillList();
  }
  if (!write("chat", JSON.stringify(now))) say("browser storage is full: this chat will be lost on reload");
}

// Open another chat; an answer being streamed is stopped and kept as it is.
function turnTo(other) {
  if (narrow.matches) openSide(false);
  if (other.id === current.id) return; // keep what is on display, which may be newer than what was saved
  if (answering && !waiting) messages.at(-1).stopped = "by you";
  answering?.abort();
  stopEditing();
  if (messages.length) keep();
  text.value = together(waiting?.question, text.value); // a question without an answer returns to the input box
  answering = waiting = null;
  busy(false);
  say("");
  present(other);
  keep();
  text.focus();
}

function present(other) {
  current = other;
  messages = other.messages;
  system.value = other.system;
  chat.replaceChildren();
  messages.forEach(show);
  settle();
  toEnd();
  fillList();
}

// List the saved chats, each with a button to open and one to delete it.
function fillList() {
  list.replaceChildren(...savedChats().map((saved) => {
    const row = document.createElement("li"), title = saved.messages[0].content.trim().slice(0, 80) || "(empty)";
    const open = button(title, `open this chat of ${new Date(saved.when).toLocaleString()}`, () => turnTo(saved));
    open.className = "open";
    open.dir = "auto";
    if (saved.id === current.id) open.ariaCurrent = "true";
    row.append(open, button("Delete", "delete this chat for good", (event) => twice(event.target, () => drop(saved))));
    return row;
  }));
}

function drop(saved) {
  if (saved.id === current.id) turnTo(newChat(system.value));
  remove(saved); // last, since leaving a chat saves it
  fillList();
}

// Require a second press of the button for what cannot be undone.
function twice(pressed, act) {
  if (pressed.dataset.sure) return act();
  const label = pressed.textContent;
  pressed.dataset.sure = "yes";
  pressed.textContent = "Really?";
  pressed.focus();
  pressed.addEventListener("blur", () => { delete pressed.dataset.sure; pressed.textContent = label; }, { once: true });
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
      ? button("Edit", "edit this question and ask again; removes all later messages", () => edit(articles().indexOf(article)))
      : button("Copy", "copy this answer", (event) => copy(message.content, body, event.target)),
  );
  if (message.role === "assistant") tools.append(element("span", "by"));
  article.append(body, tools);
  fill(article, message);
  chat.append(article);
  return article;
}

function fill(article, message) {
  article.querySelector(".text").replaceChildren(message.role === "user" ? message.content : markdown(message.content));
  showSources(article, message);
}

// Update the display after each change: grey out messages outside the context, name the model below each answer, put
// "Ask again" below the last one, and show how full the context is.
function settle() {
  chat.querySelectorAll(".forgotten-line, .cut-line, .stopped").forEach((line) => line.remove());
  articles().forEach((article, i) => {
    article.classList.toggle("forgotten", i < forgottenBy(messages));
    const { forgotten = 0, cut = 0, model = "", stopped = "" } = messages[i];
    if (stopped) article.querySelector(".text").after(element("p", "stopped", `Stopped ${stopped}.`));
    if (cut) article.prepend(element("p", "cut-line", `The first ${cut} tokens of the question did not fit the context and were dropped.`));
    if (forgotten > (messages[i - 2]?.forgotten ?? 0))
      article.prepend(element("p", "forgotten-line", `The first ${forgotten} messages no longer fit the context and are dropped.`));
    const by = article.querySelector(".by");
    if (by) by.textContent = model;
  });
  articles().at(-1)?.querySelector(".tools .by")?.before(again);
  showRoom();
}

function showRoom() {
  const tokens = messages.at(-1)?.tokens;
  room.hidden = !tokens || !context;
  if (room.hidden) return;
  const used = Math.min(tokens, context), meter = room.querySelector("meter");
  Object.assign(meter, { max: context, high: 0.75 * context, value: used });
  room.querySelector("span").textContent = `${used} of ${context} tokens of context`;
}

// Show an error next to the input box until the next question.
function say(sentence) {
  problem.textContent = sentence;
}

function toEnd() {
  chat.scrollTop = chat.scrollHeight;
}

// Call `write`, and scroll to the end unless the user has scrolled up.
function following(write) {
  const atEnd = chat.scrollHeight - chat.scrollTop - chat.clientHeight < 40;
  write();
  if (atEnd) toEnd();
}

function element(tag, className, content = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = content;
  return made;
}

function openSide(open) {
  document.body.classList.toggle("open", open);
  menu.ariaExpanded = String(open);
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
  } catch { // browsers allow the clipboard only on localhost and https
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
  else text.value = together(question, text.value); // followed by what was typed meanwhile
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
stop.addEventListener("click", () => answering?.abort());
leave.addEventListener("click", stopEditing);
menu.addEventListener("click", () => openSide(menu.ariaExpanded !== "true"));
document.getElementById("shade").addEventListener("click", () => openSide(false));
narrow.addEventListener("change", () => openSide(!narrow.matches));
fresh.addEventListener("click", () => turnTo(newChat(system.value)));
system.addEventListener("change", keep);
addEventListener("storage", ({ key: changed, newValue }) => {
  // Another tab continued the same chat, so this one becomes a separate chat.
  if (changed === keyOf(current) && newValue !== null) current = { ...current, id: newChat().id };
  fillList();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !unlock.open) {
    if (narrow.matches && menu.ariaExpanded === "true") {
      openSide(false);
      menu.focus();
    } else if (answering) answering.abort();
    else stopEditing();
  }
  if (event.code === "KeyM" && event.altKey) menu.click();
  if (event.code === "KeyN" && event.altKey) fresh.click();
});
addEventListener("pagehide", () => {
  keep();
  write("draft", together(waiting?.question, text.value));
});

// Fetch the model's name, what it was trained on, its temperature and its context length, and show them.
async function introduce() {
  try {
    const [model] = (await (await request("/v1/models")).json()).data;
    const { name = model.id, trained_on = "", temperature, questions = [] } = model.niels_gpt;
    const put = (id, said) => { document.getElementById(id).textContent = said; };
    served = { id: model.id, name };
    context = model.max_model_len;
    put("model", name);
    put("name", name);
    put("trained", trained_on);
    const field = document.getElementById("temperature"), untouched = field.value === field.defaultValue;
    field.defaultValue = temperature ?? field.defaultValue;
    if (untouched) field.value = field.defaultValue;
    document.getElementById("try").hidden = !questions.length;
    document.getElementById("questions").replaceChildren(...questions.map((question) => {
      const made = button(question, "ask this", () => ask(question, messages.length));
      made.dir = "auto";
      return made;
    }));
    offer(model.niels_gpt, request);
    showRoom();
  } catch (error) {
    say(error.message);
  }
}

openSide(!narrow.matches);
present(chatOf(read("chat")) ?? newChat());
text.value = read("draft") ?? "";

try {
  for (const [name, value] of Object.entries(await (await request("/card")).json())) {
    card.appendChild(document.createElement("dt")).textContent = name;
    card.appendChild(document.createElement("dd")).textContent = value;
  }
  await introduce();
} catch (error) {
  say(error.message);
}
