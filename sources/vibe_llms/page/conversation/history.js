// A conversation on the page: its stored messages, and the run that adds to it.

import { ApiError, get, path, request } from "../api.js";
import { speak } from "../announcements.js";
import { say } from "../say.js";
import { follow } from "../streams.js";
import { batch, signal } from "../vendor/ui.js";
import { loadWaiting, waiting } from "../waiting.js";
import { LiveMessage } from "./live.js";

/**
 * @typedef {object} StoredMessage
 * @property {string} role
 * @property {string} identity
 * @property {string} created
 * @property {import("../contents.js").StoredContent[]} [contents]
 * @property {string} [reply]
 * @property {string} [name]
 * @property {string} [arguments]
 * @property {string} [invocation]
 * @property {boolean} [failed]
 * @property {string} [display]
 * @property {string} [title]
 * @property {string} [source]
 * @property {boolean} [steered]
 * @property {string} [last]
 * @property {number} [before]
 * @property {number} [after]
 * @property {{ row: string, model: string }} [provenance]
 * @property {{ reason: string, usage?: Record<string, number>, detail?: string }} [ending]
 */

/**
 * @typedef {object} Run
 * @property {string} id
 * @property {string} status
 * @property {string} conversation
 * @property {string} [title] Beginning of the user's message.
 * @property {string} model
 * @property {string} created
 * @property {string} error
 * @property {string} updated
 * @property {any[]} [approvals]
 * @property {any[]} [questions]
 * @property {{ id: string, text: string }[]} [queued]
 */

/** @typedef {{ subject: string, text: string, message?: string }} RunNotice */

const PAGE = 60;
const ACTIVE = new Set(["queued", "running", "waiting"]);

/** A conversation that is open on the page. */
export class ConversationHistory {
  /** @param {string} identity */
  constructor(identity) {
    this.identity = identity;
    /** @type {import("../vendor/ui.js").Signal<StoredMessage[]>} */
    this.messages = signal(/** @type {StoredMessage[]} */ ([]));
    this.loaded = signal(false);
    /** True while new text keeps the end in view, because the reader is there. */
    this.following = signal(true);
    this.hasMore = signal(false);
    this.gone = signal(false);
    this.error = signal("");
    this.head = signal(/** @type {any} */ (null));
    this.run = signal(/** @type {Run | null} */ (null));
    this.live = signal(/** @type {LiveMessage[]} */ ([]));
    this.notices = signal(/** @type {RunNotice[]} */ ([]));
    /** Progress of the tools that run, by invocation. */
    this.progress = signal(/** @type {Record<string, any>} */ ({}));
    this.closing = new AbortController();
    /** Resolves when the run has ended. */
    this.ended = Promise.resolve();
    /** @type {Promise<void> | null} */
    this.refreshing = null;
    this.stale = false;
  }

  /** Load the last messages, and follow the run if there is one. */
  async open() {
    await Promise.all([this.refresh(), this.findRun().catch((error) => this.#fail(error))]);
    if (!this.run.value) await this.#showEnd().catch((error) => this.#fail(error));
  }

  /** Show how the last run ended, if it was not completed and the last messages are its own. */
  async #showEnd() {
    const last = await this.#findNewestRun({});
    const said = new Date(this.messages.value.at(-1)?.created ?? 0);
    if (!last || last.status === "completed" || new Date(last.updated) < said) return;
    if (this.run.value) return;
    this.run.value = last;
    await this.refreshRun();
  }

  /** Stop to follow the run, which goes on. */
  close() {
    this.closing.abort();
  }

  /** Load the last messages again; the messages before them stay. */
  refresh() {
    this.stale = true;
    this.refreshing ??= this.#refresh().finally(() => {
      this.refreshing = null;
    });
    return this.refreshing;
  }

  async #refresh() {
    while (this.stale && !this.closing.signal.aborted) {
      this.stale = false;
      try {
        this.#take(await this.#load({}));
        this.error.value = "";
      } catch (error) {
        // A conversation that has just begun is stored by its run.
        if (isMissing(error)) await this.findRun().catch(() => undefined);
        this.#fail(error);
      }
    }
  }

  /** Load the page of messages before those shown. */
  async loadOlder() {
    const first = this.messages.value[0];
    if (!this.hasMore.value || !first) return;
    try {
      const page = await this.#load({ before: first.identity });
      if (this.messages.value[0] !== first) return;
      batch(() => {
        this.messages.value = [...page.messages, ...this.messages.value];
        this.hasMore.value = page.has_more;
      });
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Load messages until one is shown.
   *
   * @param {string} identity
   */
  async reveal(identity) {
    while (this.hasMore.value && !this.messages.value.some((one) => one.identity === identity)) {
      await this.loadOlder();
      if (this.error.value) return;
    }
  }

  /** Follow the run of the conversation that has not ended. */
  async findRun() {
    const found = await this.#findNewestRun({ status: "unfinished" });
    if (found) this.watch(found);
  }

  /**
   * @param {{ status?: string }} query
   * @returns {Promise<Run | undefined>}
   */
  async #findNewestRun(query) {
    return (await get("/api/runs", { ...query, conversation: this.identity, limit: 1 })).runs[0];
  }

  /** Show a run and its events from the beginning.
   *
   * @param {Run} run
   */
  watch(run) {
    if (this.run.value?.id === run.id && ACTIVE.has(this.run.value.status)) return;
    batch(() => {
      this.run.value = run;
      this.gone.value = false;
      this.live.value = [];
      this.notices.value = [];
    });
    const asked = waiting.value.some((one) => one.conversation === this.identity);
    if (!asked) speak(say("status.answering"));
    this.ended = this.#follow(run);
  }

  /** Load the state of the run again: its questions, calls to decide, and queued messages. */
  async refreshRun() {
    const { value: run } = this.run;
    if (!run) return;
    const seen = await get(path`/api/runs/${run.id}`, {}, this.closing.signal).catch(() => null);
    if (seen && this.run.value?.id === run.id) this.run.value = seen;
  }

  /** Request the end of the run. */
  async stop() {
    const { value: run } = this.run;
    if (run) await request("POST", path`/api/runs/${run.id}/cancel`);
  }

  /** @param {Run} run */
  async #follow(run) {
    try {
      await follow(path`/api/runs/${run.id}/events`, {
        signal: this.closing.signal,
        onEvent: (event) => this.#apply(run, event),
      });
    } catch (error) {
      this.#fail(error);
    }
  }

  /**
   * @param {Run} run
   * @param {any} event
   * @returns {boolean} True if it is the last one.
   */
  #apply(run, event) {
    const live = this.live.value;
    switch (event.event) {
      case "message-started":
        // The user's message is stored by now.
        if (!live.length) void this.refresh();
        if (!this.#stored(event.message)) this.live.value = [...live, new LiveMessage(event)];
        return false;
      case "delta":
        live.findLast((one) => one.identity === event.message)?.add(event);
        return false;
      case "message-failed": {
        const failed = live.findLast((one) => one.identity === event.message);
        if (failed) failed.failed = event.error || say("reply.broken");
        void this.refresh();
        return false;
      }
      case "call-progress":
        this.progress.value = { ...this.progress.value, [event.invocation]: event };
        return false;
      case "notice":
        this.notices.value = [...this.notices.value, event];
        return false;
      case "continued":
        this.live.value = live.filter((one) => one.identity !== event.message);
        return false;
      case "approval-requested":
      case "answer-requested":
        void loadWaiting().catch((error) => this.#fail(error));
        void this.refreshRun();
        void this.refresh();
        return false;
      case "ended":
      case "expired":
        void this.#end(run, event);
        return true;
      default:
        void this.refresh();
        return false;
    }
  }

  /**
   * @param {Run} run
   * @param {any} event
   */
  async #end(run, event) {
    await this.refresh();
    if (this.run.value?.id !== run.id) return;
    batch(() => {
      this.run.value = { ...run, status: event.status, error: event.error ?? "" };
      this.live.value = [];
    });
    speak(say(event.status === "completed" ? "status.finished" : "status.failed"));
    // Messages that were added too late are not sent.
    if (event.status !== "completed") await this.refreshRun();
  }

  /** @param {string} identity */
  #stored(identity) {
    return this.messages.value.some((one) => one.identity === identity);
  }

  /** @param {Record<string, string>} query */
  #load(query) {
    return get(
      path`/api/conversations/${this.identity}/messages`,
      { limit: PAGE, ...query },
      this.closing.signal,
    );
  }

  /** @param {any} page */
  #take(page) {
    const fresh = new Set(page.messages.map((/** @type {StoredMessage} */ one) => one.identity));
    const shown = this.messages.value;
    const first = shown.findIndex((one) => fresh.has(one.identity));
    const kept = new Map(shown.map((one) => [one.identity, one]));
    const older = first > 0 ? shown.slice(0, first) : [];
    batch(() => {
      this.head.value = page;
      // A stored message does not change, so the object that is drawn already stays.
      this.messages.value = [
        ...older,
        ...page.messages.map((/** @type {StoredMessage} */ one) => kept.get(one.identity) ?? one),
      ];
      if (!older.length) this.hasMore.value = page.has_more;
      this.live.value = this.live.value.filter((one) => !fresh.has(one.identity));
      this.loaded.value = true;
      this.gone.value = false;
    });
  }

  /** @param {unknown} error */
  #fail(error) {
    if (this.closing.signal.aborted) return;
    if (isMissing(error)) this.gone.value = !isActive(this.run.value);
    else this.error.value = error instanceof Error ? error.message : String(error);
  }
}

/** @param {unknown} error */
function isMissing(error) {
  return error instanceof ApiError && error.status === 404;
}

/** Return true if a run has not ended.
 *
 * @param {Run | null} run
 */
export function isActive(run) {
  return run !== null && ACTIVE.has(run.status);
}
