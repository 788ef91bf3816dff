// The playground: sends a chat or a completion, shows the samples as they stream, and keeps the conversation.

import { $, RequestError, ask, count, counted, element } from "/page/common.js";
import * as conversations from "/page/conversations.js";
import { exampleFor } from "/page/example.js";
import { Samples, copyButton, showText, showVotes } from "/page/samples.js";

const form = $("form");
const kFields = ["system", "prompt", "n", "max-tokens", "temperature", "top-p", "seed", "vote"];
const kContext = 2048; // of a server that does not say
let messages = []; // of the conversation: what was asked and which answers were taken
let asked = null; // the message whose samples are shown
let samples = null;
let running = null; // AbortController of the request under way
let context = kContext;

const isChat = () => form.elements.mode.value === "chat";
const markdown = () => isChat() && $("markdown").checked;

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

// ------------------------------------------------------------------------------------------------------------- conversation

function fill(fields) {
  for (const name of kFields) if (fields[name] !== undefined) $(name).value = fields[name];
  if (fields.mode) form.elements.mode.value = fields.mode;
  showMode();
  showOptions();
}

function fieldsNow() {
  return { mode: form.elements.mode.value, ...Object.fromEntries(kFields.map((name) => [name, $(name).value])) };
}

function save() {
  conversations.save({ fields: fieldsNow(), messages, asked, answers: samples?.toStore() ?? [] });
  showList();
}

function takeAnswer(text) {
  if (asked === null) return;
  messages.push({ role: "user", content: asked }, { role: "assistant", content: text });
  asked = null;
  clearSamples();
  showConversation();
}

function clearSamples() {
  samples = null;
  $("samples").replaceChildren();
  $("votes").replaceChildren();
}

function showConversation() {
  const pending = asked === null ? [] : [{ role: "user", content: asked }];
  $("conversation").replaceChildren(
    ...[...messages, ...pending].map((message) => {
      const entry = element("li", message.role), text = element("div", "text");
      showText(message.content, text, message.role === "assistant" && markdown());
      entry.append(text);
      if (message.role === "assistant") entry.append(copyButton(() => message.content));
      return entry;
    }),
  );
}

function showList() {
  const now = conversations.current();
  const options = conversations.all().map((one) => {
    const option = element("option", "", one.title || "untitled");
    option.value = one.id;
    option.selected = one === now;
    return option;
  });
  if (!now) options.unshift(element("option", "", "new conversation"));
  $("history").replaceChildren(...options);
  $("history-row").hidden = conversations.all().length === 0;
  $("forget").disabled = !now;
}

function goOn(text) {
  takeAnswer(text);
  save();
  $("prompt").focus();
}
const options = () => ({ markdown, take: isChat() ? goOn : null });

// Shows the conversation at hand as it was left, else the example.
function open() {
  const now = conversations.current();
  messages = now?.messages ?? [];
  asked = now?.asked ?? null;
  clearSamples();
  fill(now?.fields ?? exampleFor(context));
  if (now?.answers.length) samples = Samples.restored(now.answers, options());
  showConversation();
  showList();
  $("intro").hidden = now !== null;
  say("");
}

// ------------------------------------------------------------------------------------------------------------------ request

function requestBody() {
  const body = {
    n: Number($("n").value),
    max_tokens: Number($("max-tokens").value),
    temperature: Number($("temperature").value),
    top_p: Number($("top-p").value),
  };
  if ($("seed").value !== "") body.seed = Number($("seed").value);
  if (isChat()) {
    const system = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
    body.messages = [...system, ...messages, { role: "user", content: $("prompt").value }];
    body.logprobs = true;
  } else {
    body.prompt = $("prompt").value;
    body.logprobs = 0;
  }
  const vote = $("vote").value;
  return vote ? { ...body, vote, rank: true } : { ...body, stream: true, stream_options: { include_usage: true } };
}

// The objects of a stream of server-sent events, as they come.
async function* streamEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      part = { done: true };
    }
    if (part.done) throw new RequestError("The answer broke off: the server closed the connection.");
    buffer += part.value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const item = JSON.parse(data);
      if (item.error) throw new RequestError(`The answer broke off: ${item.error.message}.`);
      yield item;
    }
  }
}

// Seconds and tokens so far, beside what the status says once.
class Progress {
  constructor() {
    this.begin = performance.now();
    this.first = null;
    this.timer = setInterval(() => this.show(), 250);
  }
  seconds(until = performance.now()) {
    return (until - this.begin) / 1000;
  }
  noteToken() {
    if (this.first !== null) return;
    this.first = performance.now();
    say("The samples are being written.");
  }
  show() {
    const rate = this.first === null ? "" : `, ${count(samples.tokens)} tokens, ${((1000 * samples.tokens) / Math.max(1, performance.now() - this.first)).toFixed(0)} a second`;
    $("progress").textContent = `${this.seconds().toFixed(1)} s${rate}`;
  }
  end() {
    clearInterval(this.timer);
    $("progress").textContent = "";
  }
}

// On a small screen the samples begin below its end.
function scrollToSamples() {
  if ($("samples").getBoundingClientRect().top < 0.6 * innerHeight) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  $("status").scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
}

async function send(progress) {
  if (isChat() && asked !== null && samples) takeAnswer(samples.cards[0].text); // the best one
  const body = requestBody();
  asked = isChat() ? $("prompt").value : null;
  $("votes").replaceChildren();
  samples = new Samples(body.n, options());
  showConversation();
  say("The prompt is being read.");
  scrollToSamples();
  let usage = null;
  const response = await ask(isChat() ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: running.signal,
  });
  if (body.stream) {
    for await (const item of streamEvents(response)) {
      usage = item.usage ?? usage;
      for (const choice of item.choices) samples.add(choice);
      if (item.choices.length > 0) progress.noteToken();
    }
  } else {
    const answer = await response.json();
    usage = answer.usage;
    for (const choice of answer.choices) samples.add(choice);
    showVotes(answer.votes, answer.choices.length);
  }
  samples.rank();
  const waited = progress.first === null ? "" : `, the first after ${progress.seconds(progress.first).toFixed(2)} s`;
  say(
    `${counted(usage.prompt_tokens, "prompt token")}, ${count(usage.prompt_tokens_details.cached_tokens)} of them cached; ` +
      `${counted(usage.completion_tokens, "token")} in ${progress.seconds().toFixed(1)} s${waited}.`,
  );
  if (!isChat()) return;
  if (body.n === 1) takeAnswer(samples.cards[0].text);
  else $("prompt").focus({ preventScroll: true });
  $("prompt").value = "";
}

// While a request runs, the conversation that it is of stays.
function showRunning(runs) {
  for (const id of ["send", "history", "clear", "forget"]) $(id).disabled = runs;
  $("stop").disabled = !runs;
  if (!runs) showList();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $("intro").hidden = true;
  showRunning(true);
  const progress = new Progress();
  try {
    await send(progress);
  } catch (error) {
    samples?.removeEmpty();
    if (error.name === "AbortError") say("Stopped.");
    else say(error instanceof RequestError ? error.message : `The page failed: ${error.message}.`, true);
    if (samples?.tokens) samples.rank();
    else asked = samples = null;
    showConversation();
  } finally {
    progress.end();
    running = null;
    showRunning(false);
    if (isChat() && (messages.length || asked !== null)) save();
  }
});

// ---------------------------------------------------------------------------------------------------------------------- form

$("try").addEventListener("click", () => {
  fill(exampleFor(context));
  form.requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  conversations.choose(null);
  open();
  $("prompt").value = "";
  $("prompt").focus();
});
$("forget").addEventListener("click", () => {
  conversations.remove();
  open();
});
$("history").addEventListener("change", () => {
  conversations.choose($("history").value);
  open();
});
$("markdown").addEventListener("change", () => {
  showConversation();
  for (const card of samples?.cards ?? []) card.show();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || (!isChat() && !event.ctrlKey && !event.metaKey)) return;
  event.preventDefault();
  form.requestSubmit();
});

function showOptions() {
  const vote = $("vote").value ? ", with a vote" : "";
  $("options-now").textContent = `${counted($("n").value, "sample")} of ${counted($("max-tokens").value, "token")} at most, temperature ${$("temperature").value}${vote}`;
}
form.addEventListener("input", showOptions);

function showMode() {
  document.body.classList.toggle("chat", isChat());
  $("prompt-label").textContent = isChat() ? "Message" : "Prompt";
  $("keys").textContent = isChat() ? "Enter sends, Shift+Enter begins a line" : "Ctrl+Enter sends";
}
for (const radio of form.elements.mode) radio.addEventListener("change", showMode);

async function showModel() {
  try {
    const model = (await (await ask("/v1/models")).json()).data[0];
    $("model").textContent = model.id;
    const isExample = $("system").value === exampleFor(context).system;
    context = model.max_model_len ?? kContext;
    if (isExample) $("system").value = exampleFor(context).system;
  } catch (error) {
    $("model").textContent = error.status === 401 ? "needs an API key" : "";
  }
}
$("key").addEventListener("change", showModel);

conversations.load();
await showModel(); // the example is as long as the model's context lets it be
open();
document.body.dataset.ready = "yes";
