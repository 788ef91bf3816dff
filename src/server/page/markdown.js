// Markdown as elements. The lexer is marked's; elements are made here, one by one and from a fixed list, so that no text of a model
// is ever read as HTML: tags in it are shown as they are, and links lead to http, https and mailto alone.

import { lexer } from "/page/marked.esm.js";
import { element } from "/page/common.js";

const kOptions = { gfm: true, breaks: false, mangle: false, silent: true };
const kMost = 20000; // characters: longer texts, and what lexers take long for, stay as they are
const kNamed = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

// The lexer escapes texts for HTML.
function plain(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(\w+));/gi, (whole, decimal, hex, name) => {
    if (name) return kNamed[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

function safeAddress(href) {
  try {
    const url = new URL(plain(href));
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // relative: it leads nowhere here
  }
}

function link(href, content) {
  const address = safeAddress(href);
  if (!address) return content;
  const made = element("a");
  made.href = address;
  made.rel = "noopener noreferrer nofollow";
  made.target = "_blank";
  made.append(...content);
  return [made];
}

function wrapped(tag, tokens) {
  const made = element(tag);
  made.append(...inline(tokens));
  return made;
}

function inline(tokens) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return [wrapped(token.type, token.tokens)];
      case "codespan":
        return [element("code", "", plain(token.text))];
      case "br":
        return [element("br")];
      case "link":
        return link(token.href, inline(token.tokens));
      case "image": // the page loads nothing from elsewhere
        return link(token.href, [plain(token.text) || "image"]);
      case "html":
        return [token.raw];
      default:
        return token.tokens ? inline(token.tokens) : [plain(token.text)];
    }
  });
}

function list(token) {
  const made = element(token.ordered ? "ol" : "ul");
  if (token.ordered && token.start !== 1) made.start = Number(token.start);
  for (const item of token.items) {
    const entry = element("li");
    if (item.task) entry.append(item.checked ? "☑ " : "☐ ");
    entry.append(...blocks(item.tokens));
    made.append(entry);
  }
  return made;
}

function table(token) {
  const made = element("table"), head = made.createTHead().insertRow(), body = made.createTBody();
  const fill = (row, cells, tag) => {
    cells.forEach((cell, i) => {
      const made = wrapped(tag, cell.tokens);
      if (token.align[i]) made.classList.add(`align-${token.align[i]}`);
      row.append(made);
    });
  };
  fill(head, token.header, "th");
  for (const cells of token.rows) fill(body.insertRow(), cells, "td");
  const scroll = element("div", "scroll");
  scroll.append(made);
  return scroll;
}

function blocks(tokens) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case "space":
      case "def":
        return [];
      case "heading": // below the page's own headings
        return [wrapped(`h${Math.min(6, token.depth + 3)}`, token.tokens)];
      case "paragraph":
        return [wrapped("p", token.tokens)];
      case "code": {
        const made = element("pre");
        made.append(element("code", "", token.text));
        return [made];
      }
      case "blockquote": {
        const made = element("blockquote");
        made.append(...blocks(token.tokens));
        return [made];
      }
      case "hr":
        return [element("hr")];
      case "list":
        return [list(token)];
      case "table":
        return [table(token)];
      case "html":
        return [element("p", "", token.raw.trimEnd())];
      default:
        return inline([token]);
    }
  });
}

// Shows `text` in `box`, in place of what it shows.
export function showMarkdown(text, box) {
  let shown = [element("p", "plain", text)];
  try {
    if (text.length <= kMost) shown = blocks(lexer(text, kOptions));
  } catch {
    // nested too deep
  }
  box.replaceChildren(...shown);
}
