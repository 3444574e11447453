"""A stand-in for Redshift: the real driver, real SQL and real transactions, without a cluster.

A proxy that speaks Redshift's side of PostgreSQL's protocol, over a private PostgreSQL 15. COPY reads Parquet from
an S3 server within the caller's transaction. What AWS documents as refused is refused, in Redshift's words, and so is
what the documentation leaves open: functions that it does not name, the catalog beside users' tables, strings beyond
65,535 bytes. What works here is meant to work there.

What it can't tell: how long anything takes (distribution, sort keys, encodings, queues, concurrency scaling, plans);
S3 and IAM beyond yes and no (presigned URLs and their hour, bucket policies, KMS, Regions); what a cluster does by
itself (VACUUM, resizes, restarts, Serverless going to sleep); the exact text of some errors.

Laxer than Redshift: 'a' and 'a ' differ in comparisons; a cast to VARCHAR(n) cuts characters, not bytes; decimals
overflow in sums and columns only, not inside an expression; SUPER is jsonb, which sorts keys and keeps one of two equal
ones; a table made after the snapshot is seen (no error 1018); correlated subqueries of any kind run.
"""

from floodmark.testing.redshift.faults import Fault, Faults
from floodmark.testing.redshift.standin import RedshiftStandIn
from floodmark.testing.redshift.wire import SqlError

__all__ = ["Fault", "Faults", "RedshiftStandIn", "SqlError"]
