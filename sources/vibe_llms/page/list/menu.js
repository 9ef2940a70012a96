// The menu of a conversation: rename, tag, export, delete.

import { path } from "../api.js";
import { tellError } from "../announcements.js";
import { Icon } from "../icons.js";
import { Menu } from "../menus.js";
import { address, go, route } from "../router.js";
import { say } from "../say.js";
import { askText } from "../dialogs.js";
import { html } from "../vendor/ui.js";
import {
  changeConversation, chosenTag, deleteConversation, loadConversations,
} from "./conversations.js";

/**
 * @param {{ one: import("./conversations.js").Named }} props
 */
export function ConversationMenu({ one }) {
  const rename = async () => {
    const name = await askText(say("list.rename"), one.name || one.title);
    if (name !== null) await changeConversation(one.id, { name }).catch(tellError);
  };
  const tag = async () => {
    const given = await askText(say("list.tag"), one.tags.join(", "));
    if (given === null) return;
    const wanted = given.split(",").map((text) => text.trim()).filter(Boolean);
    await changeConversation(one.id, {
      add_tags: wanted.filter((text) => !one.tags.includes(text)),
      remove_tags: one.tags.filter((text) => !wanted.includes(text)),
    }).catch(tellError);
  };
  const remove = () => {
    deleteConversation(one);
    if (route.value.view === "c" && route.value.parts[0] === one.id) go("#/");
  };
  const title = one.title || say("list.untitled");
  return html`<${Menu} label=${say("list.menu", { title })} items=${[
    { icon: "edit", label: say("list.rename"), run: rename },
    { icon: "tag", label: say("list.tag"), run: tag },
    ...one.tags.map((name) => ({
      icon: "tag", label: say("list.onlyTag", { tag: name }),
      run: () => { chosenTag.value = name; void loadConversations(); },
    })),
    { icon: "branch", label: say("list.forks"), href: address("forks", one.id) },
    ...["md", "html", "json"].map((form) => ({
      icon: "export",
      label: say("list.export", { form: form.toUpperCase() }),
      href: `${path`/api/conversations/${one.id}/export`}?form=${form}`,
      download: true,
    })),
    { icon: "trash", label: say("list.delete"), run: remove },
  ]}><${Icon} name="more" /><//>`;
}
