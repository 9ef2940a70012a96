// What a model cannot take of a conversation and of a draft, to be said before it is sent.

import { findChoice } from "../models.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";

const KINDS = /** @type {const} */ (["image", "audio", "video"]);

/** @type {Record<string, import("../say.js").Word>} */
const LOST = { image: "composer.noImages", audio: "composer.noAudio", video: "composer.noVideo" };

/** @type {Record<string, import("../say.js").Word>} */
const REFUSED = {
  image: "composer.refusesImages", audio: "composer.refusesAudio", video: "composer.refusesVideo",
};

/**
 * @param {{
 *   model: string,
 *   messages: import("./history.js").StoredMessage[],
 *   files: import("../drafts.js").Attachment[],
 * }} props `model` is the agent or model that will answer.
 */
export function Losses({ model, messages, files }) {
  const texts = describeLosses(model, messages, files);
  return html`<div role="status">
    ${texts.map((text) => html`<p class="notice" key=${text}>${text}</p>`)}
  </div>`;
}

/**
 * @param {string} model
 * @param {import("./history.js").StoredMessage[]} messages
 * @param {import("../drafts.js").Attachment[]} files
 */
function describeLosses(model, messages, files) {
  const abilities = findChoice(model)?.abilities;
  if (!abilities) return [];
  const said = new Set(messages.flatMap(({ contents = [] }) => contents.map((one) => one.kind)));
  const attached = new Set(files.map((one) => one.type.split("/")[0] ?? ""));
  const texts = KINDS.filter((kind) => !abilities.accepts.includes(kind)).flatMap((kind) => {
    // An attachment that the model cannot take is an error; an earlier message is described to it.
    const word = attached.has(kind) ? REFUSED[kind] : said.has(kind) ? LOST[kind] : undefined;
    return word ? [say(word, { model })] : [];
  });
  const called = messages.some((one) => one.role === "invocation");
  if (called && abilities.tools === "none") texts.push(say("composer.noTools", { model }));
  return texts;
}
