// Loads the page, and says so if a part of it is missing, instead of staying blank. It imports
// nothing itself, and its words are in index.html, so that nothing it needs can be missing.

import("./main.js").catch((error) => {
  const told = document.getElementById("unloaded");
  told?.querySelector("button")?.addEventListener("click", () => location.reload());
  told?.removeAttribute("hidden");
  throw error;
});
