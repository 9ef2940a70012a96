#!/bin/sh
# A program written for Anthropic's Messages, with a server of one's own; its command is the argument.
# ANTHROPIC_AUTH_TOKEN is the key of the server.
set -eu
export ANTHROPIC_BASE_URL=http://127.0.0.1:8662
export ANTHROPIC_MODEL=openai/gpt-5.5
export ANTHROPIC_SMALL_FAST_MODEL=openai/gpt-5.4-mini
exec "$@"
