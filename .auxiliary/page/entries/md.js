export { Lexer, getDefaults } from "marked";
