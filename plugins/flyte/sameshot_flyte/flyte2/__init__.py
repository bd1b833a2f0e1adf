"""The face for the SDK of Flyte 2, `flyte`."""
