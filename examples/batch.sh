#!/bin/sh
# Several raw prompts as one batch, streamed: each event holds the rows that moved.
curl -sSN "${SKEIN_URL:-http://127.0.0.1:8000}/v1/chat/completions" -H 'content-type: application/json' -d '{
  "contents": [
    "User: What is the capital of France?\n\nAssistant:",
    "User: What is the capital of Japan?\n\nAssistant:"
  ],
  "stop_tokens": [0, 261], "top_k": 1, "alpha_presence": 0, "alpha_frequency": 0, "max_tokens": 64, "stream": true
}'
