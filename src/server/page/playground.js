// The playground: sends a chat or a completion, shows the samples as they stream, side by side, and ranks them when they have ended.

const $ = (id) => document.getElementById(id);
const form = $("form"), samplesBox = $("samples"), votesBox = $("votes");
let messages = []; // of the conversation: what was asked and which answers were taken
let running = null; // AbortController of the request under way

export function headers(extra = {}) {
  const key = $("key").value;
  return key ? { ...extra, authorization: `Bearer ${key}` } : extra;
}

const isChat = () => form.elements.mode.value === "chat";

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

// ------------------------------------------------------------------------------------------------------------------ samples

class SampleCard {
  constructor(index) {
    this.index = index;
    this.text = "";
    this.sum = 0;
    this.tokens = 0;
    this.reason = null;
    this.box = element("article", "sample");
    this.title = element("h3", "", `Sample ${index + 1}`);
    this.facts = element("p", "facts");
    this.output = element("p", "text");
    this.box.append(this.title, this.facts, this.output);
    samplesBox.append(this.box);
  }

  add(choice) {
    this.text += isChat() ? (choice.delta ?? choice.message)?.content ?? "" : choice.text ?? "";
    const logprobs = choice.logprobs?.content?.map((token) => token.logprob) ?? choice.logprobs?.token_logprobs ?? [];
    for (const value of logprobs) this.sum += value;
    this.tokens += logprobs.length;
    this.reason = choice.finish_reason ?? this.reason;
    this.output.textContent = this.text;
    const mean = this.tokens ? `mean log-probability ${this.mean.toFixed(3)}` : "";
    this.facts.textContent = [`${this.tokens} tokens`, mean, this.reason ?? "…"].filter(Boolean).join(" · ");
  }

  get mean() {
    return this.tokens ? this.sum / this.tokens : -Infinity;
  }

  rank(place, isBest) {
    this.title.textContent = `#${place} · sample ${this.index + 1}`;
    this.box.classList.toggle("best", isBest);
    if (!isChat()) return;
    const take = element("button", "", "Continue with this answer");
    take.type = "button";
    take.addEventListener("click", () => takeAnswer(this.text));
    this.box.append(take);
  }
}

function rank(cards) {
  const ranked = [...cards].sort((a, b) => b.mean - a.mean);
  ranked.forEach((card, place) => {
    card.rank(place + 1, place === 0 && ranked.length > 1);
    samplesBox.append(card.box); // moves it
  });
}

function showVotes(votes) {
  if (votes === undefined) return;
  if (votes === null) {
    votesBox.append(element("h3", "", "Votes"), element("p", "", "the pattern takes too long on these texts"));
    return;
  }
  const list = element("ol");
  for (const vote of votes) list.append(element("li", "", `${vote.answer}: ${vote.count} ${vote.count === 1 ? "sample" : "samples"}`));
  votesBox.append(element("h3", "", "Votes"), votes.length ? list : element("p", "", "no sample has such an answer"));
}

// ------------------------------------------------------------------------------------------------------------- conversation

let asked = null; // the message whose answers are shown

function takeAnswer(text) {
  if (!asked) return;
  messages.push({ role: "user", content: asked }, { role: "assistant", content: text });
  asked = null;
  showConversation();
  samplesBox.replaceChildren();
  votesBox.replaceChildren();
  $("prompt").value = "";
  $("prompt").focus();
}

function showConversation() {
  $("conversation").replaceChildren(...messages.map((message) => element("li", message.role, message.content)));
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
    const { value, done } = await reader.read();
    if (done) throw new Error("the answer broke off");
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const item = JSON.parse(data);
      if (item.error) throw new Error(item.error.message);
      yield item;
    }
  }
}

async function send() {
  const body = requestBody();
  asked = isChat() ? $("prompt").value : null;
  samplesBox.replaceChildren();
  votesBox.replaceChildren();
  const cards = Array.from({ length: body.n }, (_, i) => new SampleCard(i));
  const begin = performance.now();
  let first = null, usage = null;
  const response = await fetch(isChat() ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST",
    headers: headers({ "content-type": "application/json" }),
    body: JSON.stringify(body),
    signal: running.signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  if (body.stream) {
    for await (const item of streamEvents(response)) {
      first ??= performance.now();
      usage = item.usage ?? usage;
      for (const choice of item.choices) cards[choice.index].add(choice);
    }
  } else {
    const answer = await response.json();
    usage = answer.usage;
    for (const choice of answer.choices) cards[choice.index].add(choice);
    showVotes(answer.votes);
  }
  rank(cards);
  const seconds = (performance.now() - begin) / 1000;
  const cached = usage.prompt_tokens_details.cached_tokens;
  const waited = first === null ? "" : `, first token after ${((first - begin) / 1000).toFixed(2)} s`;
  say(`${usage.prompt_tokens} prompt tokens, ${cached} of them cached; ${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s${waited}`);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  say("…");
  try {
    await send();
  } catch (error) {
    if (error.name === "AbortError") say("stopped");
    else say(error.message, true);
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
  }
});

$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  messages = [];
  asked = null;
  showConversation();
  samplesBox.replaceChildren();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

function showMode() {
  document.body.classList.toggle("chat", isChat());
  $("prompt-label").textContent = isChat() ? "Message" : "Prompt";
}
for (const radio of form.elements.mode) radio.addEventListener("change", showMode);
showMode();

async function showModel() {
  const response = await fetch("/v1/models", { headers: headers() });
  $("model").textContent = response.ok ? (await response.json()).data[0].id : "needs an API key";
}
$("key").addEventListener("change", () => showModel().catch(() => {}));
showModel().catch(() => {});
