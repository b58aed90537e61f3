"""What `make versions` says of versions that cannot be tried."""

from unittest import mock

from tests.versions import __main__ as versions


def test_missing_python_version_is_skipped_without_failure(capsys):
    assert versions.main(["2.11.0@2.99"]) == 0
    assert "torch 2.11.0, Python 2.99, not run: no Python 2.99 here" in capsys.readouterr().out


def test_a_torch_that_cannot_be_had_is_a_failure(capsys):
    with mock.patch.object(versions, "made", return_value=None):
        assert versions.main(["99.0"]) == 1
    assert "no torch 99.0 for Python" in capsys.readouterr().out
