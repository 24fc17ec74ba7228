import { markdown } from "./markdown.js";

const chat = document.getElementById("chat");
const form = document.getElementById("ask");
const text = document.getElementById("text");
const send = document.getElementById("send");
const stop = document.getElementById("stop");
const reset = document.getElementById("reset");

let messages = [];
let answering = null; // an AbortController while an answer is coming

async function ask(question) {
  messages.push({ role: "user", content: question });
  show("user").textContent = question;
  const place = show("assistant");
  place.classList.add("waiting");
  answering = new AbortController();
  busy(true);
  let said = "";
  const mine = messages;
  try {
    for await (const piece of pieces(answering.signal)) {
      said += piece;
      place.replaceChildren(markdown(said));
      chat.scrollTop = chat.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      const note = show("error");
      note.textContent = error.message;
    }
  } finally {
    place.classList.remove("waiting");
    if (mine === messages) messages.push({ role: "assistant", content: said });
    answering = null;
    busy(false);
    text.focus();
  }
}

async function* pieces(signal) {
  const number = (id) => Number(document.getElementById(id).value);
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      messages, stream: true, temperature: number("temperature"), top_k: number("top_k"), max_tokens: number("max_tokens"),
    }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Error(parsed.error.message);
      const piece = parsed.choices[0].delta.content;
      if (piece) yield piece;
    }
  }
}

function show(kind) {
  const article = document.createElement("article");
  article.className = kind;
  article.dir = "auto";
  chat.append(article);
  chat.scrollTop = chat.scrollHeight;
  return article;
}

function busy(yes) {
  send.disabled = yes;
  stop.disabled = !yes;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const question = text.value;
  if (!question.trim() || answering) return;
  text.value = "";
  ask(question);
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
stop.addEventListener("click", () => answering?.abort());
reset.addEventListener("click", () => {
  answering?.abort();
  messages = [];
  chat.replaceChildren();
  text.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") answering?.abort();
  if (event.key.toLowerCase() === "r" && event.altKey) reset.click();
});

const card = document.getElementById("card");
for (const [name, value] of Object.entries(await (await fetch("/card")).json())) {
  card.appendChild(document.createElement("dt")).textContent = name;
  card.appendChild(document.createElement("dd")).textContent = value;
}
