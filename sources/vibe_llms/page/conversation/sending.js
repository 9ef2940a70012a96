// Sending what the user typed, so that nothing is lost and nothing is sent twice.

import { ApiError, path, request } from "../api.js";
import { loadDraft, produceKey, saveDraft } from "../drafts.js";
import { say } from "../say.js";
import { storageFails } from "../stored.js";
import { signal } from "../vendor/ui.js";

/** Status of a request whose key belongs to a request with another body. */
const KEY_REUSED = 422;

const NOTHING = { text: "", files: [] };

/** @typedef {import("../drafts.js").Draft} Draft */
/** @typedef {import("../drafts.js").Pending} Pending */

/** The draft of one conversation, and its sending. */
export class Outbox {
  /** @param {string} conversation The id, or `new`. */
  constructor(conversation) {
    this.conversation = conversation;
    /** @type {import("../vendor/ui.js").Signal<Draft>} */
    this.draft = signal(loadDraft(conversation));
    this.sending = signal(false);
    this.error = signal("");
    /** Code of the server's error of the last attempt, or an empty text. */
    this.code = "";
  }

  /** Show what is typed in another tab while this one is not used; return a function to end it. */
  watch() {
    const read = () => {
      if (!document.hasFocus() && !this.sending.value) this.draft.value = loadDraft(this.conversation);
    };
    addEventListener("storage", read);
    return () => removeEventListener("storage", read);
  }

  /** Change the draft and store it.
   *
   * @param {Partial<Draft>} change
   */
  change(change) {
    this.draft.value = { ...this.draft.value, ...change };
    saveDraft(this.conversation, this.draft.value);
  }

  /**
   * Put another message in the box, and what is there aside until that is sent or given up.
   *
   * @param {{ text: string, files?: import("../drafts.js").Attachment[] }} message
   * @param {{ at: string } | null} edit The message after which this one begins a branch.
   */
  replace({ text, files = [] }, edit) {
    const { text: typed, files: attached, aside } = this.draft.value;
    this.change({ text, files, edit, aside: aside ?? { text: typed, files: attached } });
  }

  /** Add a text to the end of the box.
   *
   * @param {string} text
   */
  append(text) {
    this.change({ text: [this.draft.value.text, text].filter(Boolean).join("\n\n") });
  }

  /** Put back what was in the box before. */
  giveUp() {
    this.change({ ...(this.draft.value.aside ?? NOTHING), edit: null, aside: null });
  }

  /**
   * Send the draft as a run; return the run, or null if the draft is kept because of an error.
   *
   * @param {string} model The model or agent, or an empty text for the conversation's own.
   */
  send(model) {
    const { text, files, collections, edit } = this.draft.value;
    /** @type {any} */
    const body = { prompt: text, files: files.map((one) => one.id) };
    if (collections.length) body.collections = collections;
    if (model) body.model = model;
    if (this.conversation !== "new") body.conversation = this.conversation;
    if (edit) Object.assign(body, { fork_at: edit.at, supersede: true });
    return this.#deliver("/api/runs", body);
  }

  /**
   * Add the draft to a run that is going.
   *
   * @param {string} run
   */
  steer(run) {
    const { text, files } = this.draft.value;
    const body = { prompt: text, files: files.map((one) => one.id) };
    return this.#deliver(path`/api/runs/${run}/steer`, body);
  }

  /** Send again what was sent before the page was closed, if the server has not acknowledged it. */
  async resume() {
    const { pending } = this.draft.value;
    return pending ? this.#post(pending) : null;
  }

  /**
   * Send the draft, with the key of an earlier attempt, so that it is not accepted twice.
   *
   * @param {string} path
   * @param {any} body
   */
  async #deliver(path, body) {
    const { pending } = this.draft.value;
    if (pending && pending.path !== path) {
      // The run may have taken it before it ended; its key is not known elsewhere.
      const reply = await this.#post(pending);
      if (reply || this.draft.value.pending) return reply;
    }
    return this.#post({ key: this.draft.value.pending?.key ?? produceKey(), path, body });
  }

  /** @param {Pending} pending */
  async #post(pending) {
    if (this.sending.value) return null;
    this.sending.value = true;
    this.error.value = this.code = "";
    this.change({ pending });
    try {
      const headers = { "Idempotency-Key": pending.key };
      const reply = await request("POST", pending.path, { json: pending.body, headers });
      this.#acknowledge(pending, reply);
      return reply;
    } catch (error) {
      this.#refuse(error);
      return null;
    } finally {
      this.sending.value = false;
    }
  }

  /** @param {unknown} error */
  #refuse(error) {
    if (error instanceof ApiError && error.status === KEY_REUSED) {
      // An earlier attempt arrived; what is in the box now is another text.
      this.error.value = say("send.earlier");
      this.change({ pending: null });
      return;
    }
    this.error.value = error instanceof Error ? error.message : String(error);
    this.code = error instanceof ApiError ? error.code : "";
    const passing = error instanceof ApiError && error.isPassing;
    if (!passing) this.change({ pending: null });
  }

  /**
   * @param {Pending} pending
   * @param {{ conversation?: string }} reply
   */
  #acknowledge(pending, { conversation = this.conversation }) {
    // Another tab may have sent it too, and the user may have typed there since.
    if (!storageFails.value) this.draft.value = loadDraft(this.conversation);
    const { text, collections, aside } = this.draft.value;
    if (this.draft.value.pending?.key !== pending.key) return;
    if (conversation !== this.conversation && collections.length) {
      saveDraft(conversation, { ...loadDraft(conversation), collections });
    }
    const kept = this.conversation === "new" ? [] : collections;
    // What was typed while the message was on its way stays.
    const sent = pending.body.prompt;
    const rest = text.startsWith(sent) ? text.slice(sent.length) : text;
    const next = (!rest && aside) || { text: rest, files: [] };
    this.change({ ...next, collections: kept, pending: null, edit: null, aside: null });
  }
}
