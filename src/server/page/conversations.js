// Conversations, kept in this browser's local storage: what was asked, which answers were taken, and the last question with its
// samples. The API key is never stored.

const kPlace = "coppice.conversations";
const kMost = 50; // the oldest go first

let kept = { current: null, list: [] };

export function load() {
  try {
    const read = JSON.parse(localStorage.getItem(kPlace));
    if (Array.isArray(read?.list)) kept = read;
  } catch {
    // nothing is stored, storage is off, or another version wrote it
  }
}

export const all = () => kept.list;
export const current = () => kept.list.find((one) => one.id === kept.current) ?? null;

function store() {
  while (kept.list.length > 0) {
    try {
      localStorage.setItem(kPlace, JSON.stringify(kept));
      return;
    } catch {
      if (kept.list.length === 1) return; // storage is off, or one conversation fills it: it lasts as long as the page
      kept.list.pop();
    }
  }
  try {
    localStorage.removeItem(kPlace);
  } catch {
    // storage is off
  }
}

// Stores fields of the conversation at hand, which begins where there is none: {fields, messages, asked, answers}.
export function save(state) {
  let one = current();
  if (!one) {
    one = { id: `${Date.now()}-${Math.random().toString(36).slice(2)}` };
    kept.current = one.id;
  }
  Object.assign(one, state);
  one.title ||= (one.messages[0]?.content ?? one.asked ?? "").trim().slice(0, 60);
  kept.list = [one, ...kept.list.filter((other) => other !== one)].slice(0, kMost);
  store();
}

export function choose(id) {
  kept.current = id;
  store();
}

export function remove() {
  kept.list = kept.list.filter((one) => one.id !== kept.current);
  kept.current = null;
  store();
}
