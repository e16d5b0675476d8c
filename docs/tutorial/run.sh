#!/bin/sh
# docs/tutorial.md from its first command to its last, in some minutes: sh docs/tutorial/run.sh
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$(dirname "$0")/llama2.py" "$(dirname "$0")/test_llama2.py" "$folder"
cd "$folder" # away from the settings that a project around this folder has
set -x

shardcheck plan --params 68,976,648,192 --weights bf16 --moments bf16 --master none --world 1,8,16,64 --limit "80 GB"
shardcheck plan --model llama2:build --strategy fsdp2 --world 8,16,64 --limit "80 GB"
pytest -q test_llama2.py

# The mistake: this test has to fail.
sed -i.right 's/reshard_after_forward=True/reshard_after_forward=False/' test_llama2.py
if pytest -q test_llama2.py; then exit 1; else test $? -eq 1; fi
