"""The private S3 server of the demo: one that does not answer is a service that is away, not a bug."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from floodmark.model.errors import TransientError
from floodmark.setup.services.s3 import names_at


def test_a_server_that_does_not_answer_in_time_is_a_transient_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TransientError, match="did not answer"):
            names_at(f"http://127.0.0.1:{port}/", seconds=0.05)
    with pytest.raises(TransientError, match="did not answer"):
        names_at(f"http://127.0.0.1:{port}/", seconds=0.05)  # nobody listens any more
