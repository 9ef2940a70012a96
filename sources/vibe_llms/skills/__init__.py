"""Skills: folders with a `SKILL.md`, whose instructions a model reads when a task needs them."""
