// Chats, where the browser keeps them: the one of this tab in its sessionStorage, and all that were ever answered in the
// localStorage, a key each, so that two tabs do not write over one another's list. The server keeps none.
const SAVED = "niels_gpt.chat.";

export function read(name) {
  try { return sessionStorage.getItem(`niels_gpt.${name}`); } catch { return null; }
}

export function write(name, value) {
  try { sessionStorage.setItem(`niels_gpt.${name}`, value); } catch { return false; } // full, or not allowed
  return true;
}

// {id, system: who is speaking, messages: user and assistant by turns, when: the time of its last answer}
export function newChat(system = "") {
  return { id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`, system, messages: [], when: 0 };
}

// What a stored text says; null where it is nothing that this page has written.
export function chatOf(text) {
  try {
    const { id, system, messages, when } = JSON.parse(text);
    const sound = typeof id === "string" && /^[\w-]+$/.test(id) && typeof system === "string" && Number.isFinite(when);
    return sound && messages.every(isMessage) && messages.length % 2 === 0 ? { id, system, messages, when } : null;
  } catch {
    return null;
  }
}

// {role, content}; of an answer also how many of the first messages were forgotten by then, and where it is known which
// model gave it, how many tokens of its question were cut, and how many the context then held.
function isMessage({ role, content, forgotten, model = "", cut = 0, tokens = 0 }, i) {
  if (typeof content !== "string" || role !== (i % 2 ? "assistant" : "user")) return false;
  const counts = [cut, tokens, forgotten ?? 0].every((count) => Number.isInteger(count) && count >= 0);
  return role === "user" || (counts && typeof model === "string" && Number.isInteger(forgotten) && forgotten < i);
}

export function keyOf(chat) {
  return SAVED + chat.id;
}

export function save(chat) {
  try { localStorage.setItem(keyOf(chat), JSON.stringify(chat)); } catch { return false; }
  return true;
}

export function remove(chat) {
  try { localStorage.removeItem(keyOf(chat)); } catch { /* then there is none */ }
}

// All that are saved, the newest first.
export function savedChats() {
  try {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith(SAVED));
    const chats = keys.map((key) => [key, chatOf(localStorage.getItem(key))]);
    const sound = chats.filter(([key, chat]) => chat?.messages.length && keyOf(chat) === key);
    return sound.map(([, chat]) => chat).sort((a, b) => b.when - a.when);
  } catch {
    return []; // not allowed
  }
}
