"""The engine's sub-commands of `evenflow`, found through the entry-point group `evenflow.commands`."""
