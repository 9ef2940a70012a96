// The family of the conversation that is shown. What draws it is loaded once there are branches.

import { get, path } from "../api.js";
import { onChange } from "../events.js";
import { signal, useEffect } from "../vendor/ui.js";

/** @typedef {import("./family.js").Family} Family */

/** Milliseconds between a change and the loading of the family, so that several are one request. */
const PAUSE_MS = 400;

/** The family that was loaded last. */
const family = signal(/** @type {Family | null} */ (null));

/**
 * The module that draws branches in a conversation, once there are some.
 *
 * @type {import("../vendor/ui.js").Signal<typeof import("../conversation/siblings.js") | null>}
 */
export const branches = signal(/** @type {any} */ (null));

/**
 * Return the family of a conversation, if it is loaded.
 *
 * @param {string} identity
 */
export function familyOf(identity) {
  return family.value?.byId.has(identity) ? family.value : null;
}

/**
 * Load the family of a conversation.
 *
 * @param {string} identity
 * @param {AbortSignal} [abort]
 */
export async function loadFamily(identity, abort) {
  const address = path`/api/conversations/${identity}/family`;
  const [{ conversations }, { Family }] = await Promise.all([
    get(address, {}, abort), import("./family.js"),
  ]);
  if (conversations.length > 1) branches.value ??= await import("../conversation/siblings.js");
  return (family.value = new Family(conversations));
}

/**
 * Call a function some time after conversations have changed.
 *
 * @param {() => void} load
 * @param {unknown[]} dependencies
 */
export function useFamilyChanges(load, dependencies) {
  useEffect(() => {
    let timer = 0;
    const end = onChange(({ change }) => {
      if (change === "run") return;
      timer ||= setTimeout(() => {
        timer = 0;
        load();
      }, PAUSE_MS);
    });
    return () => {
      end();
      clearTimeout(timer);
    };
  }, dependencies);
}
