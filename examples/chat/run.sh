#!/usr/bin/env bash
# Trains a small Llama on text, fine-tunes it on conversations, all its weights and then adapters alone,
# and asks either three things: two minutes on two cores. README.md quotes what it prints.
# Usage: examples/chat/run.sh [ZEROPLAN [FOLDER]], a path from the root of the repository, and where the
# models go (default: run/chat).
set -euo pipefail
cd "$(dirname "$0")/../.."
zeroplan=${1:-build/release/zeroplan}
out=${2:-run/chat}
mkdir -p "$out"
awk -f examples/chat/text.awk examples/chat/facts.tsv > "$out/facts.txt"
awk -f examples/chat/conversations.awk examples/chat/facts.tsv > "$out/chats.jsonl"
show() {
  echo
  echo "$ zeroplan $*"
  "$zeroplan" "$@"
}

common=(--seq-len 256 --micro-batch 8 --dtype fp32 --lr-schedule cosine --warmup-ratio 0.05)
show train --model examples/chat/model --fresh-weights --data "$out/facts.txt" --epochs 20 --lr 3e-3 --save "$out/base" \
  "${common[@]}"
show train --model "$out/base" --data "$out/chats.jsonl" --epochs 25 --lr 2e-3 --save "$out/chat" \
  "${common[@]}"
show train --model "$out/base" --method lora --data "$out/chats.jsonl" --epochs 10 --lr 5e-3 \
  --save "$out/adapter" "${common[@]}"
for tuned in chat adapter; do
  for question in "What is the capital of Peru?" "What does an owl do?" "Which one follows April?"; do
    show generate "$out/$tuned" --chat --prompt "$question" --temperature 0
  done
done
