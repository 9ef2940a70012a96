// Messages that a run is writing, drawn once a frame.

import { GrowingMarkdown } from "../markdown/growing.js";
import { signal } from "../vendor/ui.js";

/** A message that is not complete. */
export class LiveMessage {
  /**
   * @param {{ message: string, role: string, name?: string }} started
   */
  constructor({ message, role, name = "" }) {
    this.identity = message;
    /** @type {import("./history.js").StoredMessage} */
    this.message = { identity: message, role, name, created: "" };
    this.text = new GrowingMarkdown();
    this.reasoning = "";
    this.arguments = "";
    this.failed = "";
    /** Number of the last frame that changed it. */
    this.version = signal(0);
  }

  /** @returns {import("../contents.js").StoredContent[]} */
  get contents() {
    /** @type {import("../contents.js").StoredContent[]} */
    const found = this.reasoning ? [{ kind: "reasoning", data: this.reasoning }] : [];
    return this.text.text ? [...found, { kind: "text", growing: this.text }] : found;
  }

  /**
   * @param {{ kind?: string, text: string }} delta
   */
  add({ kind = "text", text }) {
    if (kind === "text") this.text.add(text);
    else if (kind === "reasoning") this.reasoning += text;
    else this.arguments += text;
    touched.add(this);
    frame ||= requestAnimationFrame(flush);
  }
}

/** @type {Set<LiveMessage>} */
const touched = new Set();
let frame = 0;

function flush() {
  frame = 0;
  for (const one of touched) {
    one.text.update();
    one.version.value += 1;
  }
  touched.clear();
}
