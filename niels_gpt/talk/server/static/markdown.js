// Markdown into elements. Markup that a model or a person writes is shown as the text it is, and what marked makes of the
// rest goes through DOMPurify, which leaves these few elements: nothing that runs, and nothing that loads (the address of a
// picture would tell somebody else's server that the answer was read).
import DOMPurify from "/web/vendor/purify.es.mjs";
import { Marked } from "/web/vendor/marked.esm.js";

const ELEMENTS = "p br hr h1 h2 h3 h4 h5 h6 strong em del code pre blockquote ul ol li a table thead tbody tr th td".split(" ");
const escaped = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  breaks: true,
  tokenizer: { html() {}, tag() {} }, // there is no HTML in it, then
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
