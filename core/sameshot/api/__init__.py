"""The gRPC contract: protobuf definitions, generated code, and its translation to the model."""
