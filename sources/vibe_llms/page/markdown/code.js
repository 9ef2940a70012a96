// A block of code, with its language, a button to copy it, and colors once Prism is loaded.

import { CopyButton } from "../copying.js";
import { say } from "../say.js";
import { html, useEffect, useState } from "../vendor/ui.js";

/** Longer code stays without colors. */
const LONGEST = 50_000;

/** @type {Record<string, string>} */
const NAMES = {
  js: "javascript", jsx: "javascript", ts: "typescript", tsx: "typescript", py: "python",
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", yml: "yaml", html: "markup",
  xml: "markup", svg: "markup", rs: "rust", "c++": "cpp", golang: "go", jsonl: "json",
  patch: "diff",
};

/** @typedef {import("../vendor/prism.js").Token} CodeToken */

/**
 * @param {{ text: string, language: string, complete: boolean }} props
 */
export function CodeBlock({ text, language, complete }) {
  const [tokens, setTokens] = useState(
    /** @type {Array<string | CodeToken> | null} */ (null),
  );
  useEffect(() => {
    let current = true;
    setTokens(null);
    if (complete && language && text.length <= LONGEST) {
      import("../vendor/prism.js").then(({ languages, tokenize }) => {
        const given = language.toLowerCase();
        const name = Object.hasOwn(NAMES, given) ? NAMES[given] ?? "" : given;
        const grammar = Object.hasOwn(languages, name) ? languages[name] : undefined;
        if (current && typeof grammar === "object") setTokens(tokenize(text, grammar));
      }, () => undefined); // Without Prism, code has no colors.
    }
    return () => {
      current = false;
    };
  }, [text, language, complete]);
  return html`<figure class="code">
    <figcaption>
      <span>${language || say("code.plain")}</span>
      <${CopyButton} text=${() => text} label=${say("code.copy")} />
    </figcaption>
    <pre tabindex="0" role="group" aria-label=${say("code.label", { language })}><code
    >${tokens ? drawTokens(tokens) : text}</code></pre>
  </figure>`;
}

/**
 * @param {Array<string | CodeToken>} tokens
 * @returns {import("../vendor/ui.js").ComponentChildren}
 */
function drawTokens(tokens) {
  return tokens.map((token) => {
    if (typeof token === "string") return token;
    const { content } = token;
    const inner = typeof content === "string" ? content : drawTokens([content].flat());
    return html`<span class=${`code-${token.type}`}>${inner}</span>`;
  });
}
