"""What the `evenflow sim` sub-commands are made of: options to setups, runs to tables, simulated against live."""
