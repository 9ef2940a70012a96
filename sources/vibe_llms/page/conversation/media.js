// Images, audio, video, and files in a message.

import { addressOf, blobOf, isShown } from "../contents.js";
import { Icon } from "../icons.js";
import { say, saySize } from "../say.js";
import { html, useEffect, useState } from "../vendor/ui.js";

/** @typedef {import("../contents.js").StoredContent} StoredContent */

/**
 * @param {{ content: StoredContent }} props
 */
export function MediaView({ content }) {
  const address = useAddress(content);
  const { kind, mimetype = "", name = "", data } = content;
  const label = name || say(LABELS[kind] ?? "content.file");
  if (data?.by === "url") {
    // Nothing is loaded from elsewhere: the address could tell what the user reads.
    return address
      ? html`<p class="file"><${Icon} name="file" />
          <a href=${address} target="_blank" rel="noopener noreferrer">${label}</a>
          <span class="hint">${say("content.remote")}: ${address}</span></p>`
      : html`<p class="file"><${Icon} name="file" /> ${label}</p>`;
  }
  if (address && isShown(mimetype)) {
    if (kind === "image") {
      return html`<a class="image" href=${address} target="_blank" rel="noopener">
        <img src=${address} alt=${label} loading="lazy" /></a>`;
    }
    if (kind === "audio") return html`<audio controls preload="none" src=${address} aria-label=${label} />`;
    if (kind === "video") return html`<video controls preload="none" src=${address} aria-label=${label} />`;
  }
  const size = data?.size === undefined ? "" : saySize(data.size);
  return html`<p class="file"><${Icon} name="file" />
    ${address ? html`<a href=${address} download=${name || label}>${label}</a>` : label}
    <span class="hint">${[mimetype, size].filter(Boolean).join(", ")}</span></p>`;
}

/** @type {Record<string, import("../say.js").Word>} */
const LABELS = {
  image: "content.image", audio: "content.audio", video: "content.video", file: "content.file",
};

/**
 * Return the address of a content, or of a copy of data that is in the message.
 *
 * @param {StoredContent} content
 */
function useAddress(content) {
  const [address, setAddress] = useState(() => addressOf(content));
  useEffect(() => {
    if (typeof content.data !== "string") return undefined;
    const made = URL.createObjectURL(blobOf(content));
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [content]);
  return address;
}
