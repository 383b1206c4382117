"""Signals, and what is said when something goes wrong."""

import os
import signal

import pytest

from backstream.cli.failures import Stop


@pytest.fixture
def handlers():
    """Those of pytest are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_to_stop_and_a_second_one_stops_at_once(handlers, number, capfd):
    stop = Stop()
    assert not stop.requested() and stop.exit_code() == 0
    os.kill(os.getpid(), number)
    assert stop.requested() and stop.exit_code() == 128 + number
    assert "Stopping after the current rows" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_under_nohup_a_closed_terminal_is_no_reason_to_stop(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = Stop()
    os.kill(os.getpid(), signal.SIGHUP)
    assert not stop.requested()
