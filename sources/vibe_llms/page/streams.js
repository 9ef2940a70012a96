// Server-sent events that are followed across lost connections.

import { ApiError, reachable, send } from "./api.js";

const SHORTEST_WAIT = 300;
const LONGEST_WAIT = 10_000;

/**
 * Follow a stream of events until it ends, `signal` is aborted, or the server refuses it.
 *
 * After a lost connection, the stream continues after the last event that arrived.
 *
 * @param {string} path
 * @param {{
 *   after?: string,
 *   signal: AbortSignal,
 *   onEvent: (event: any, cursor: string) => boolean | void,
 * }} options `onEvent` returns true for the last event.
 * @returns {Promise<void>} Rejects with the `ApiError` of a refusal.
 */
export async function follow(path, { after = "", signal, onEvent }) {
  let cursor = after;
  let wait = SHORTEST_WAIT;
  while (!signal.aborted) {
    try {
      /** @type {Record<string, string>} */
      const headers = { Accept: "text/event-stream" };
      if (cursor) headers["Last-Event-ID"] = cursor;
      const response = await send("GET", path, { headers, signal });
      wait = SHORTEST_WAIT;
      for await (const { id, data } of readEvents(response)) {
        cursor = id || cursor;
        if (onEvent(JSON.parse(data), cursor)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !error.isPassing) throw error;
      if (!(error instanceof ApiError)) reachable.value = false;
    }
    await pause(wait, signal);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

/**
 * @param {Response} response
 * @returns {AsyncGenerator<{ id: string, data: string }>}
 */
async function* readEvents(response) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const event = readEvent(part);
        if (event.data) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/**
 * @param {string} part
 * @returns {{ id: string, data: string }}
 */
function readEvent(part) {
  let id = "";
  const data = [];
  for (const line of part.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return { id, data: data.join("\n") };
}

/**
 * Wait, or until the browser is online again.
 *
 * @param {number} milliseconds
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    addEventListener("online", end);
    signal.addEventListener("abort", end, { once: true });
  });
}
