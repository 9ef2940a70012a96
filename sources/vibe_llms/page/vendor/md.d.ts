export { Lexer, getDefaults } from "marked";
export type { MarkedOptions, Token, Tokens, TokensList } from "marked";
