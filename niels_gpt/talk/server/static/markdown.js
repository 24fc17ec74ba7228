// Render Markdown to DOM elements. HTML in the text is shown as text. The output of marked is sanitized by DOMPurify, which
// keeps only the elements below: nothing that runs, and nothing that loads (fetching an image would tell another server
// that the answer was read).
import DOMPurify from "/web/vendor/purify.es.mjs";
import { Marked } from "/web/vendor/marked.esm.js";

const ELEMENTS = "p br hr h1 h2 h3 h4 h5 h6 strong em del code pre blockquote ul ol li a table thead tbody tr th td".split(" ");
const escaped = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  breaks: true,
  tokenizer: { html() {}, tag() {} }, // so that no HTML is recognized
  renderer: { image: ({ raw }) => escaped(raw), checkbox: ({ checked }) => (checked ? "[x] " : "[ ] ") },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
});

export function markdown(text) {
  return DOMPurify.sanitize(marked.parse(text), {
    ALLOWED_TAGS: ELEMENTS,
    ALLOWED_ATTR: ["href", "start", "align"],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: /^https?:/i,
    RETURN_DOM_FRAGMENT: true,
  });
}
