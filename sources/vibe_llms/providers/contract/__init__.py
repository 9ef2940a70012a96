"""Contract: tool calls in plain JSON, for any model without native tool calls."""
