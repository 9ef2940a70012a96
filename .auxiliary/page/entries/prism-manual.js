// Prism reads this when it is loaded: it must not highlight the page by itself.
globalThis.Prism = { manual: true };
