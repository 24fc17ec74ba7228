// Chats in the browser's storage: this tab's chat in sessionStorage, and all answered chats in localStorage, one key per
// chat, so that two tabs do not overwrite each other's list. The server stores no chats.
const SAVED = "niels_gpt.chat.";

export function read(name) {
  try { return sessionStorage.getItem(`niels_gpt.${name}`); } catch { return null; }
}

export function write(name, value) {
  try { sessionStorage.setItem(`niels_gpt.${name}`, value); } catch { return false; } // storage full or not allowed
  return true;
}

// Return an empty chat: {id, system: system message, messages: user and assistant in turn, when: ms of its last change}.
export function newChat(system = "") {
  return { id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`, system, messages: [], when: 0 };
}

// Parse a stored chat; null if it is not one that this page wrote.
export function chatOf(text) {
  try {
    const { id, system, messages, when } = JSON.parse(text);
    const sound = typeof id === "string" && /^[\w-]+$/.test(id) && typeof system === "string" && Number.isFinite(when);
    return sound && messages.every(isMessage) && messages.length % 2 === 0 ? { id, system, messages, when } : null;
  } catch {
    return null;
  }
}

// Check a message: {role, content}; an answer also has `forgotten` (messages then outside the context) and, where known,
// `model`, `cut` (tokens of its question that did not fit), `tokens` (in the context after it) and `stopped` (by what).
function isMessage({ role, content, forgotten, model = "", cut = 0, tokens = 0, stopped = "" }, i) {
  if (typeof content !== "string" || role !== (i % 2 ? "assistant" : "user")) return false;
  const counts = [cut, tokens, forgotten ?? 0].every((count) => Number.isInteger(count) && count >= 0);
  return role === "user" || (counts && typeof model === "string" && typeof stopped === "string" && Number.isInteger(forgotten) && forgotten < i);
}

export function keyOf(chat) {
  return SAVED + chat.id;
}

export function save(chat) {
  try { localStorage.setItem(keyOf(chat), JSON.stringify(chat)); } catch { return false; }
  return true;
}

export function remove(chat) {
  try { localStorage.removeItem(keyOf(chat)); } catch { /* storage not allowed: nothing to remove */ }
}

// Return all saved chats, newest first.
export function savedChats() {
  try {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith(SAVED));
    const chats = keys.map((key) => [key, chatOf(localStorage.getItem(key))]);
    const sound = chats.filter(([key, chat]) => chat?.messages.length && keyOf(chat) === key);
    return sound.map(([, chat]) => chat).sort((a, b) => b.when - a.when);
  } catch {
    return []; // storage not allowed
  }
}
