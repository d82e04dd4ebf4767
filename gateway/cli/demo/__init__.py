"""`evenflow demo`: two tenants on one engine, once first come first served, once fair, and what each felt."""

from gateway.cli.demo.command import demo

__all__ = ["demo"]
