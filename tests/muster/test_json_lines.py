"""Records are read from a file that another process still writes to."""

import json

from muster import json_lines


def lines(count: int) -> bytes:
    return b"".join(json.dumps({"step": step}).encode() + b"\n" for step in range(count))


def test_a_line_cut_off_at_either_end_or_broken_is_left_out(tmp_path):
    path = tmp_path / "rank_00000.jsonl"
    path.write_bytes(lines(3) + b'[1]\n{"step": \xff}\n' + b'{"step": 3}\n{"st')
    assert [one["step"] for one in json_lines.read(path)] == [0, 1, 2, 3]
    assert [one["step"] for one in json_lines.read(path, 2, 22)] == [1]
    assert json_lines.read(path, -5) == json_lines.read(path)


def test_of_a_long_file_the_end_is_read(tmp_path):
    path = tmp_path / "rank_00000.jsonl"
    path.write_bytes(lines(20_000))
    found = json_lines.last(path)
    assert found[-1] == {"step": 19_999} and 1000 < len(found) < 20_000
    assert json_lines.last(tmp_path / "gone") == []
