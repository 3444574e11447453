"""The table of the demo, the tests and the benchmarks: a million deliveries to be settled.

Filled inside the server, so a million rows take seconds. The same arguments give the same rows, except for the
`update_at` of later changes, which comes from the server's clock. Timestamps are in 2025 and have ties: about 40
rows share each one, and one row in 20 has the timestamp of a single nightly job.
"""

from __future__ import annotations

from floodmark.setup.services.databases import DatabaseServer, MySQL

DATABASE = "settlement"
TABLE = "settlement_normal_delivery_detail"
NAME = f"{DATABASE}.{TABLE}"
NIGHTLY_JOB = "2025-06-30 03:00:00"
# Rows per INSERT: MySQL generates the numbers in memory.
AT_ONCE = 1_000_000

_CREATE = """
CREATE TABLE {table} (
  id                  BIGINT NOT NULL AUTO_INCREMENT,
  order_no            VARCHAR(32) NOT NULL,
  waybill_no          CHAR(15) CHARACTER SET ascii NOT NULL,
  merchant_id         BIGINT NOT NULL,
  courier_id          INT UNSIGNED NULL,
  station_id          INT NOT NULL,
  status              TINYINT NOT NULL,
  settlement_status   SMALLINT NOT NULL DEFAULT 0,
  weight_kg           DECIMAL(10,3) NOT NULL,
  delivery_fee        DECIMAL(12,2) NOT NULL,
  settlement_amount   DECIMAL(18,4) NOT NULL,
  currency            CHAR(3) NOT NULL DEFAULT 'CNY',
  receiver_address    VARCHAR(255) NOT NULL,
  remark              TEXT NULL,
  extra               JSON NULL,
  settlement_date     DATE NOT NULL,
  create_at           DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_at           {cursor} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits} ON UPDATE CURRENT_TIMESTAMP{digits},
  PRIMARY KEY (id),
  KEY idx_update_at (update_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
"""

# `n` stands for the row's number. Multiplication by odd constants scatters values without a random source.
_COLUMNS = {
    "order_no": "CONCAT('SO2025', LPAD(n, 10, '0'))",
    "waybill_no": "CONCAT('WB', LPAD((n * 7919) % 9999999999999, 13, '0'))",
    "merchant_id": "100000 + (n * 2654435761) % 5000",
    "courier_id": "IF(n % 17 = 0, NULL, 4000000000 + (n * 40503) % 20000)",
    "station_id": "1 + (n * 31) % 800",
    "status": "n % 7",
    "settlement_status": "(n * 13) % 5",
    "weight_kg": "((n * 7877) % 30000) / 1000",
    "delivery_fee": "((n * 104729) % 5000) / 100 - 5",
    "settlement_amount": "((n * 1299709) % 100000000) / 10000",
    "currency": "ELT(1 + n % 3, 'CNY', 'USD', 'MXN')",
    "receiver_address": "CONCAT(n % 977, ' ', ELT(1 + n % 4, 'Calle Niño', '南京东路', 'Main St', 'Żurawia'))",
    "remark": "CASE n % 5 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'null' ELSE CONCAT('at door ', n % 1013, ' 📦') END",
    "extra": """IF(n % 11 = 0, NULL, CONCAT('{"zone": ', n % 40, ', "fragile": ', IF(n % 2, 'true', 'false'), '}'))""",
    "settlement_date": "DATE('2025-01-01') + INTERVAL (n * 3) % 300 DAY",
}  # fmt: skip


def create(db: DatabaseServer, rows: int, *, cursor: str = "DATETIME") -> None:
    """Create the database and the table, and fill it; `cursor` is the type of `update_at`."""
    digits = cursor[cursor.index("(") :] if "(" in cursor else ""
    moments = max(1, rows // 40)
    # 25,000,000 seconds reach from 1 January to mid October 2025.
    update_at = (
        f"IF(n % 20 = 7, '{NIGHTLY_JOB}', TIMESTAMP('2025-01-01 00:00:01') + INTERVAL "
        f"CAST((n * 7919) % {moments} * (25000000 DIV {moments}) AS SIGNED) SECOND)"
    )
    create_at = "TIMESTAMP('2024-12-31 00:00:00') + INTERVAL n % 86400 SECOND"
    columns = {"id": "n", **_COLUMNS, "create_at": create_at, "update_at": update_at}
    db.execute(
        f"CREATE DATABASE IF NOT EXISTS {DATABASE} DEFAULT CHARSET=utf8mb4",
        f"DROP TABLE IF EXISTS {NAME}",
        _CREATE.format(table=NAME, cursor=cursor, digits=digits),
    )
    step = AT_ONCE if isinstance(db, MySQL) else max(1, rows)
    for first in range(1, rows + 1, step):
        numbers = f"(SELECT seq AS n FROM seq_{first}_to_{min(rows, first + step - 1)}) AS numbers"
        # Without these checks MariaDB builds an empty table's indexes by sorting, several times faster.
        db.execute(
            "SET unique_checks = 0, foreign_key_checks = 0, time_zone = '+00:00'",
            _insert(columns, numbers),
            database=DATABASE,
        )
    db.execute(f"ANALYZE TABLE {NAME}")


def change(db: DatabaseServer, inserts: int, updates: int) -> None:
    """Insert new rows after the last id and update existing ones, spread over the whole table."""
    [(last,)] = db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {NAME}")
    if updates:
        step = max(1, last // updates)
        db.execute(
            f"UPDATE {NAME} SET settlement_status = settlement_status + 1, "
            "settlement_amount = settlement_amount + 0.0001, "
            "remark = CONCAT('settled again: ', COALESCE(remark, 'never')) "
            f"WHERE id IN (SELECT seq FROM seq_{step}_to_{last}_step_{step}) ORDER BY id LIMIT {updates}",
            database=DATABASE,
        )
    if inserts:
        numbers = f"(SELECT seq AS n FROM seq_{last + 1}_to_{last + inserts}) AS numbers"
        db.execute(_insert({"id": "n", **_COLUMNS}, numbers), database=DATABASE)


def _insert(columns: dict[str, str], numbers: str) -> str:
    return f"INSERT INTO {TABLE} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {numbers}"
