// Functions that the page's parts share: elements, numbers as text, requests to the server and sentences for those that fail.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function button(text, action) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

const number = new Intl.NumberFormat("en");
export const count = (value) => number.format(value);
export const counted = (value, one) => `${count(value)} ${one}${Number(value) === 1 ? "" : "s"}`;

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

// The failure of a request, as a sentence that the page shows.
export class RequestError extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status; // 0: there was no answer
  }
}

function sentenceOf(status, message) {
  const said = message.endsWith(".") ? message : `${message}.`;
  if (status === 401) return `The server asks for an API key: ${said}`;
  if (status === 429) return `The server has no room for this right now: ${said}`;
  if (status >= 500) return `The server could not answer: ${said}`;
  return `The server refused the request: ${said}`;
}

export function headers(extra = {}) {
  const key = $("key").value;
  return key ? { ...extra, authorization: `Bearer ${key}` } : extra;
}

// The response of a request that succeeded; else throws a RequestError. An abort stays what it is.
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 401) $("key-label").hidden = false;
  let message = `status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // something between here and the server answered
  }
  throw new RequestError(sentenceOf(response.status, message), response.status);
}
