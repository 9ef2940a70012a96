// Requests to the server, with its errors as `ApiError`.

import { say } from "./say.js";
import { signal } from "./vendor/ui.js";

/** False while the server does not answer. */
export const reachable = signal(true);

/** False once the server has refused a request because nobody is logged in. */
export const loggedIn = signal(true);

/** An error that the server reports, or a request that did not reach it (status 0). */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   * @param {string} [code]
   */
  constructor(message, status, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** True if the same request may succeed later. */
  get isPassing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/**
 * Send a request; return the JSON of the reply.
 *
 * @param {string} method
 * @param {string} path
 * @param {{ json?: unknown, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function request(method, path, options = {}) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : await response.json();
}

/**
 * Send a request; return the response, whose body is not read yet.
 *
 * @param {string} method
 * @param {string} path
 * @param {{ json?: unknown, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal,
 *   keepalive?: boolean }} [options] With `keepalive`, it outlives the page.
 * @returns {Promise<Response>}
 */
export async function send(method, path, options = {}) {
  const { json, body, headers = {}, signal: abort, keepalive = false } = options;
  /** @type {RequestInit} */
  const init = { method, headers: { ...headers }, credentials: "same-origin", keepalive };
  if (abort) init.signal = abort;
  if (json !== undefined) {
    init.body = JSON.stringify(json);
    init.headers = { ...headers, "Content-Type": "application/json" };
  } else if (body !== undefined) {
    init.body = body;
  }
  let response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (abort?.aborted) throw error;
    reachable.value = false;
    throw new ApiError(say("error.unreachable"), 0);
  }
  reachable.value = true;
  if (!response.ok) throw await readError(response);
  return response;
}

/**
 * Send a GET request with query parameters; empty ones are left out.
 *
 * @param {string} path
 * @param {Record<string, string | number | boolean | undefined>} [query]
 * @param {AbortSignal} [abort]
 * @returns {Promise<any>}
 */
export function get(path, query = {}, abort) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return request("GET", text ? `${path}?${text}` : path, abort ? { signal: abort } : {});
}

/** Return the path of an object below another, with its id escaped.
 *
 * @param {TemplateStringsArray} parts
 * @param {...string} ids
 */
export function path(parts, ...ids) {
  return parts.reduce((text, part, place) => text + encodeURIComponent(ids[place - 1] ?? "") + part);
}

/**
 * @param {Response} response
 * @returns {Promise<ApiError>}
 */
export async function readError(response) {
  if (response.status === 401) loggedIn.value = false;
  try {
    const { error } = await response.json();
    return new ApiError(error.message, response.status, error.code ?? "");
  } catch {
    return new ApiError(say("error.status", { status: response.status }), response.status);
  }
}
