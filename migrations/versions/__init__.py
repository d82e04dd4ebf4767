"""The steps. Each file's rules are in `script.py.mako`, which new ones are made from."""
