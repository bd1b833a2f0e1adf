"""Node-local facts: registrations, dispatch, announce, verify, archive."""
