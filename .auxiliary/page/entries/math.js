import temml from "temml";

export const render = temml.render;
