"""What no manifest may say, and what is said of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.ssh.cloudlab import read_manifest
from muster.errors import UsageError
from tests.launch.ssh.manifests import (
    lan,
    login,
    manifest,
    node,
    plain,
    read,
    refused,
    several,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<rspec>\n<node></rspec>", "file.xml:2: not XML: mismatched tag; give the manifest"),
        ("\n\n<rspec", "file.xml:3: not XML: "),
        ("", "file.xml:1: not XML: no element found; "),
        ("<a>\x00</a>", "file.xml:1: not XML: "),
        ("<a>\ud800</b>", "file.xml:1: not XML: "),
        ("<a>&x;</a>", "file.xml:1: not XML: undefined entity"),
        ("<a xmlns='x'/>", "file.xml: begins with 'a', not with 'rspec'; "),
        (manifest(plain(0), type="advertisement"), "file.xml: an rspec of type 'advertisement', "),
        ("<rspec/>", "file.xml: an rspec of type 'None', "),
        (manifest(), "file.xml: no nodes; give the manifest of a running experiment"),
        (manifest("<node client_id='a'/>"), "file.xml: node 'a': nobody can log in there; "),
        (
            manifest(plain(0), plain(0).replace("10.10.1.1", "10.10.1.2")),
            "file.xml: node 'node0': node alice@ms0.example:22 was given before, at file.xml: node",
        ),
    ],
)
def test_what_is_wrong_is_said(text, expected):
    found = refused(text)
    assert found[0].startswith(expected)
    assert ";" in found[0]


def test_entities_are_refused_before_they_grow():
    laughs = "".join(f"<!ENTITY l{k} '{f'&l{k - 1};' * 20}'>" for k in range(1, 20))
    head = f"<?xml version='1.0'?>\n<!DOCTYPE rspec [<!ENTITY l0 'ha'>{laughs}]>"
    (problem,) = refused(manifest(plain(0).replace("node0", "&l19;"), head=head))
    assert problem.startswith("file.xml:2: '<!DOCTYPE' has no place in a manifest; ")


HOSTILE = ["-oProxyCommand=x", "a;b", "$(id)", "&quot;a&quot;", "a b", "a&#10;b", "", "n[1-2]"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("what", ["user", "host", "port"])
def test_what_a_shell_or_ssh_could_take_for_something_else_is_refused(what, text):
    fields = {"user": "u", "host": "h", "port": "22"} | {what: text}
    found = node("a", login(fields["user"], fields["host"], fields["port"]))
    if what == "port" and not text:
        assert read(manifest(found)) == ["u@h"]
        return
    problems = refused(manifest(found))
    assert problems[0].startswith(f"file.xml: node 'a': {what} ")
    assert all(each.isprintable() for each in problems)


def test_all_problems_are_told_at_once():
    bare = node("b", login("bob", "b"))
    assert len(refused(manifest(node("a", login("-a", "b", "0")), node("c", "")))) == 2
    assert len(refused(manifest(several(0), bare), user="carol")) == 2


ATTRIBUTE = st.text(st.characters(exclude_characters="<&\"'"), max_size=8) | st.just("10.0.0.1")


@given(st.text() | st.builds(lambda text: f"<{text}>", st.text()), ATTRIBUTE, ATTRIBUTE)
def test_any_text_gives_harmless_nodes_or_is_refused(junk, first, second):
    for text in (
        junk,
        manifest(node(first, login(second, first, first), lan(second, first), junk)),
    ):
        try:
            nodes = read_manifest(text, 1, "file.xml", user=None, me=None)
        except UsageError as error:
            assert all(each.isprintable() for each in str(error).split("\n"))
            continue
        for each in nodes:
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]*|[0-9a-f:]+", each.host)
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9.+_-]*", each.user or "u")
