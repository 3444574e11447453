"""A stand-in for Redshift: the real driver, real SQL and real transactions, without a cluster.

A proxy that speaks Redshift's side of PostgreSQL's protocol, over a private PostgreSQL 15. COPY reads Parquet from
an S3 server within the caller's transaction. It refuses, in Redshift's words, what AWS documents as unsupported, and
also what the documentation leaves open: functions that it does not name, catalog tables combined with users' tables,
strings beyond 65,535 bytes. What works here is meant to work there.

It can't show: how long anything takes (distribution, sort keys, encodings, queues, concurrency scaling, plans); S3 and
IAM beyond allowed and denied (presigned URLs and their hour, bucket policies, KMS, Regions); what a cluster does by
itself (VACUUM, resizes, restarts, Serverless going to sleep); the exact text of some errors.

Laxer than Redshift: 'a' and 'a ' compare as different; a cast to VARCHAR(n) cuts characters, not bytes;
decimals overflow in sums and columns only, not inside an expression; SUPER is jsonb, which sorts keys and keeps one of
two equal ones; a table created after the snapshot is visible (no error 1018); any correlated subquery runs.
"""

from tests.support.redshift.faults import Fault, Faults
from tests.support.redshift.standin import RedshiftStandIn
from tests.support.redshift.wire import SqlError

__all__ = ["Fault", "Faults", "RedshiftStandIn", "SqlError"]
