// Deletions that begin some seconds later, so that they can be undone.

import { tell, tellError } from "./announcements.js";
import { send } from "./api.js";
import { say } from "./say.js";
import { signal, useEffect } from "./vendor/ui.js";

const UNDO_SECONDS = 8;

/** @type {Map<string, () => Promise<unknown>>} Deletions that have not begun, by their paths. */
const waiting = new Map();

/** Paths of what is being deleted, and is not shown. */
export const deleting = signal(/** @type {Set<string>} */ (new Set()));

/** @type {Set<(target: string) => unknown>} */
const listeners = new Set();

/**
 * Call a function with the path of each deletion; return a function that ends this.
 *
 * @param {(target: string) => unknown} listener
 */
export function onDeletion(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Load what a view shows again after each deletion.
 *
 * @param {() => Promise<void>} load
 */
export function useDeletions(load) {
  useEffect(() => {
    const end = onDeletion(load);
    return () => void end();
  }, []);
}

/**
 * Delete something after some seconds, in which this can be undone.
 *
 * It is deleted at once if the page is left.
 *
 * @param {string} target The path of the DELETE request.
 * @param {string} label Says what will be deleted.
 */
export function deleteLater(target, label) {
  deleting.value = new Set([...deleting.value, target]);
  const restore = () => {
    waiting.delete(target);
    deleting.value = new Set([...deleting.value].filter((one) => one !== target));
  };
  const remove = async () => {
    clearTimeout(timer);
    waiting.delete(target);
    try {
      await send("DELETE", target, { keepalive: true });
      // It stays hidden until no view shows it.
      await Promise.all([...listeners].map((one) => one(target)));
    } catch (error) {
      tellError(error);
    } finally {
      restore();
    }
  };
  const timer = setTimeout(() => void remove(), UNDO_SECONDS * 1000);
  waiting.set(target, remove);
  const undo = () => {
    clearTimeout(timer);
    close();
    restore();
  };
  const close = tell(label, {
    action: { label: say("undo"), run: undo }, seconds: UNDO_SECONDS,
  });
}

addEventListener("pagehide", () => {
  for (const remove of waiting.values()) void remove();
});
