export { Lexer, getDefaults } from "marked";
export type { MarkedOptions, Token, Tokens } from "marked";
