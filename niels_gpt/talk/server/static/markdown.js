// Markdown into elements. Text only ever becomes text nodes, so nothing a model or a person writes can become markup.

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

export function markdown(text) {
  const out = document.createDocumentFragment();
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ) {
    const fence = lines[i].match(/^(```+|~~~+)/);
    if (fence) {
      const body = [];
      for (i += 1; i < lines.length && !lines[i].startsWith(fence[1]); i += 1) body.push(lines[i]);
      i += 1;
      element(element(out, "pre"), "code").textContent = body.join("\n");
    } else if (!lines[i].trim()) {
      i += 1;
    } else if (/^#{1,6} /.test(lines[i])) {
      const level = lines[i].match(/^#+/)[0].length;
      inline(element(out, `h${Math.min(6, level + 1)}`), lines[i].slice(level + 1));
      i += 1;
    } else if (/^([-*]|\d+[.)]) /.test(lines[i])) {
      const list = element(out, /^\d/.test(lines[i]) ? "ol" : "ul");
      for (; i < lines.length && /^([-*]|\d+[.)]) /.test(lines[i]); i += 1) {
        inline(element(list, "li"), lines[i].replace(/^([-*]|\d+[.)]) /, ""));
      }
    } else {
      const paragraph = element(out, "p");
      for (let first = true; i < lines.length && lines[i].trim() && !/^(```|~~~|#{1,6} |[-*] |\d+[.)] )/.test(lines[i]); i += 1) {
        if (!first) element(paragraph, "br");
        inline(paragraph, lines[i]);
        first = false;
      }
    }
  }
  return out;
}

function inline(parent, text) {
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    parent.append(text.slice(last, match.index));
    const [, , code, bold, italic, label, href] = match;
    if (code !== undefined) element(parent, "code").textContent = code;
    else if (bold !== undefined) element(parent, "strong").textContent = bold;
    else if (italic !== undefined) element(parent, "em").textContent = italic;
    else {
      const link = element(parent, "a");
      link.textContent = label;
      link.href = href;
      link.rel = "noopener noreferrer";
      link.target = "_blank";
    }
    last = match.index + match[0].length;
  }
  parent.append(text.slice(last));
}

function element(parent, name) {
  return parent.appendChild(document.createElement(name));
}
