"""A table's state: the commit log and its fold, the published watermarks, the claim and its lease.

The log is the source of truth for extraction, the warehouse's ledger for loading; everything else is derived.
"""
