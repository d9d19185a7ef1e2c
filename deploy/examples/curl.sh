#!/usr/bin/env bash
# Every binding by curl, except WebSocket, which curl does not support in a script: see stream.mjs.
#
#   bash curl.sh http://127.0.0.1:8000 groups.ndjson [MODEL]
#
# The file has a line {"group": NAME, "values": [...]} for each group; groups.ndjson in this folder is for the model of
# the README. If the server requires a key, set ANYTIME_KEY.
set -euo pipefail
url=$1 lines=$2 model=${3:-}
key=(${ANYTIME_KEY:+-H "Authorization: Bearer $ANYTIME_KEY"})
send() { curl --silent --show-error --fail-with-body ${key[@]+"${key[@]}"} "$@"; }
query="${model:+&model=$model}"

# {"name": values, ...}, from the lines
groups="{$(sed -E 's/^\{"group": *("[^"]*"), *"values": *(.*)\}$/\1: \2/' "$lines" | paste -sd, -)}"

echo "models"
send "$url/models"; echo

echo "one body"
send "$url/predict?deadline_ms=50$query" -H 'Content-Type: application/json' -d "{\"groups\": $groups}"; echo

echo "a line for each group as it is computed, answered at the deadline"
while read -r line; do echo "$line"; sleep 0.05; done < "$lines" |
    send --no-buffer -T - -X POST "$url/predict?deadline_ms=80$query" -H 'Content-Type: application/x-ndjson'; echo

echo "a session"
begin=$(send -X POST "$url/sessions" -H 'Content-Type: application/json' -d "{${model:+\"model\": \"$model\"}}")
session=$(sed -E 's/.*"id": *"([^"]*)".*/\1/' <<< "$begin")
send "$url/sessions/$session/groups" -H 'Content-Type: application/json' -d "$groups"; echo
send "$url/sessions/$session/predict?budget=5"; echo
send "$url/sessions/$session/predict?deadline_ms=20"; echo
send -X DELETE "$url/sessions/$session"
