// @ts-check
/** Shows who is logged in. */

/** @param {string} text */
function show(text) {
  const heading = document.createElement("h1");
  heading.textContent = text;
  document.querySelector("#page")?.replaceChildren(heading);
}

const response = await fetch("/api/session");
const answer = await response.json();
show(response.ok ? answer.user : answer.error.message);
