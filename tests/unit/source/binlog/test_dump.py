"""What the error of a dump means: the texts are those of MySQL 9.7 and MariaDB 10.11."""

from __future__ import annotations

import pytest

from floodmark.config.load import SourceSpec
from floodmark.model.changes import LogPlace
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TransientError
from floodmark.source.binlog.dump import dump_error
from floodmark.source.binlog.end import LogGone
from floodmark.source.rows.packets import MySQLError, StatementRefused, lost

SPEC = SourceSpec("db", 3306, "reader", "hunter2")
START = LogPlace("bin.000007", 787)
_AT = "; the first event 'bin.000007' at 787, the last event read from './bin.000007' at 127"


@pytest.mark.parametrize(
    ("text", "read", "kind"),
    [
        ("Could not find first log file name in binary log index file", False, LogGone),
        ("could not find next log", True, LogGone),
        ("Client requested source to start replication from position > file size", False, LogGone),
        (f"Client requested master to start replication from impossible position{_AT}", False, LogGone),
        (f"bogus data in log event{_AT}", False, LogGone),
        (f"binlog truncated in the middle of event; consider out of disk space on source{_AT}", False, LogGone),
        (f"log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source{_AT}", False, LogGone),
        (f"log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source{_AT}", True, ConfigError),
        (f"bogus data in log event{_AT}", True, DataError),
        ("event read from binlog did not pass crc check", True, DataError),
        ("Binary log is not open", False, ConfigError),
        ("Replica can not handle replication events with the checksum that source is configured to log", False, ConfigError),
        ("A replica with the same server_uuid/server_id as this replica has connected to the source", True, TransientError),
        ("memory allocation failed reading log event", True, TransientError),
    ],
)  # fmt: skip
def test_the_meanings_of_error_1236_are_told_apart(text: str, read: bool, kind: type[FloodmarkError]) -> None:
    error = dump_error(StatementRefused(1236, text), SPEC, START, read)
    assert type(error) is kind and error.hint
    assert "hunter2" not in error.message + error.hint


def test_what_is_not_about_the_log_means_the_same_as_anywhere() -> None:
    refused = MySQLError(
        1227,
        "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s) for this operation",
    )
    error = dump_error(refused, SPEC, START, False)
    assert isinstance(error, ConfigError) and error.hint == "GRANT REPLICATION SLAVE ON *.* TO reader"
    assert isinstance(dump_error(lost(), SPEC, START, True), TransientError)
