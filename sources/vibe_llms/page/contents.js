// The data of contents: in the message, or in the store under a hash.

import { path, send } from "./api.js";
import { readAddress } from "./markdown/inline.js";

/**
 * @typedef {object} StoredContent
 * @property {string} kind `text`, `image`, `audio`, `video`, `file`, `reasoning`, or another.
 * @property {any} [data] Text or Base64, or `{by: "hash" | "url" | "upload"}`.
 * @property {string} [mimetype]
 * @property {string} [name]
 * @property {Citation[]} [citations]
 * @property {import("./markdown/growing.js").GrowingMarkdown | undefined} [growing] Text that is being written.
 */

/**
 * @typedef {object} Citation
 * @property {string} [quote]
 * @property {string} [title]
 * @property {string} [source]
 * @property {string} [place]
 */

/** Return the text of a content that is not in the store, or null.
 *
 * @param {StoredContent} content
 */
export function textOf(content) {
  return typeof content.data === "string" ? content.data : null;
}

/**
 * Return the text of a content, from the store if necessary.
 *
 * @param {StoredContent} content
 * @returns {Promise<string>}
 */
export async function loadText(content) {
  const text = textOf(content);
  if (text !== null) return text;
  if (content.data?.by !== "hash") return "";
  const response = await send("GET", path`/api/contents/${content.data.hash}`);
  return response.text();
}

/**
 * Return the text of all text contents of a message.
 *
 * @param {{ contents?: StoredContent[] }} message
 */
export async function loadTexts({ contents = [] }) {
  const texts = contents.filter((one) => one.kind === "text").map(loadText);
  return (await Promise.all(texts)).join("");
}

/**
 * Return the files of a message as attachments of another one.
 *
 * @param {StoredContent[]} [contents]
 * @returns {import("./drafts.js").Attachment[]}
 */
export function listFiles(contents = []) {
  return contents
    .filter(({ kind, data }) => kind !== "text" && data?.by === "hash")
    .map(({ kind, data, name = "", mimetype: type = "" }) =>
      ({ id: data.hash, name: name || kind, size: data.size, type }));
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

/** Return true if a browser shows data of this type without running any of it.
 *
 * @param {string} type
 */
export function isShown(type) {
  return PICTURES.has(type) || /^(?:audio|video)\/[\w.+-]+$/.test(type);
}

/**
 * Return the address of a content's bytes, for a picture, a player, or a download.
 *
 * @param {StoredContent} content
 */
export function addressOf(content) {
  const { data, mimetype = "" } = content;
  if (data?.by === "hash") {
    const type = isShown(mimetype) ? `?type=${encodeURIComponent(mimetype)}` : "";
    return path`/api/contents/${data.hash}` + type;
  }
  if (data?.by === "url") return readAddress(data.url);
  return "";
}

/**
 * Return a file for data in the message itself.
 *
 * @param {StoredContent} content
 */
export function blobOf({ data, mimetype = "" }) {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  return new Blob([bytes], { type: isShown(mimetype) ? mimetype : "application/octet-stream" });
}
