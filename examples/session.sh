#!/bin/sh
# A conversation that sends only what is new: the server keeps its state.
url="${SKEIN_URL:-http://127.0.0.1:8000}"
session="example-$$"
say() {
  curl -sS "$url/v1/chat/completions" -H 'content-type: application/json' \
    -d "{\"session_id\": \"$session\", \"temperature\": 0, \"max_tokens\": 64,
         \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}"
  echo
}
say 'What is the capital of France?'
say 'What is the capital of Japan?'
curl -sS "$url/v1/sessions/$session"
echo
curl -sS -X DELETE "$url/v1/sessions/$session"
echo
