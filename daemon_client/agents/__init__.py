"""Agent CLIs behind one interface: `base` is the contract, `registry` finds and chooses."""
