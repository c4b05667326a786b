#!/bin/sh
# What Immersive Translate sends: as many translations as texts, in their order.
curl -sS "${SKEIN_URL:-http://127.0.0.1:8000}/translate/v1/batch-translate" -H 'content-type: application/json' \
  -d '{"source_lang": "en", "target_lang": "zh-CN", "text_list": ["Hello world!", "Good morning"]}'
echo
