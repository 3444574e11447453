"""What every session sets first, regardless of the server's defaults and its `init_connect`."""

from __future__ import annotations

# The server waits this long for a reader that is busy writing to the store.
WRITE_SECONDS = 3600

# Each statement stands alone, with no limit on its rows or its time. The conditional comments hold settings
# that only MySQL or only MariaDB knows.
_UNLIMITED = (
    "autocommit = 1, completion_type = 0, sql_quote_show_create = 1, sql_select_limit = 18446744073709551615, sql_big_selects = 1"
    " /*!50708 , max_execution_time = 0 */ /*M!100101 , max_statement_time = 0 */"
)
# Metadata is current rather than cached, and complete: keys that MySQL generated itself are shown. Plans come
# from the optimizer that can print them.
_CURRENT = (
    "/*!80003 , information_schema_stats_expiry = 0 */"
    " /*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
    " /*!90700 , optimizer_switch = 'hypergraph_optimizer=off' */"
)

# The initial statements of a session, which reads in UTC.
SETTINGS = (
    f"SET NAMES utf8mb4, {_UNLIMITED}, time_zone = '+00:00', sql_mode = '', net_write_timeout = {WRITE_SECONDS} {_CURRENT}",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
)
