#!/bin/sh
# Codex with a server of one's own. OPENAI_API_KEY is the key of the server.
set -eu
server=${1:-http://127.0.0.1:8663}
exec codex -c model_provider=vibe -m openai/gpt-5.5 -c "model_providers.vibe={
  name=\"vibe-llms\", base_url=\"$server/v1\", env_key=\"OPENAI_API_KEY\", wire_api=\"responses\"}"
