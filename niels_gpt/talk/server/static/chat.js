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
  const before = messages; // what has been said so far is only replaced, never changed: a refused question leaves no trace
  const asked = [...before, { role: "user", content: question }];
  messages = asked;
  const mine = show("user");
  mine.textContent = question;
  const place = show("assistant");
  place.classList.add("waiting");
  answering = new AbortController();
  busy(true);
  let said = "";
  try {
    for await (const piece of pieces(asked, answering.signal)) {
      said += piece;
      place.replaceChildren(markdown(said));
      chat.scrollTop = chat.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") takeBack(error);
  } finally {
    place.classList.remove("waiting");
    if (messages === asked) messages = [...asked, { role: "assistant", content: said }];
    answering = null;
    busy(false);
    text.focus();
  }

  // Sent again with every later question, a message that was refused once would be refused for ever.
  function takeBack(error) {
    if (messages !== asked) return; // Reset was quicker
    messages = before;
    mine.classList.add("refused");
    if (!said) place.remove();
    show("error").textContent = `${error.message} (your message was taken back and is not part of the chat)`;
    if (!text.value) text.value = question;
  }
}

async function* pieces(messages, signal) {
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
