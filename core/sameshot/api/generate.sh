#!/bin/sh
# Regenerates the protobuf modules from sameshot.proto with the pinned grpcio-tools (gencode for protobuf 6.31 and up).
set -eu
cd "$(dirname "$0")/../.."
PATH="$(dirname "$(command -v "${PYTHON:-python}")"):$PATH"
"${PYTHON:-python}" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. sameshot/api/sameshot.proto
