#!/bin/sh
# Regenerates the protobuf modules from sameshot.proto with the pinned grpcio-tools (gencode for protobuf 6.31 and up).
# With --check it changes nothing and fails where the checked-in modules are not what it would write.
set -eu
cd "$(dirname "$0")/../.."
out=.
if [ "${1:-}" = --check ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
"${PYTHON:-python}" -m grpc_tools.protoc -I. --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    sameshot/api/sameshot.proto
if [ "$out" != . ]; then
    for made in "$out"/sameshot/api/*; do
        cmp "$made" "sameshot/api/$(basename "$made")" || { echo "run 'make generate' and commit"; exit 1; }
    done
fi
