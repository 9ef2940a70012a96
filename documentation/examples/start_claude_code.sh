#!/bin/sh
# Claude Code with a server of one's own. ANTHROPIC_AUTH_TOKEN is the key of the server.
set -eu
export ANTHROPIC_BASE_URL=http://127.0.0.1:8642
export ANTHROPIC_MODEL=openai/gpt-5.5
export ANTHROPIC_SMALL_FAST_MODEL=openai/gpt-5.4-mini
exec claude "$@"
