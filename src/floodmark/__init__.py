"""Floodmark: incremental replication from MySQL through S3 (Parquet) into a warehouse, exactly once."""

__version__ = "0.1.0"
