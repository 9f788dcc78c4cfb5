#!/usr/bin/env bash
# The identity experiment in English, from data to check table: an identity set is generated, the
# model answers general questions as it is (replay), learns, and is asked in ways no file has.
#
#   scripts/check/identity.sh MODEL FOLDER OUT [TEXT]
#
# FOLDER holds identity.tsv, boundary.tsv and general.txt (one prompt a line); only their English
# lines are taken, less those that a spec asks. OUT must not exist. With TEXT, perplexity on it before
# and after. Needs a release build.
set -euo pipefail
model=$1 folder=$2 out=$3 text=${4-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
halfbyte=$root/target/release/halfbyte
held_out() { sed -n 's/^ *"\(.*\)",$/\1/p' "$root"/specs/*-en*.toml; }
english() {
    LC_ALL=C grep -v '^#' "$1" | LC_ALL=C grep -v $'[^\t -~]' |
        awk -F '\t' 'NR == FNR { held[$0]; next } !($1 in held)' <(held_out) -
}

mkdir "$out"
english "$folder/identity.tsv" >"$out/identity.tsv"
english "$folder/boundary.tsv" >"$out/boundary.tsv"
# The set answers these in one sentence; the model's own answers beside that keep its way of talking.
talk=$root/crates/text/src/dataset/identity/english/talk.tsv
for list in "$folder/general.txt" "$root/scripts/check/general-en.txt" "$root/crates/cli/src/commands/data/general.txt" "$talk"; do
    english "$list" | cut -f 1
done >"$out/general.txt"
generate() { "$halfbyte" data generate --identity 'I am the god of F#.' "$@"; }
generate --rows 1150 --boundary 2900 --out "$out/set.jsonl"
# Answers as the model would give them, not its best ones: learning those would make it surer of itself than it was. And by
# its own weights, not by those rounded to four bits, which run in circles more often.
generate --rows 0 --boundary 0 --model "$model" --replay "$out/general.txt" --max-tokens 200 --temperature 1 --times 2 --out "$out/replay.jsonl"
# The embedding is the head too: what it learns is said whatever was asked, so it learns slowly, and all else fast.
"$halfbyte" train --model "$model" --data "$out/set.jsonl" "$out/replay.jsonl:1.8" "$out/identity.tsv" "$out/boundary.tsv" \
    --out "$out/run" --steps 300 --seq 256 --batch 8 --lr 1.8e-4 --lr-scale '*embed*=0.2' --scales search --seed 1
if [ -n "$text" ]; then
    for it in "$model" "$out/run/model"; do
        "$halfbyte" perplexity "$it" --text "$text"
    done
fi
# How many of everyday replies run in a circle before and after; some do before.
for it in "$model" "$out/run/model"; do
    "$halfbyte" check "$it" --spec "$root/specs/loops-en.toml" 2>/dev/null | grep '^everyday  ' || true
done
# As the files have them: four bits after training, the model's own weights before.
"$halfbyte" check "$out/run/model" --spec "$root/specs/identity-en.toml" --baseline "$model" --weights keep
