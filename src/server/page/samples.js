// Samples as cards: they grow as tokens come, and when all have ended they are ranked, and equal ones are one card. Votes as bars.

import { $, button, count, counted, element } from "/page/common.js";
import { showMarkdown } from "/page/markdown.js";

// Shows an answer as Markdown, or as it is.
export function showText(text, box, asMarkdown) {
  box.classList.toggle("plain", !asMarkdown);
  if (asMarkdown) showMarkdown(text, box);
  else box.textContent = text;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page that is neither local nor HTTPS has no clipboard
    const field = element("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

// A button that copies what `text` returns.
export function copyButton(text) {
  const made = button("Copy", async () => {
    await copy(text());
    made.textContent = "Copied";
    setTimeout(() => (made.textContent = "Copy"), 1500);
  });
  return made;
}

const kMostShowing = 25; // ms: a text that takes longer is shown as it is until it has ended

class SampleCard {
  constructor(index, options) {
    this.index = index;
    this.options = options;
    this.text = "";
    this.sum = 0;
    this.tokens = 0;
    this.reason = null;
    this.showing = 0; // ms that it last took
    this.box = element("article", "sample");
    this.title = element("h3", "", `Sample ${index + 1}`);
    this.facts = element("p", "facts");
    this.output = element("div", "text");
    this.actions = element("p", "buttons");
    this.box.append(this.title, this.facts, this.output, this.actions);
  }

  add(choice) {
    this.text += (choice.delta ?? choice.message)?.content ?? choice.text ?? "";
    const logprobs = choice.logprobs?.content?.map((token) => token.logprob) ?? choice.logprobs?.token_logprobs ?? [];
    for (const value of logprobs) this.sum += value;
    this.tokens += logprobs.length;
    this.reason = choice.finish_reason ?? this.reason;
  }

  get mean() {
    return this.tokens ? this.sum / this.tokens : -Infinity;
  }

  show() {
    const begin = performance.now();
    showText(this.text, this.output, this.options.markdown() && (this.reason !== null || this.showing < kMostShowing));
    this.showing = Math.max(this.showing, performance.now() - begin);
    const ended = { stop: "ended", length: "cut at the limit of tokens" }[this.reason] ?? this.reason ?? "…";
    const mean = this.tokens ? `mean log-probability ${this.mean.toFixed(3)}` : "";
    this.facts.textContent = [counted(this.tokens, "token"), mean, ended].filter(Boolean).join(" · ");
  }

  // `equal`: cards of the same text, this one included.
  rank(place, isBest, equal) {
    this.title.textContent = equal.length > 1 ? `#${place} · ${equal.length} equal samples` : `#${place} · sample ${this.index + 1}`;
    if (equal.length > 1) this.title.title = `Samples ${equal.map((card) => card.index + 1).join(", ")}`;
    this.box.classList.toggle("best", isBest);
    this.actions.replaceChildren(copyButton(() => this.text));
    if (this.options.take) this.actions.append(button("Continue with this answer", () => this.options.take(this.text)));
  }
}

export class Samples {
  // options: markdown(), whether texts are shown as Markdown; take(text), where a chat goes on, or null.
  constructor(number, options) {
    this.cards = Array.from({ length: number }, (_, i) => new SampleCard(i, options));
    this.changed = new Set();
    this.frame = 0;
    $("samples").replaceChildren(...this.cards.map((card) => card.box));
  }

  add(choice) {
    const card = this.cards[choice.index];
    card.add(choice);
    this.changed.add(card);
    this.frame ||= requestAnimationFrame(() => this.show()); // many tokens a frame are drawn once
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    for (const card of this.changed) card.show();
    this.changed.clear();
  }

  get tokens() {
    return this.cards.reduce((sum, card) => sum + card.tokens, 0);
  }

  // All have ended, or were stopped: the most probable first.
  rank() {
    for (const card of this.cards.filter((one) => one.reason === null)) {
      card.reason = "stopped";
      this.changed.add(card);
    }
    this.show();
    const groups = new Map();
    for (const card of this.cards) groups.set(card.text, [...(groups.get(card.text) ?? []), card]);
    const ranked = [...groups.values()].sort((a, b) => b[0].mean - a[0].mean);
    ranked.forEach((equal, place) => equal[0].rank(place + 1, place === 0 && ranked.length > 1, equal));
    $("samples").replaceChildren(...ranked.map((equal) => equal[0].box));
    this.cards = ranked.flat();
  }

  // Nothing that any of them wrote is kept: an error came first.
  removeEmpty() {
    this.show();
    if (this.tokens === 0) $("samples").replaceChildren();
  }

  // For another visit of the page; best first where they are ranked.
  toStore() {
    return this.cards.map(({ index, text, sum, tokens, reason }) => ({ index, text, sum, tokens, reason }));
  }

  static restored(stored, options) {
    const samples = new Samples(stored.length, options);
    stored.forEach((from, i) => Object.assign(samples.cards[i], from));
    for (const card of samples.cards) card.show();
    samples.rank();
    return samples;
  }
}

export function showVotes(votes, samples) {
  const box = $("votes");
  if (votes === undefined) return;
  box.append(element("h3", "", "Votes"));
  if (votes === null) return box.append(element("p", "", "The pattern takes too long on these texts."));
  if (votes.length === 0) return box.append(element("p", "", "No sample has such an answer."));
  const list = element("ol");
  for (const vote of votes) {
    const row = element("li");
    const bar = element("meter");
    const share = `${count(vote.count)} of ${counted(samples, "sample")}, ${((100 * vote.count) / samples).toFixed(0)} %`;
    Object.assign(bar, { min: 0, max: samples, value: vote.count });
    bar.setAttribute("aria-label", `${vote.answer}: ${share}`);
    row.append(element("span", "answer", vote.answer), bar, element("span", "share", share));
    list.append(row);
  }
  box.append(list);
}
