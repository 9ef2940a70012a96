"""The contract: tools for models without calls of their own, in plain JSON, around any model."""
