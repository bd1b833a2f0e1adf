"""How a node talks to Kineto: config text, stock dynolog over RPC, and the embedded broker."""
