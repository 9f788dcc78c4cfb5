#!/usr/bin/env bash
# The model that is part of the program, from nothing: dialogues, a tokenizer, random weights, training
# in four bits, one GGUF with exactly the codes it was trained in. Every step is seeded, so the file
# comes out the same on every machine with any number of threads.
#
#   scripts/embedded/make.sh WORK
#
# WORK must not exist; it keeps the run with its report. Needs a release build, and a few minutes
# of two cores.
set -euo pipefail
work=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
halfbyte=${CARGO_TARGET_DIR:-$root/target}/release/halfbyte

mkdir "$work"
"$halfbyte" data dialogues --rows 60000 --out "$work/dialogues.jsonl"
"$halfbyte" init --config "$root/configs/embedded.json" --out "$work/random"
"$halfbyte" data tokenizer --data "$work/dialogues.jsonl" --size 3072 --out "$work/random"
"$halfbyte" train --model "$work/random" --data "$work/dialogues.jsonl" --out "$work/run" --steps 1400 \
    --seq 256 --batch 8 --lr 1.5e-3 --warm-up 100 --held-out 2% --measure-every 700 --save-every 200
"$halfbyte" convert "$work/run/model" "$work/model.gguf" --to gguf --weights keep
"$halfbyte" diff "$work/run/model" "$work/model.gguf" --exit-code
cp "$work/model.gguf" "$root/crates/cli/embedded/model.gguf"
