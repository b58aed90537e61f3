"""Archives are checked as they are unpacked, and what came first is known by its names."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
import vermin
from hypothesis import given
from hypothesis import strategies as st

from launch.nodes import node_data


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


def device(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.CHRTYPE
    return member


@pytest.mark.parametrize("has_filter", [True, False])
@pytest.mark.parametrize(
    "members",
    [
        [link("out", "deep"), tarfile.TarInfo("out/x")],
        [link("out", "deep"), tarfile.TarInfo("out")],
        [link("d/e/s", "../.."), link("t", "d/e/s/..")],
        [link("hard", "../../x", tarfile.LNKTYPE)],
        [link("up", "a/../../x")],
        [tarfile.TarInfo("/etc/evil")],
        [device("null")],
    ],
)
def test_a_tar_file_is_checked_also_where_python_has_no_checks(
    tmp_path, members, has_filter, monkeypatch
):
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as made:
        for member in members:
            made.addfile(member, io.BytesIO())
    (tmp_path / "into").mkdir()
    with pytest.raises(node_data.Refused, match=r"^set\.tar: "):
        node_data._unpack("tar", str(path), str(tmp_path / "into"))


@pytest.mark.parametrize("has_filter", [True, False])
def test_links_inside_are_made_and_files_are_one_s_own(tmp_path, monkeypatch, has_filter):
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    path = tmp_path / "set.tar"
    mark = link(node_data.DATA_MARK, "deep/file")
    theirs = tarfile.TarInfo("deep/file")
    theirs.uid, theirs.gid, theirs.uname, theirs.mode = 1234, 1234, "nobody", 0o4777
    with tarfile.open(path, "w") as made:
        for member in [theirs, link("deep/up", "../top"), link("top", "deep/file"), mark]:
            made.addfile(member, io.BytesIO())
    into = tmp_path / "into"
    into.mkdir()
    node_data._unpack("tar", str(path), str(into))
    assert not (into / mark.name).is_symlink()
    state = (into / "deep/file").stat()
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (os.geteuid(), 0o755)
    assert (into / "deep/up").resolve() == (into / "deep/file").resolve()


NAMES = st.text("ab.\u00e4 ", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
TREES = st.recursive(
    st.binary(max_size=4), lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


def plant(folder: Path, tree: dict) -> None:
    folder.mkdir()
    for name, inner in tree.items():
        if isinstance(inner, dict):
            plant(folder / name, inner)
        else:
            (folder / name).write_bytes(inner)


@given(st.dictionaries(NAMES, TREES, max_size=4), st.integers(0, 20))
def test_part_of_sent_data_is_known_from_its_listing(tmp_path_factory, tree, count):
    """So whoever goes on knows from the names on the node what is missing."""
    folder = tmp_path_factory.mktemp("trees")
    plant(folder / "whole", tree)
    entries = [*node_data.data_entries(str(folder / "whole"))]
    assert len({entry[0] for entry in entries}) == len([*(folder / "whole").rglob("*")])
    (folder / "part").mkdir()
    for entry in entries[:count]:
        path = folder / "part" / entry[0]
        if entry[1] == "folder":
            path.mkdir()
        else:
            path.write_bytes((folder / "whole" / entry[0]).read_bytes())
    part = [*node_data.data_entries(str(folder / "part"))]
    assert [entry[:3] for entry in part] == [entry[:3] for entry in entries[:count]]
    is_same = node_data.content_of(part, str(folder / "part")) == node_data.content_of(
        entries, str(folder / "whole")
    )
    assert is_same == (count >= len(entries))


def test_receiver_of_data_runs_on_python_3_8():
    visitor = vermin.visit(Path(node_data.__file__).read_text())
    assert visitor.minimum_versions()[1] <= (3, 8), f"vermin -vvv {node_data.__file__} says where"
