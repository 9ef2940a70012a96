// The words about branches in English. What draws branches loads them.

import { addWords } from "../say.js";

export const BRANCHES = {
  "forks.title": "Fork tree",
  "forks.count": "{count} branch.|{count} branches.",
  "forks.keys": "Arrow keys move between branches, Enter opens one.",
  "forks.current": "You are here",
  "forks.from": "From message {message} of branch {branch}",
  "forks.fromStart": "Begins anew, from branch {branch}",
  "forks.fromDeleted": "From a branch that was deleted",
  "forks.messages": "{count} message|{count} messages",
  "forks.superseded": "Replaced by a newer branch",
  "forks.empty": "Nothing of its own yet.",
  "forks.excerpt": "{role}: {text}",
  "forks.compare": "Compare with the branch where you are",
  "forks.compareWith": "Compare with branch {number}",
  "forks.name": "{title} (branch {number})",
  "forks.ends": "This branch ends here; another one goes on.|This branch ends here; {count} others go on.",
  "forks.openOther": "Open it",

  "compare.branch": "{number}. {title}",
  "compare.title": "Two branches",
  "compare.shared": "{count} message in common|{count} messages in common",
  "compare.nothing": "These branches have no message in common.",
  "compare.strangers": "These conversations are not branches of one another, or one was deleted.",
};

addWords(BRANCHES);
