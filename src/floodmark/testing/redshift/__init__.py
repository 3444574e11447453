"""A stand-in for Redshift: the real driver, real SQL and real transactions, without a cluster.

A proxy that speaks Redshift's side of PostgreSQL's protocol, over a private PostgreSQL 15. COPY reads Parquet from
an S3 server within the caller's transaction. Strict where Redshift is and PostgreSQL is not, and sometimes
stricter than both: what is refused here may work there, what works here is meant to work there.

Known to be laxer than Redshift: 'a' and 'a ' differ in comparisons; a cast to VARCHAR(n) cuts characters, not bytes;
SUPER is jsonb, which sorts keys and keeps one of two equal ones; a table made after the snapshot is seen (no error
1018); correlated subqueries of any kind run.
"""

from floodmark.testing.redshift.faults import Fault, Faults
from floodmark.testing.redshift.standin import RedshiftStandIn
from floodmark.testing.redshift.wire import SqlError

__all__ = ["Fault", "Faults", "RedshiftStandIn", "SqlError"]
