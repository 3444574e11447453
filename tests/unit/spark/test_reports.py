"""What tasks report while they run: real datagrams, on the loopback."""

from __future__ import annotations

import socket
import threading

from floodmark.spark.reports import Address, Reports, RowsUnderway, Teller


class Heard:
    """Collects numbers, and signals when there are enough."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._change = threading.Condition()

    def __call__(self, *numbers: int) -> None:
        with self._change:
            self.rows.append(numbers[-1])
            self._change.notify_all()

    def wait_for(self, last: int) -> None:
        with self._change:
            assert self._change.wait_for(lambda: self.rows[-1:] == [last], 10), self.rows


def tell(address: Address | None, rows: int) -> None:
    teller = Teller(address, every=0)
    teller.tell(rows)
    teller.close()


def test_rows_of_several_tasks_are_summed_until_each_has_ended() -> None:
    reports, heard = Reports("127.0.0.1", "localhost"), Heard()
    underway = RowsUnderway(reports, heard)
    first, second = underway.begin(), underway.begin()
    tell(first, 1000)
    heard.wait_for(1000)
    tell(second, 50)
    heard.wait_for(1050)
    tell(first, 10)  # tried again, from its beginning
    heard.wait_for(60)
    underway.end(first)
    heard.wait_for(50)
    tell(first, 2000)  # late, or a second attempt that nobody waits for
    tell(second, 70)
    heard.wait_for(70)
    underway.close()
    reports.close()
    reports.close()


def test_foreign_datagrams_are_ignored() -> None:
    reports, heard = Reports("127.0.0.1", "127.0.0.1"), Heard()
    address = reports.expect(heard)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        for data in (b"", b"hello", bytes(24), bytes(60_000)):
            other.sendto(data, (address.host, address.port))
    tell(Address(address.host, address.port, bytes(8), address.number), 7)
    tell(address, 8)
    heard.wait_for(8)
    assert heard.rows == [8]
    reports.close()


def test_a_task_reports_only_now_and_then_and_does_not_need_a_listening_driver() -> None:
    reports, heard = Reports("127.0.0.1", "127.0.0.1"), Heard()
    address = reports.expect(heard)
    seldom = Teller(address, every=3600)
    for rows in range(1000):
        seldom.tell(rows)
    seldom.close()
    tell(address, 1)
    heard.wait_for(1)
    assert heard.rows == [1]
    reports.close()
    for nowhere in (address, Address("no-such-host.invalid", 1, bytes(8), 1), None):
        for rows in range(3):
            tell(nowhere, rows)


def test_a_port_that_is_taken_gives_way_to_another() -> None:
    first = Reports("127.0.0.1", "127.0.0.1")
    taken = first.expect(print).port
    second = Reports("127.0.0.1", "127.0.0.1", taken)
    assert second.expect(print).port != taken
    first.close()
    second.close()
