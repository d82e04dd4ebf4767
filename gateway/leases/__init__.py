"""Quotas of many gateways over one Postgres: leases on rates, parts of slots and budgets, and an emergency share.

terms, demand     how long a lease lives, how large one should be
rates, holdings   what one replica holds of one limit
emergency         what it may spend alone while the store is away
claims, decisions who waits, and who gets what
turns, book       the state machine: no I/O, no clock
backend           the loop around it
"""

from gateway.leases.backend import LeasedQuota

__all__ = ["LeasedQuota"]
